//! `coa sql`: a query over the store's tables and the system tables.

use arrow::util::pretty::pretty_format_batches;
use clap::{Args, ValueEnum};

use super::{StoreArgs, print};
use crate::error::CommandError;
use crate::sql::{Answer, query};

/// See the module documentation.
#[derive(Args)]
pub(super) struct Sql {
    /// The query. Tables are named `stage.port`, system tables `runs`, `stages`, `units`, `attempts`.
    query: String,
    #[command(flatten)]
    store: StoreArgs,
    /// How the rows are written.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// For reading.
    Table,
    /// A list of objects.
    Json,
    /// With a header line.
    Csv,
}

impl Sql {
    pub(super) async fn execute(self) -> Result<(), CommandError> {
        let store = self.store.open().await?;
        let answer = query(&store, &self.query).await?;
        let text = format(&answer, self.format).map_err(|error| CommandError::Query(error.to_string()))?;
        print(text.trim_end());
        Ok(())
    }
}

fn format(answer: &Answer, format: Format) -> Result<String, arrow::error::ArrowError> {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the writers write UTF-8");
    let empty = arrow::array::RecordBatch::new_empty(std::sync::Arc::clone(&answer.schema));
    match format {
        Format::Table => {
            let batches = if answer.batches.is_empty() { &[empty][..] } else { &answer.batches };
            Ok(pretty_format_batches(batches)?.to_string())
        }
        Format::Json => {
            let mut writer = arrow::json::WriterBuilder::new()
                .with_explicit_nulls(true)
                .build::<_, arrow::json::writer::JsonArray>(Vec::new());
            for batch in &answer.batches {
                writer.write(batch)?;
            }
            writer.finish()?;
            let written = text(writer.into_inner());
            Ok(if written.is_empty() { "[]".to_owned() } else { written })
        }
        Format::Csv => {
            let mut writer = arrow::csv::WriterBuilder::new().with_header(true).build(Vec::new());
            writer.write(&empty)?;
            for batch in &answer.batches {
                writer.write(batch)?;
            }
            Ok(text(writer.into_inner()))
        }
    }
}
