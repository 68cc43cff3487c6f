//! `coa lineage WHAT`: where a table, a row or a model came from, down to the sources.

use std::io::IsTerminal;

use clap::Args;

use super::{StoreArgs, print};
use crate::error::CommandError;
use crate::lineage::{Branch, lineage};

const HELP: &str = "\
WHAT is
  stage.port            a table as it stands, or files of a stage, such as a model
  stage.port@v3         the table as it stood at version 3 of its log
  stage                 all outputs of a stage
  stage@300             a training at step 300: a checkpoint of one that is not done, or the end of one that is
  an id                 of a trace, trajectory, sample, question or rollout, or the beginning of one
  SOURCE:LINE           a record of a source, also one that was quarantined; the end of the address is enough

Tables lead to the units and runs that wrote them, the operator with its version, parameters and seed, and the versions
of what was read, down to the objects of sources with their sizes and entity tags (of files: size, time of change and
inode). Objects that are gone or have changed since are named as what they were. Byte offsets of records in .gz sources
count decompressed bytes.

Examples:
  coa lineage correction.kept --store data/mine
  coa lineage ingest.traces@v1 --store data/mine --json
  coa lineage 0178 --store data/mine
  coa lineage runs.jsonl:17 --store data/mine
  coa lineage sft.model --store data/mine";

/// See the module documentation.
#[derive(Args)]
#[command(after_long_help = HELP)]
pub(super) struct Lineage {
    /// A table, files, a stage, a row's id or a place in a source; `--help` says how each is written.
    what: String,
    #[command(flatten)]
    store: StoreArgs,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl Lineage {
    pub(super) async fn execute(self) -> Result<(), CommandError> {
        let store = self.store.open().await?;
        let answer = lineage(&store, &self.what).await?;
        if self.json {
            print(&serde_json::to_string_pretty(&answer.json).expect("plain data"));
            return Ok(());
        }
        let drawn = std::io::stdout().is_terminal();
        let trees: Vec<String> = answer.text.iter().map(|tree: &Branch| tree.render(drawn)).collect();
        print(trees.join("\n").trim_end());
        Ok(())
    }
}
