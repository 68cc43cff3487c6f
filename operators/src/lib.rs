//! Operators: the stages that a pipeline is made of, and the trait they implement.
//!
//! An operator is one file: what it does, its parameters, its type, its implementation, its tests. It sees ports, rows,
//! files, a seed and a stop sign; it never sees storage. See [`operator`] for the words, [`registry`] for the list.

pub mod address;
pub mod coa;
mod context;
pub mod convert_coa;
mod error;
pub mod filters;
pub mod ingest_traces;
pub mod memory;
pub mod operator;
pub mod params;
pub mod pattern;
pub mod port;
pub mod publish;
mod registry;
pub mod tokens;
pub mod toolbox;
pub mod traces;
pub mod world;

pub use context::{
    Checkpoint, InputFile, NoProgress, Origin, OriginUnit, ProgressSink, SourceObject, UnitContext, UnitIo, seed, share,
};
pub use error::{ErrorKind, OperatorError};
pub use operator::{Built, Factory, Of, Operator, Queue, Runnable, Split};
pub use params::{Fraction, Mistake, ParamsError, Positive};
pub use pattern::Pattern;
pub use port::{AnyIn, FilesIn, FilesOut, In, Out, Payload, Port};
pub use registry::OPERATORS;
