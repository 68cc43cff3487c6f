//! `coa backfill`: runs the partitioned stages of a pipeline over some partitions of their source.
//!
//! Stages that read all partitions at once, such as a training, are no part of a backfill: `coa run` does them.

use clap::Args;
use pipelines::Selection;
use store::Store;

use super::run::{How, Start, start};
use super::{PipelineArgs, current_folder};
use crate::error::CommandError;
use crate::partitions::Partitions;
use crate::plan::Which;

/// See the module documentation.
#[derive(Args)]
pub(super) struct Backfill {
    #[command(flatten)]
    pipeline: PipelineArgs,
    #[command(flatten)]
    about: About,
    /// Only this stage; `STAGE+` with all after it, `+STAGE` with all before it. May be given several times.
    #[arg(long, short, value_name = "STAGE")]
    select: Vec<String>,
    /// Do finished units of the partitions again.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    how: How,
}

/// Which partitions, and which of their units.
#[derive(Args)]
pub(super) struct About {
    /// Partitions: names, `*` in names, or inclusive ranges such as 2026-01-01..2026-03-31; all where not given.
    #[arg(long, value_name = "RANGE", value_delimiter = ',')]
    pub(super) partitions: Vec<String>,
    /// The time zone that bounds of ranges are times of. Keys of objects are in UTC.
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    pub(super) time_zone: String,
    /// Only units that were never done, whatever with.
    #[arg(long, conflicts_with = "failed")]
    pub(super) missing: bool,
    /// Only units whose last attempt failed.
    #[arg(long)]
    pub(super) failed: bool,
}

impl About {
    pub(super) fn partitions(&self) -> Result<Option<Partitions>, CommandError> {
        if self.partitions.is_empty() {
            return Ok(None);
        }
        Partitions::parse(&self.partitions, &self.time_zone).map(Some)
    }

    pub(super) fn which(&self) -> Which {
        match (self.missing, self.failed) {
            (true, _) => Which::Missing,
            (_, true) => Which::Failed,
            _ => Which::Due,
        }
    }
}

impl Backfill {
    pub(super) async fn execute(self) -> Result<(), CommandError> {
        let pipeline = self.pipeline.load()?;
        Selection::parse(&pipeline, &self.select)?;
        let partitions = match self.about.partitions()? {
            Some(partitions) => partitions,
            None => Partitions::parse(&["*".to_owned()], &self.about.time_zone)?,
        };
        let store = Store::create(&self.pipeline.address(&pipeline)?, &pipeline.name).await?;
        let begin = Start {
            path: self.pipeline.file.display().to_string(),
            select: self.select,
            partitions: Some(partitions),
            which: self.about.which(),
            force: self.force,
            resumes: None,
            folder: current_folder()?,
        };
        start(pipeline, &store, begin, &self.how).await
    }
}
