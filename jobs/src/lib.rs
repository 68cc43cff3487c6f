//! Jobs: planning and running pipelines, and the command line.
//!
//! - [`plan`] decides, from a pipeline and the records in its store, which units are done and why others are not.
//! - [`runner`] runs what a plan lists: it hands units whose inputs are done to the queue, folds finished stages into
//!   their tables, and records the run.
//! - [`queue`] is the only place that knows apalis; its database may be deleted at any time.
//! - [`worker`] takes jobs from the queue, in the runner's process or another; [`executor`] does one unit on a thread of
//!   its own.
//! - [`partitions`] says which partitions of a source a backfill is about.
//! - [`sql`] answers queries over the store's tables and the system tables.
//! - [`commands`] is the command line, one file a command.

pub mod commands;
pub mod error;
mod executor;
pub mod partitions;
pub mod plan;
mod progress;
mod queue;
mod registry;
mod runner;
pub mod sql;
mod worker;

pub use registry::registry;
pub use runner::run_plan;
