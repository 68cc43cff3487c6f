//! `coa run`: runs what the plan lists.

use std::sync::Arc;

use clap::Args;
use pipelines::{Pipeline, Selection};
use store::Store;

use super::PipelineArgs;
use crate::error::CommandError;
use crate::plan::Plan;
use crate::runner::{self, Request};

/// See the module documentation.
#[derive(Args)]
pub(super) struct Run {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Only this stage; `STAGE+` with all after it, `+STAGE` with all before it. May be given several times.
    #[arg(long, short, value_name = "STAGE")]
    select: Vec<String>,
    /// Do finished units of the selected stages again.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    how: How,
}

/// How units are done.
#[derive(Args)]
pub(super) struct How {
    /// Units done at the same time; as many as there are processors where not given.
    #[arg(long, value_name = "N")]
    jobs: Option<std::num::NonZeroUsize>,
    /// Say nothing but errors.
    #[arg(long, short)]
    quiet: bool,
}

impl How {
    fn slots(&self) -> usize {
        self.jobs.or_else(|| std::thread::available_parallelism().ok()).map_or(1, usize::from)
    }
}

impl Run {
    pub(super) async fn execute(self) -> Result<(), CommandError> {
        let pipeline = self.pipeline.load()?;
        // Refused before a store is made.
        Selection::parse(&pipeline, &self.select)?;
        let store = Store::create(&self.pipeline.address(&pipeline)?, &pipeline.name).await?;
        let path = self.pipeline.file.display().to_string();
        start(pipeline, &store, Start { path, select: self.select, force: self.force, resumes: None }, &self.how).await
    }
}

/// What a run begins with.
pub(super) struct Start {
    pub(super) path: String,
    pub(super) select: Vec<String>,
    pub(super) force: bool,
    pub(super) resumes: Option<String>,
}

pub(super) async fn start(pipeline: Arc<Pipeline>, store: &Store, start: Start, how: &How) -> Result<(), CommandError> {
    let selection = Selection::parse(&pipeline, &start.select)?;
    let plan = Plan::make(pipeline, selection, Some(store), start.force).await?;
    let request = Request {
        path: start.path,
        select: start.select,
        force: start.force,
        resumes: start.resumes,
        queue: runner::queue_path(store),
        slots: how.slots(),
        quiet: how.quiet,
    };
    runner::run(plan, store, request).await
}
