//! `coa sql`: queries over the store's tables, the system tables and the product's views.

use std::io::{IsTerminal, Read};
use std::path::PathBuf;

use clap::Args;
use store::Store;

use super::StoreArgs;
use crate::error::CommandError;
use crate::sql::{Format, OutputFile, Queries, on_deep_stack};

const HELP: &str = "\
Names:
  stage.port            a table of the store, as it stands now; `port` alone where only one stage has it
  stage.port@v3         the table as it stood at version 3 of its log; `\\d stage.port` tells which there are
  runs, stages, units, attempts, ports
                        what was done, tried, and read and written
  funnel, tool_use, token_lengths, trace_cost
                        views over all tables of their kind; `\\d funnel` shows what one is made of
  NAME.stage.port, NAME.units, NAME.funnel
                        the same in a store given with --attach NAME=URL
Names are found as they are written; where there is none so written, the case of letters is not looked at. Every
table has a column `partition`: a condition on it keeps other partitions' files from being read.

Without a query: a shell on a terminal, otherwise queries from standard input. Several queries have `;` between them.
`\\d` lists the tables, `\\d TABLE` a table's columns with their docs.

Rows go to standard output, everything else to standard error. Not a number is NaN, and \"NaN\" as text in JSON, where
null is null; it sorts above all numbers. Nothing can be changed: COPY, CREATE, INSERT, SET and the like are refused.

Examples:
  coa sql \"select stage, rows_in, rows_kept, rows_rejected from funnel order by finished\" --store data/quickstart
  coa sql \"select count(*) from convert.trajectories@v1\" --store data/quickstart
  coa sql \"select * from quality.kept where partition = 'a.jsonl'\" --store s3://bucket/mine --output kept.parquet
  coa sql \"select * from units except select * from old.units\" --store new --attach old=s3://bucket/old
  coa sql --store data/quickstart < queries.sql";

/// See the module documentation.
#[derive(Args)]
#[command(after_long_help = HELP)]
pub(super) struct Sql {
    /// A query, several with `;` between them, or `\d`. Without it: a shell, or queries from standard input.
    query: Option<String>,
    #[command(flatten)]
    store: StoreArgs,
    /// Another store, whose tables have NAME before them. May be given several times.
    #[arg(long, value_name = "NAME=URL")]
    attach: Vec<String>,
    /// How the rows are written.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// A new file for the rows of one query: .parquet, .csv or .json.
    #[arg(long, value_name = "FILE", conflicts_with = "format")]
    output: Option<PathBuf>,
}

impl Sql {
    pub(super) fn execute(self) -> Result<(), CommandError> {
        on_deep_stack(|| self.answer())
    }

    async fn answer(self) -> Result<(), CommandError> {
        let output = self.output.map(OutputFile::new).transpose()?;
        let mut queries = Queries::new(self.store.open().await?);
        for attached in &self.attach {
            let (name, address) = attached.split_once('=').ok_or_else(|| CommandError::Usage {
                message: format!("`{attached}` names no store to attach"),
                hint: Some("write --attach NAME=URL".to_owned()),
            })?;
            queries.attach(name, Store::open(address).await?)?;
        }
        let sql = match self.query {
            Some(sql) => sql,
            None if std::io::stdin().is_terminal() && output.is_none() => return queries.shell(self.format).await,
            None => read_queries()?,
        };
        match output {
            Some(file) => queries.write(&sql, file).await,
            None => queries.script(&sql, self.format).await,
        }
    }
}

fn read_queries() -> Result<String, CommandError> {
    let mut sql = String::new();
    std::io::stdin()
        .read_to_string(&mut sql)
        .map_err(|source| CommandError::Io { what: "cannot read queries from standard input".to_owned(), source })?;
    Ok(sql)
}
