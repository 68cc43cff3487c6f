//! Rollouts: a model runs as an agent.
//!
//! ```text
//! read the prompt -> write until a call is closed -> run the tool -> read what it returned -> write on … </answer>
//! ```
//!
//! Ids are appended as they were sampled and as observations were encoded; text is only looked at to find the end of a
//! call, never encoded again. Several rollouts share a batch: while one waits for its tool the others go on, and a
//! finished one leaves its place to the next.

mod agent;
mod engine;
mod sampling;

pub use agent::{Agent, Limits};
pub use engine::{Engine, Job};
pub use sampling::Sampling;
