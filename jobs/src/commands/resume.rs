//! `coa resume`: goes on with the last run, or a named one, with the pipeline as it was then.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use pipelines::compile;

use super::StoreArgs;
use super::run::{How, Start, start};
use crate::error::CommandError;
use crate::partitions::Partitions;
use crate::plan::Which;
use crate::registry;

/// See the module documentation.
#[derive(Args)]
pub(super) struct Resume {
    /// The run; the last one where not given.
    run: Option<u64>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    how: How,
}

impl Resume {
    pub(super) async fn execute(self) -> Result<(), CommandError> {
        let store = self.store.open().await?;
        let found = match self.run {
            Some(wanted) => store.run(wanted).await?,
            None => store.last_run().await?,
        };
        let Some((run, _)) = found else {
            let message = match self.run {
                Some(wanted) => format!("no run {wanted} in `{}`", store.url()),
                None => format!("nothing was run in `{}` yet", store.url()),
            };
            return Err(CommandError::usage(message));
        };
        let pipeline = Arc::new(compile(&run.path, &run.text, &registry(), Some(run.seed))?);
        let partitions = match &run.partitions {
            Some(ranges) => Some(Partitions::parse(ranges, run.time_zone.as_deref().unwrap_or("UTC"))?),
            None => None,
        };
        let go_on = Start {
            path: run.path,
            select: run.select,
            partitions,
            which: Which::Due,
            // What a forced run was to do again, it forgot before it began: going on must not forget it once more.
            force: false,
            resumes: Some(run.run),
            folder: PathBuf::from(run.folder),
        };
        start(pipeline, &store, go_on, &self.how).await
    }
}
