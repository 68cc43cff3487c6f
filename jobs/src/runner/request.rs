//! What a run is asked to do.

use crate::queue::QueueAddress;
use crate::telemetry::Listener;

/// What is asked for besides the plan.
pub(crate) struct Request {
    /// Where the pipeline's file is, for people.
    pub(crate) path: String,
    /// The selection as it was typed.
    pub(crate) select: Vec<String>,
    /// The run this one goes on with.
    pub(crate) resumes: Option<u64>,
    /// The job queue.
    pub(crate) queue: QueueAddress,
    /// Units that this process does at the same time; 0 leaves all work to others.
    pub(crate) slots: usize,
    /// Units in the queue or at work at the same time, over all workers.
    pub(crate) max_parallel: Option<usize>,
    /// Whether to hand out nothing more after a unit has failed.
    pub(crate) fail_fast: bool,
    /// Whether to say nothing.
    pub(crate) quiet: bool,
    /// Where metrics are served.
    pub(crate) metrics: Option<Listener>,
}
