//! Tools that agents call: full-text search and page reading over a local corpus, and Python in a sandbox.
//!
//! The teacher, rollouts and evaluation share one [`Toolbox`], so that what an agent is trained on is what it meets.
//! A tool is called by its tag with the text between the tags; what it returns is the observation.

mod corpus;
mod python;
mod toolbox;

pub use corpus::{Corpus, CorpusError, Document};
pub use python::{Limits, Python, PythonOutput, SandboxError};
pub use toolbox::{Observation, ToolError, Toolbox};
