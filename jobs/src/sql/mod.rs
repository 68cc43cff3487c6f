//! SQL over the store: every table as `stage.port`, the system tables, and short names where only one stage has them.
//!
//! Queries are read-only. Tables are opened when a query names them, as they stand at that moment.

mod system;

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{MemTable, SchemaProvider, TableProvider};
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::context::SQLOptions;
use datafusion::prelude::{SessionConfig, SessionContext};
use store::{Store, StoredTable, provider, tables};

use crate::error::CommandError;

/// The result of a query.
pub struct Answer {
    /// The columns.
    pub schema: SchemaRef,
    /// The rows.
    pub batches: Vec<RecordBatch>,
}

/// Answers a query.
pub async fn query(store: &Store, sql: &str) -> Result<Answer, CommandError> {
    let session = session(store).await?;
    let read_only = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    let failed = |error: DataFusionError| CommandError::Query(readable(&error));
    let frame = session.sql_with_options(sql, read_only).await.map_err(failed)?;
    let schema = Arc::new(frame.schema().as_arrow().clone());
    let batches = frame.collect().await.map_err(failed)?;
    Ok(Answer { schema, batches })
}

fn readable(error: &DataFusionError) -> String {
    let text = error.strip_backtrace();
    text.trim_start_matches("Error during planning: ").trim_start_matches("Execution error: ").to_owned()
}

async fn session(store: &Store) -> Result<SessionContext, CommandError> {
    let config = SessionConfig::new()
        .with_information_schema(true)
        .with_default_catalog_and_schema("coa", "public")
        .with_target_partitions(std::thread::available_parallelism().map_or(2, usize::from));
    let session = SessionContext::new_with_config(config);
    let catalog = session.catalog("coa").expect("the default catalog exists");
    let stored = tables(store).await?;
    let mut by_stage: HashMap<String, HashMap<String, StoredTable>> = HashMap::new();
    for table in &stored {
        let ports = by_stage.entry(table.stage.clone()).or_default();
        // An older version of a table may stand beside the newest; the newest has the short name.
        let newest = ports.get(&table.port).is_none_or(|other| other.version < table.version);
        if newest {
            ports.insert(table.port.clone(), table.clone());
        }
    }
    let mut short: HashMap<String, Option<StoredTable>> = HashMap::new();
    for ports in by_stage.values() {
        for (port, table) in ports {
            let unique = !short.contains_key(port);
            short.insert(port.clone(), unique.then(|| table.clone()));
        }
    }
    let register = |name: &str, schema: StoreSchema| {
        catalog.register_schema(name, Arc::new(schema)).map_err(|error| CommandError::Query(readable(&error)))
    };
    for (stage, tables) in by_stage {
        register(&stage, StoreSchema { store: store.clone(), tables, system: false })?;
    }
    let unique = short.into_iter().filter_map(|(name, table)| Some((name, table?)));
    let unique = unique.filter(|(name, _)| !SYSTEM_TABLES.contains(&name.as_str())).collect();
    register("public", StoreSchema { store: store.clone(), tables: unique, system: true })?;
    Ok(session)
}

pub use system::SYSTEM_TABLES;

/// The tables of one stage, or the tables with short names.
#[derive(Debug)]
struct StoreSchema {
    store: Store,
    tables: HashMap<String, StoredTable>,
    system: bool,
}

#[async_trait]
impl SchemaProvider for StoreSchema {
    fn table_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.tables.keys().cloned().collect();
        if self.system {
            names.extend(SYSTEM_TABLES.map(str::to_owned));
        }
        names.sort();
        names
    }

    async fn table(&self, name: &str) -> DataFusionResult<Option<Arc<dyn TableProvider>>> {
        let external = |error: store::StoreError| DataFusionError::External(error.chain().into());
        if let Some(table) = self.tables.get(name) {
            return provider(&self.store, table).await.map_err(external);
        }
        if !self.system {
            return Ok(None);
        }
        let batch = match name {
            "runs" => system::runs(&self.store).await.map_err(external)?,
            "stages" => system::stages(&self.store).await.map_err(external)?,
            "units" => system::units(&self.store).await.map_err(external)?,
            "attempts" => system::attempts(&self.store).await.map_err(external)?,
            _ => return Ok(None),
        };
        Ok(Some(Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]])?)))
    }

    fn table_exist(&self, name: &str) -> bool {
        self.tables.contains_key(name) || (self.system && SYSTEM_TABLES.contains(&name))
    }
}
