//! The operator trait and its erased twin.
//!
//! - An *operator* is a named, versioned step: typed parameters, typed input and output ports, and a `run` that does
//!   one unit of work.
//! - A *stage* is a named use of an operator in a pipeline file.
//! - A *partition* is the slice of a table that one unit handles; a *unit* is one stage on one partition; an *attempt*
//!   is one try at a unit.
//!
//! An operator is synchronous code on a thread of its own. The context does the waiting (storage, checkpoints), so an
//! operator may compute for hours without starving anybody's heartbeat, and reads like a program.
//!
//! Operators are not query-engine nodes and not functions from row stream to row stream: training, evaluation and side
//! outputs such as rejected rows fit neither, ports and units fit all.

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use toml::Spanned;
use toml::de::DeValue;

use crate::context::UnitContext;
use crate::error::OperatorError;
use crate::params::{self, Mistake, ParamsError};
use crate::pattern::Pattern;
use crate::port::Port;

/// Which workers take an operator's units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Any worker; several units at a time.
    Cpu,
    /// Workers with a training device; one unit at a time.
    Gpu,
}

impl Queue {
    /// Its name on the command line and in job queues.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
        }
    }
}

/// How a stage's work is cut into units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Split {
    /// One unit for each partition of the first bound input.
    PerPartition,
    /// One unit over everything.
    Whole,
    /// This many units, numbered from 0, for operators without inputs.
    Numbered(u32),
    /// One unit for each partition of the objects that match the pattern.
    PerObject(Pattern),
}

/// A step of a pipeline. See the module documentation for the words.
pub trait Operator: Sized + Send + Sync + 'static {
    /// The word in the pipeline file.
    const NAME: &'static str;
    /// Part of the unit key: bump it when the meaning of the output changes.
    const VERSION: u32;
    /// What it does, in a sentence or two.
    const ABOUT: &'static str;
    /// What it reads. The first bound port decides the partitions.
    const INPUTS: &'static [Port];
    /// What it writes.
    const OUTPUTS: &'static [Port];
    /// Whether it draws random numbers; only then is the pipeline's seed part of its unit key.
    const SEEDED: bool = false;
    /// Which workers take its units.
    const QUEUE: Queue = Queue::Cpu;
    /// The keys of its `params` table. Derive `deny_unknown_fields` and give defaults with `#[serde(default = …)]`.
    type Params: DeserializeOwned + Serialize + JsonSchema + Send + Sync;

    /// Checks what types cannot. May not do I/O: `coa check` calls this too.
    fn new(params: Self::Params) -> Result<Self, ParamsError>;

    /// How the work is cut into units.
    fn split(&self) -> Split {
        Split::PerPartition
    }

    /// Does one unit. It may run twice, at the same time even; the commit afterwards decides which attempt counts, so
    /// the same inputs, parameters and seed must give the same rows.
    fn run(&self, cx: &UnitContext<'_>) -> Result<(), OperatorError>;
}

/// An operator with its parameters, ready to run.
pub trait Runnable: Send + Sync {
    /// [`Operator::split`].
    fn split(&self) -> Split;
    /// [`Operator::run`].
    fn run(&self, cx: &UnitContext<'_>) -> Result<(), OperatorError>;
}

impl<O: Operator> Runnable for O {
    fn split(&self) -> Split {
        Operator::split(self)
    }
    fn run(&self, cx: &UnitContext<'_>) -> Result<(), OperatorError> {
        Operator::run(self, cx)
    }
}

/// What [`Factory::build`] makes.
pub struct Built {
    /// The operator.
    pub operator: Box<dyn Runnable>,
    /// Its parameters, defaults filled in, keys sorted: what the fingerprint covers.
    pub params: Value,
}

/// What the planner and the worker hold of an operator: the erased twin of [`Operator`].
pub trait Factory: Sync {
    /// [`Operator::NAME`].
    fn name(&self) -> &'static str;
    /// [`Operator::VERSION`].
    fn version(&self) -> u32;
    /// [`Operator::ABOUT`].
    fn about(&self) -> &'static str;
    /// [`Operator::INPUTS`].
    fn inputs(&self) -> &'static [Port];
    /// [`Operator::OUTPUTS`].
    fn outputs(&self) -> &'static [Port];
    /// [`Operator::SEEDED`].
    fn seeded(&self) -> bool;
    /// [`Operator::QUEUE`].
    fn queue(&self) -> Queue;
    /// The JSON schema of the parameters, with docs and defaults.
    fn params_schema(&self) -> schemars::Schema;
    /// Reads the parameters of a pipeline file; every mistake in them, not only the first.
    fn build(&self, params: &Spanned<DeValue<'_>>) -> Result<Built, Vec<Mistake>>;
    /// Builds the operator from parameters that were stored as [`Built::params`].
    fn rebuild(&self, params: &Value) -> Result<Box<dyn Runnable>, String>;
}

/// Makes a [`Factory`] of an operator type.
pub struct Of<O>(std::marker::PhantomData<fn() -> O>);

impl<O> Of<O> {
    /// The factory.
    pub const NEW: Self = Self(std::marker::PhantomData);
}

impl<O: Operator> Factory for Of<O> {
    fn name(&self) -> &'static str {
        O::NAME
    }
    fn version(&self) -> u32 {
        O::VERSION
    }
    fn about(&self) -> &'static str {
        O::ABOUT
    }
    fn inputs(&self) -> &'static [Port] {
        O::INPUTS
    }
    fn outputs(&self) -> &'static [Port] {
        O::OUTPUTS
    }
    fn seeded(&self) -> bool {
        O::SEEDED
    }
    fn queue(&self) -> Queue {
        O::QUEUE
    }
    fn params_schema(&self) -> schemars::Schema {
        schemars::schema_for!(O::Params)
    }
    fn build(&self, params: &Spanned<DeValue<'_>>) -> Result<Built, Vec<Mistake>> {
        let typed: O::Params = params::read(params)?;
        let canonical = params::canonical(&typed);
        let operator = O::new(typed).map_err(|error| vec![error.locate(params)])?;
        Ok(Built { operator: Box::new(operator), params: canonical })
    }
    fn rebuild(&self, params: &Value) -> Result<Box<dyn Runnable>, String> {
        let typed: O::Params = serde_json::from_value(params.clone()).map_err(|error| error.to_string())?;
        let operator = O::new(typed).map_err(|error| error.message)?;
        Ok(Box::new(operator))
    }
}
