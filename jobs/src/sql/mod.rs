//! SQL over stores: every table as `stage.port`, the system tables, the product's views, and short names.
//!
//! Queries are read-only. Tables are opened when a query names them, as they stand at that moment, or as they stood at a
//! version: `stage.port@v3`.
//!
//! [`text`] reads SQL as text, [`catalog`] says what names stand for, [`engine`] answers one query, [`output`] writes
//! its rows; [`describe`] and [`shell`] are for people.

mod catalog;
mod deep;
mod describe;
mod engine;
mod output;
mod ports;
mod shell;
mod system;
mod text;
mod views;

use std::future::Future;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use store::Store;

pub use deep::on_deep_stack;
use engine::{Engine, Rows};
pub use output::{Format, OutputFile};
use text::{Input, Reader};

use crate::error::CommandError;

/// The result of a query.
pub struct Answer {
    /// The columns.
    pub schema: SchemaRef,
    /// The rows.
    pub batches: Vec<RecordBatch>,
}

/// Answers a query over one store.
pub async fn query(store: &Store, sql: &str) -> Result<Answer, CommandError> {
    Queries::new(store.clone()).answer(sql).await
}

/// Queries over a store, and others attached to it.
#[derive(Clone)]
pub struct Queries {
    stores: Vec<catalog::Attached>,
}

impl Queries {
    /// Over one store.
    pub fn new(store: Store) -> Self {
        Self { stores: vec![catalog::Attached { name: None, store }] }
    }

    /// And over another, under a name.
    pub fn attach(&mut self, name: &str, store: Store) -> Result<(), CommandError> {
        let name_of = |attached: &catalog::Attached| attached.name.as_deref() == Some(name);
        let why = match catalog::check_name(name) {
            Err(why) => why,
            Ok(()) if self.stores.iter().any(name_of) => "two stores have this name".to_owned(),
            Ok(()) => {
                self.stores.push(catalog::Attached { name: Some(name.to_owned()), store });
                return Ok(());
            }
        };
        Err(CommandError::usage(format!("a store cannot be attached as `{name}`: {why}")))
    }

    /// Answers a query.
    pub async fn answer(&self, sql: &str) -> Result<Answer, CommandError> {
        let mut rows = Engine::new(&self.stores).await?.answer(sql).await?;
        let batches = rows.rest().await?;
        Ok(Answer { schema: rows.schema, batches })
    }

    /// Prints the answers to queries, in their order.
    pub async fn script(&self, sql: &str, format: Format) -> Result<(), CommandError> {
        let inputs = inputs(sql);
        if inputs.is_empty() {
            return Err(CommandError::usage("there is no query"));
        }
        for input in inputs {
            self.print(input, format).await?;
        }
        Ok(())
    }

    /// Writes the answer to one query into a file.
    pub async fn write(&self, sql: &str, file: OutputFile) -> Result<(), CommandError> {
        let mut inputs = inputs(sql);
        let Some(Input::Statement(statement)) = inputs.pop().filter(|_| inputs.is_empty()) else {
            return Err(CommandError::usage("a file takes the rows of one query"));
        };
        let stores = self.stores.clone();
        until_interrupted(async move {
            let mut rows = Engine::new(&stores).await?.answer(&statement).await?;
            file.write(&mut rows).await
        })
        .await
    }

    async fn print(&self, input: Input, format: Format) -> Result<(), CommandError> {
        let stores = self.stores.clone();
        until_interrupted(async move {
            let mut out = std::io::stdout();
            let engine = Engine::new(&stores).await?;
            let description = match &input {
                Input::Statement(sql) => {
                    return output::write(&mut engine.answer(sql).await?, format, &mut out).await;
                }
                Input::Command(command) => match command.split_whitespace().collect::<Vec<_>>()[..] {
                    ["\\d"] => describe::tables(&engine).await?,
                    ["\\d", name] => describe::columns(&engine, name.trim_end_matches(';')).await?,
                    _ => {
                        let message = format!("there is no command `{command}`: try \\d, or \\d TABLE");
                        return Err(CommandError::Query(message));
                    }
                },
            };
            output::write(&mut engine.rows_of(description.rows)?, format, &mut out).await?;
            if format == Format::Table {
                output::write_text(&description.below, &mut out)?;
            }
            Ok(())
        })
        .await
    }
}

/// Statements and commands, in their order.
fn inputs(sql: &str) -> Vec<Input> {
    let mut reader = Reader::default();
    let mut inputs: Vec<Input> = sql.lines().flat_map(|line| reader.push(line)).collect();
    inputs.extend(reader.finish());
    inputs
}

/// Ctrl-C ends a query, also one that the engine plans for long, and leaves nothing half written.
async fn until_interrupted(
    work: impl Future<Output = Result<(), CommandError>> + Send + 'static,
) -> Result<(), CommandError> {
    let mut work = tokio::spawn(work);
    tokio::select! {
        ended = &mut work => {
            ended.unwrap_or_else(|panic| Err(CommandError::Query(format!("the query engine failed: {panic}"))))
        }
        _ = tokio::signal::ctrl_c() => {
            work.abort();
            Err(CommandError::Interrupted("the query was interrupted".to_owned()))
        }
    }
}
