//! Ports: the typed inputs and outputs of an operator.

use std::marker::PhantomData;

use schemas::{Table, TableDef};

/// What passes through a port.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Payload {
    /// Rows of a table.
    Table(TableDef),
    /// For inputs: rows of whichever table is bound. What is bound is always [`Self::Table`].
    AnyTable,
    /// A set of named files of one kind, e.g. `tokenizer`, `model` or `run_records`.
    Files(&'static str),
}

impl std::fmt::Display for Payload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Table(table) => write!(f, "rows of `{}` v{}", table.name, table.version),
            Self::AnyTable => f.write_str("rows of any table"),
            Self::Files(kind) => write!(f, "files of kind `{kind}`"),
        }
    }
}

impl Payload {
    /// Whether an input of this payload may be fed from an output of that one.
    pub fn takes(&self, output: &Self) -> bool {
        self == output || matches!((self, output), (Self::AnyTable, Self::Table(_)))
    }
}

/// One input or output of an operator.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    /// Its name in pipeline files.
    pub name: &'static str,
    /// What passes through it.
    pub payload: Payload,
    /// What it is for.
    pub about: &'static str,
    /// For inputs: may be left unbound.
    pub optional: bool,
    /// For inputs: a unit reads all partitions, not only its own.
    pub whole: bool,
}

impl Port {
    const fn new(name: &'static str, payload: Payload, about: &'static str) -> Self {
        Self { name, payload, about, optional: false, whole: false }
    }
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident<T>) => {
        $(#[$doc])*
        pub struct $name<T>(Port, PhantomData<fn() -> T>);

        impl<T: Table> $name<T> {
            /// A port named `name`.
            pub const fn new(name: &'static str, about: &'static str) -> Self {
                Self(Port::new(name, Payload::Table(TableDef::of::<T>()), about), PhantomData)
            }
            /// The port itself.
            pub const fn port(&self) -> Port {
                self.0
            }
        }
    };
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        pub struct $name(Port);

        impl $name {
            /// The port itself.
            pub const fn port(&self) -> Port {
                self.0
            }
        }
    };
    ($(#[$doc:meta])* $name:ident of kind) => {
        handle! {
            $(#[$doc])*
            $name
        }

        impl $name {
            /// A port named `name` for files of kind `kind`.
            pub const fn new(name: &'static str, kind: &'static str, about: &'static str) -> Self {
                Self(Port::new(name, Payload::Files(kind), about))
            }
        }
    };
}

macro_rules! input {
    ($name:ident $(<$t:ident>)?) => {
        impl $(<$t: Table>)? $name $(<$t>)? {
            /// The port may be left unbound.
            pub const fn optional(mut self) -> Self {
                self.0.optional = true;
                self
            }
            /// A unit reads all partitions, not only its own.
            pub const fn whole(mut self) -> Self {
                self.0.whole = true;
                self
            }
        }
    };
}

handle! {
    /// A typed handle on an input table.
    In<T>
}
handle! {
    /// A typed handle on an output table.
    Out<T>
}
handle! {
    /// A handle on an input table of any kind, for operators that treat every table alike.
    AnyIn
}
handle! {
    /// A handle on input files.
    FilesIn of kind
}
handle! {
    /// A handle on output files.
    FilesOut of kind
}
impl AnyIn {
    /// A port named `name`.
    pub const fn new(name: &'static str, about: &'static str) -> Self {
        Self(Port::new(name, Payload::AnyTable, about))
    }
}
input!(In<T>);
input!(FilesIn);
