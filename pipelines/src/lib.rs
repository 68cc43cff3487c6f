//! Pipelines: from a TOML file to a checked graph of stages.
//!
//! 1. [`file`]: the text as it was written, every value with its place. Only the shape is looked at.
//! 2. [`compile`]: operators, ports, parameters and the graph are looked at; what comes out can run.
//!
//! Both collect every mistake they can find; neither touches data, the network or the disk.
//!
//! Words: a *pipeline* is one file; a *stage* is a named use of an operator; a *binding* feeds an input port of a stage
//! from an output port of another. The *fingerprint* of a stage covers what its output depends on besides its inputs:
//! the operator and its version, the parameters with defaults filled in, the seed where the operator draws, and the
//! versions of the tables it writes, and what is bound where an input takes any table. Comments, key order and the stage's name are not part of it.

mod compile;
mod diagnostics;
mod file;
mod pipeline;
mod selection;

pub use compile::compile;
pub use diagnostics::Diagnostics;
pub use pipeline::{Binding, Pipeline, Stage, fingerprint};
pub use selection::{Selection, SelectionError};
