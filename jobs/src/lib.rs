//! Jobs: planning and running pipelines, and the command line.
//!
//! - [`plan`] decides, from a pipeline and the records in its store, which units are done and why others are not.
//! - [`runner`] runs what a plan lists: it hands units whose inputs are done to the queue, folds finished stages into
//!   their tables, and records the run.
//! - [`queue`] is the only place that knows apalis; its database may be deleted at any time.
//! - [`worker`] takes jobs from the queue, in the runner's process or another; [`executor`] does one unit on a thread of
//!   its own.
//! - [`outcome`] says how a stage stands: complete, complete with quarantined rows, failed.
//! - [`partitions`] says which partitions of a source a backfill is about.
//! - [`lineage`] tells where tables, rows and models came from.
//! - [`sql`] answers queries over the store's tables and the system tables.
//! - [`telemetry`] is what is told of work while it goes on: talk, log lines, spans, metrics.
//! - [`commands`] is the command line, one file a command.

pub mod commands;
pub mod error;
mod executor;
mod lineage;
mod outcome;
pub mod partitions;
pub mod plan;
mod progress;
mod queue;
mod registry;
mod runner;
mod scratch;
pub mod sql;
pub mod telemetry;
mod worker;

pub use registry::registry;
pub use runner::run_plan;
