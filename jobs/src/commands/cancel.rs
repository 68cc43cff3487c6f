//! `coa cancel`: asks a run to end, wherever it runs. Units in hand come to a safe place; what is done stays done.

use clap::Args;

use super::{StoreArgs, print};
use crate::error::CommandError;

/// See the module documentation.
#[derive(Args)]
pub(super) struct Cancel {
    /// The run; the last one where not given.
    run: Option<u64>,
    #[command(flatten)]
    store: StoreArgs,
}

impl Cancel {
    pub(super) async fn execute(self) -> Result<(), CommandError> {
        let store = self.store.open().await?;
        let found = match self.run {
            Some(run) => store.run(run).await?,
            None => store.last_run().await?,
        };
        match found {
            Some((run, None)) => {
                store.cancel_run(run.run).await?;
                print(&format!("run {} is asked to end", run.run));
                Ok(())
            }
            Some((run, Some(end))) => {
                Err(CommandError::usage(format!("run {} has ended: {}", run.run, end.outcome.name())))
            }
            None => Err(CommandError::usage(format!("no such run in `{}`", store.url()))),
        }
    }
}
