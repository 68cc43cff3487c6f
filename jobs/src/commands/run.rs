//! `coa run`: runs what the plan lists.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use pipelines::{Pipeline, Selection};
use store::Store;

use super::{MetricsArgs, PipelineArgs, QueueArgs, current_folder};
use crate::error::CommandError;
use crate::partitions::Partitions;
use crate::plan::{Plan, Request as PlanRequest, Which};
use crate::runner::{self, Request};
use crate::telemetry::say;

/// See the module documentation.
#[derive(Args)]
pub(super) struct Run {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Only this stage; `STAGE+` with all after it, `+STAGE` with all before it. May be given several times.
    #[arg(long, short, value_name = "STAGE")]
    select: Vec<String>,
    /// Do finished units of the selected stages again, from nothing.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    how: How,
}

/// How units are done.
#[derive(Args)]
pub(super) struct How {
    /// Units this process does at the same time; as many as there are processors where not given, none with a queue on
    /// PostgreSQL. 0 leaves the work to `coa worker`.
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Units queued or at work at the same time, over all workers.
    #[arg(long, value_name = "N")]
    max_parallel: Option<std::num::NonZeroUsize>,
    /// Do what does not depend on a failed unit (the default).
    #[arg(long, conflicts_with = "fail_fast")]
    keep_going: bool,
    /// Hand out nothing more after a unit has failed.
    #[arg(long)]
    fail_fast: bool,
    /// Say nothing but errors.
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    queue: QueueArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
}

impl Run {
    pub(super) async fn execute(self) -> Result<(), CommandError> {
        let pipeline = self.pipeline.load()?;
        // Refused before a store is made.
        Selection::parse(&pipeline, &self.select)?;
        let store = Store::create(&self.pipeline.address(&pipeline)?, &pipeline.name).await?;
        let begin = Start {
            path: self.pipeline.file.display().to_string(),
            select: self.select,
            partitions: None,
            which: Which::Due,
            force: self.force,
            resumes: None,
            folder: current_folder()?,
        };
        start(pipeline, &store, begin, &self.how).await
    }
}

/// What a run begins with.
pub(super) struct Start {
    pub(super) path: String,
    pub(super) select: Vec<String>,
    pub(super) partitions: Option<Partitions>,
    pub(super) which: Which,
    pub(super) force: bool,
    pub(super) resumes: Option<u64>,
    pub(super) folder: PathBuf,
}

pub(super) async fn start(pipeline: Arc<Pipeline>, store: &Store, start: Start, how: &How) -> Result<(), CommandError> {
    let selection = Selection::parse(&pipeline, &start.select)?;
    let metrics = how.metrics.listen().await?;
    if let Some(listener) = metrics.as_ref().filter(|_| !how.quiet) {
        say(&format!("metrics are at {}", listener.url()));
    }
    let queue = how.queue.address(store, pipeline.queue.as_deref());
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let about = PlanRequest {
        selection,
        partitions: start.partitions,
        which: start.which,
        force: start.force,
        folder: start.folder,
    };
    let plan = Plan::make(pipeline, about, Some(store)).await?;
    let request = Request {
        path: start.path,
        select: start.select,
        resumes: start.resumes,
        slots: how.jobs.unwrap_or(if queue.is_shared() { 0 } else { processors }),
        queue,
        max_parallel: how.max_parallel.map(usize::from),
        fail_fast: how.fail_fast,
        quiet: how.quiet,
        metrics,
    };
    runner::run(plan, store, request).await
}
