//! `coa compact`: many small files of a table become fewer. No row changes, nor their order within a partition.

use clap::Args;
use store::{Compacted, StoredTable, compact, tables};

use super::{StoreArgs, print};
use crate::error::CommandError;
use crate::scratch::Scratch;

const HELP: &str = "\
Files of one partition are merged up to 128 MiB, in one entry of the table's log; what reads the table finds fewer files
and the same rows. Older versions stay readable. The merged files stay in the store, because stages read them: it grows
by as much as was merged. A run may be at work meanwhile.

Never let other tools vacuum a table of a store: `coa gc` knows what is still needed, they do not.

Examples:
  coa compact --store data/mine
  coa compact convert.steps ingest.steps --store s3://bucket/mine";

/// See the module documentation.
#[derive(Args)]
#[command(after_long_help = HELP)]
pub(super) struct Compact {
    /// Tables as `stage.port`; all of the store where none is given.
    #[arg(value_name = "TABLE")]
    tables: Vec<String>,
    #[command(flatten)]
    store: StoreArgs,
}

impl Compact {
    pub(super) async fn execute(self) -> Result<(), CommandError> {
        let store = self.store.open().await?;
        let all = tables(&store).await?;
        let chosen = choose(&all, &self.tables)?;
        let scratch = Scratch::open().map_err(|source| CommandError::Io {
            what: format!("no temporary files can be made in `{}` (TMPDIR)", std::env::temp_dir().display()),
            source,
        })?;
        for table in chosen {
            let folder = scratch.attempt();
            let folder = folder
                .map_err(|source| CommandError::Io { what: "no temporary files can be made".to_owned(), source })?;
            let done = compact(&store, table, folder.path()).await?;
            print(&line(table, done));
        }
        Ok(())
    }
}

/// The tables that are meant.
fn choose<'a>(all: &'a [StoredTable], named: &[String]) -> Result<Vec<&'a StoredTable>, CommandError> {
    let is = |table: &StoredTable, name: &str| name == format!("{}.{}", table.stage, table.port);
    if let Some(unknown) = named.iter().find(|name| !all.iter().any(|table| is(table, name))) {
        return Err(CommandError::Usage {
            message: format!("there is no table `{unknown}`"),
            hint: Some("name it as `stage.port`; `coa sql '\\d'` lists those there are".to_owned()),
        });
    }
    Ok(all.iter().filter(|table| named.is_empty() || named.iter().any(|name| is(table, name))).collect())
}

/// `convert.steps: 12 files, 3.1 MiB, became 2, 2.9 MiB`
fn line(table: &StoredTable, done: Compacted) -> String {
    let StoredTable { stage, port, .. } = table;
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    match done.merged {
        0 => format!("{stage}.{port}: nothing to merge"),
        merged => {
            let (bytes, into, into_bytes) = (mib(done.bytes), done.into, mib(done.into_bytes));
            format!("{stage}.{port}: {merged} files, {bytes}, became {into}, {into_bytes}")
        }
    }
}
