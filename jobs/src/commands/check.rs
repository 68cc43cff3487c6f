//! `coa check`: every mistake of a pipeline file, without touching data.

use clap::Args;

use super::{PipelineArgs, print};
use crate::error::CommandError;

/// See the module documentation.
#[derive(Args)]
pub(super) struct Check {
    #[command(flatten)]
    pipeline: PipelineArgs,
}

impl Check {
    pub(super) fn execute(self) -> Result<(), CommandError> {
        let pipeline = self.pipeline.load()?;
        if let Some(address) = &self.pipeline.store {
            store::parse_store(address)?;
        }
        let stages = match pipeline.stages.len() {
            1 => "1 stage".to_owned(),
            stages => format!("{stages} stages"),
        };
        print(&format!("{}: {stages}, no mistakes", self.pipeline.file.display()));
        Ok(())
    }
}
