//! The tables of the product: one file per table, the row struct is the schema.
//!
//! - A *table* is a named, versioned set of rows. Its row struct gives the column names and types (traced by
//!   `serde_arrow`), its doc comments give the column docs.
//! - Every column is signed, UTF-8 text, boolean, floating point, a UTC microsecond timestamp, binary, or a list or
//!   struct of these: tables are stored as Delta Lake tables, which have no unsigned integers and no dictionaries.
//! - A column whose shape is decided by a tool (arguments, say) is JSON text marked with the `arrow.json` extension.
//!
//! This crate does no I/O and knows no engine. A schema changes in one of two ways: a nullable column is added at the
//! end (old files read as null there), or `VERSION` goes up and the table is a new one.

mod column;
mod page;
mod quarantined;
mod question;
mod rejected;
mod rollout;
mod step;
mod table;
mod token;
mod trace;
mod training_step;
mod trajectory;

pub use column::{Column, Micros};
pub use page::Page;
pub use quarantined::Quarantined;
pub use question::Question;
pub use rejected::Rejected;
pub use rollout::{Finish, Rollout};
pub use step::{Step, StepKind};
pub use table::{Columns, RowError, Table, TableDef, complete, decode, encode};
pub use token::TokenizedSample;
pub use trace::{Domain, Trace, TraceStatus};
pub use training_step::TrainingStep;
pub use trajectory::{Role, Segment, Trajectory};

/// Every table of the product, in alphabetical order.
pub const TABLES: &[TableDef] = &[
    TableDef::of::<Page>(),
    TableDef::of::<Quarantined>(),
    TableDef::of::<Question>(),
    TableDef::of::<Rejected>(),
    TableDef::of::<Rollout>(),
    TableDef::of::<Step>(),
    TableDef::of::<TokenizedSample>(),
    TableDef::of::<Trace>(),
    TableDef::of::<TrainingStep>(),
    TableDef::of::<Trajectory>(),
];
