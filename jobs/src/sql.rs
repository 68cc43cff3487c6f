//! SQL over the store: every table as `stage.port`, the system tables, and short names where only one stage has them.
//!
//! Queries are read-only. Tables are opened when a query names them, as they stand at that moment.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
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

/// The tables about runs, kept as records in the store.
pub const SYSTEM_TABLES: [&str; 4] = ["attempts", "runs", "stages", "units"];

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
            "runs" => runs(&self.store).await.map_err(external)?,
            "stages" => stages(&self.store).await.map_err(external)?,
            "units" => units(&self.store).await.map_err(external)?,
            "attempts" => attempts(&self.store).await.map_err(external)?,
            _ => return Ok(None),
        };
        Ok(Some(Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]])?)))
    }

    fn table_exist(&self, name: &str) -> bool {
        self.tables.contains_key(name) || (self.system && SYSTEM_TABLES.contains(&name))
    }
}

/// Columns of a system table in the making.
#[derive(Default)]
struct Columns(Vec<(&'static str, ArrayRef)>);

impl Columns {
    fn text<S: AsRef<str>>(mut self, name: &'static str, values: impl IntoIterator<Item = Option<S>>) -> Self {
        self.0.push((name, Arc::new(values.into_iter().collect::<StringArray>())));
        self
    }
    fn number(mut self, name: &'static str, values: impl IntoIterator<Item = Option<i64>>) -> Self {
        self.0.push((name, Arc::new(values.into_iter().collect::<Int64Array>())));
        self
    }
    fn real(mut self, name: &'static str, values: impl IntoIterator<Item = Option<f64>>) -> Self {
        self.0.push((name, Arc::new(values.into_iter().collect::<Float64Array>())));
        self
    }
    fn flag(mut self, name: &'static str, values: impl IntoIterator<Item = Option<bool>>) -> Self {
        self.0.push((name, Arc::new(values.into_iter().collect::<BooleanArray>())));
        self
    }
    fn batch(self) -> RecordBatch {
        RecordBatch::try_from_iter_with_nullable(self.0.into_iter().map(|(name, column)| (name, column, true)))
            .expect("the columns have one length")
    }
}

async fn runs(store: &Store) -> Result<RecordBatch, store::StoreError> {
    let runs = store.runs().await?;
    let begun = || runs.iter().map(|(run, _)| run);
    let ended = || runs.iter().map(|(_, end)| end.as_ref());
    Ok(Columns::default()
        .text("run", begun().map(|run| Some(&run.run)))
        .text("pipeline", begun().map(|run| Some(&run.pipeline)))
        .text("outcome", ended().map(|end| Some(end.map_or("unfinished", |end| end.outcome.name()))))
        .text("started", begun().map(|run| Some(&run.started)))
        .text("finished", ended().map(|end| end.map(|end| &end.finished)))
        .real("seconds", ended().map(|end| end.map(|end| end.seconds)))
        .number("done", ended().map(|end| end.map(|end| end.done as i64)))
        .number("failed", ended().map(|end| end.map(|end| end.failed as i64)))
        .number("blocked", ended().map(|end| end.map(|end| end.blocked as i64)))
        .number("seed", begun().map(|run| Some(run.seed as i64)))
        .flag("force", begun().map(|run| Some(run.force)))
        .text("selection", begun().map(|run| Some(run.select.join(" "))))
        .text("resumes", begun().map(|run| run.resumes.as_ref()))
        .text("worker", begun().map(|run| Some(&run.worker)))
        .text("settings", begun().map(|run| Some(run.resolved.to_string())))
        .batch())
}

async fn units(store: &Store) -> Result<RecordBatch, store::StoreError> {
    let units = store.all_units().await?;
    let current = current_fingerprints(store).await?;
    let is_current = |unit: &store::UnitRecord| current.get(&unit.stage) == Some(&unit.fingerprint);
    let all = || units.iter();
    let rows_out = |unit: &store::UnitRecord| unit.tables.iter().map(|table| table.rows as i64).sum::<i64>();
    let by_port = |unit: &store::UnitRecord| {
        let rows = unit.tables.iter().map(|table| (table.port.clone(), table.rows.into()));
        serde_json::Value::Object(rows.collect()).to_string()
    };
    Ok(Columns::default()
        .text("unit", all().map(|unit| Some(&unit.unit)))
        .text("stage", all().map(|unit| Some(&unit.stage)))
        .text("partition", all().map(|unit| Some(&unit.partition)))
        .flag("current", all().map(|unit| Some(is_current(unit))))
        .text("operator", all().map(|unit| Some(&unit.operator)))
        .number("operator_version", all().map(|unit| Some(unit.operator_version.into())))
        .text("fingerprint", all().map(|unit| Some(&unit.fingerprint)))
        .text("inputs", all().map(|unit| Some(&unit.inputs)))
        .number("rows_in", all().map(|unit| Some(unit.rows_in.values().sum::<u64>() as i64)))
        .number("rows_out", all().map(|unit| Some(rows_out(unit))))
        .text("rows_by_port", all().map(|unit| Some(by_port(unit))))
        .text("counts", all().map(|unit| serde_json::to_string(&unit.counts).ok()))
        .text("params", all().map(|unit| Some(unit.params.to_string())))
        .text("run", all().map(|unit| Some(&unit.run)))
        .text("attempt", all().map(|unit| Some(&unit.attempt)))
        .text("worker", all().map(|unit| Some(&unit.worker)))
        .text("started", all().map(|unit| Some(&unit.started)))
        .text("finished", all().map(|unit| Some(&unit.finished)))
        .real("seconds", all().map(|unit| Some(unit.seconds)))
        .batch())
}

/// The fingerprint each stage had in the newest run.
async fn current_fingerprints(store: &Store) -> Result<HashMap<String, String>, store::StoreError> {
    let Some((run, _)) = store.runs().await?.pop() else { return Ok(HashMap::new()) };
    let stages = run.resolved["stages"].as_object().cloned().unwrap_or_default();
    let prints =
        stages.into_iter().filter_map(|(stage, settings)| Some((stage, settings["fingerprint"].as_str()?.to_owned())));
    Ok(prints.collect())
}

async fn stages(store: &Store) -> Result<RecordBatch, store::StoreError> {
    let settings = match store.runs().await?.pop() {
        Some((run, _)) => run.resolved["stages"].as_object().cloned().unwrap_or_default(),
        None => serde_json::Map::new(),
    };
    let units = store.all_units().await?;
    let of = |stage: &str, print: &str| -> Vec<&store::UnitRecord> {
        units.iter().filter(|unit| unit.stage == stage && unit.fingerprint == print).collect()
    };
    let found: Vec<(&String, &serde_json::Value, Vec<&store::UnitRecord>)> = settings
        .iter()
        .map(|(stage, settings)| (stage, settings, of(stage, settings["fingerprint"].as_str().unwrap_or_default())))
        .collect();
    let sum = |units: &[&store::UnitRecord], of: fn(&store::UnitRecord) -> u64| -> i64 {
        units.iter().map(|unit| of(unit)).sum::<u64>() as i64
    };
    let all = || found.iter();
    Ok(Columns::default()
        .text("stage", all().map(|(stage, _, _)| Some(stage.as_str())))
        .text("operator", all().map(|(_, settings, _)| settings["operator"].as_str()))
        .number("operator_version", all().map(|(_, settings, _)| settings["operator_version"].as_i64()))
        .text("fingerprint", all().map(|(_, settings, _)| settings["fingerprint"].as_str()))
        .number("units_done", all().map(|(_, _, units)| Some(units.len() as i64)))
        .number("rows_in", all().map(|(_, _, units)| Some(sum(units, |unit| unit.rows_in.values().sum()))))
        .number(
            "rows_out",
            all().map(|(_, _, units)| Some(sum(units, |unit| unit.tables.iter().map(|table| table.rows).sum()))),
        )
        .real("seconds", all().map(|(_, _, units)| Some(units.iter().map(|unit| unit.seconds).sum())))
        .text("inputs", all().map(|(_, settings, _)| Some(settings["inputs"].to_string())))
        .text("params", all().map(|(_, settings, _)| Some(settings["params"].to_string())))
        .batch())
}

async fn attempts(store: &Store) -> Result<RecordBatch, store::StoreError> {
    let attempts = store.attempts().await?;
    let won: std::collections::HashSet<String> =
        store.all_units().await?.into_iter().map(|unit| unit.attempt).collect();
    let outcome = |attempt: &store::AttemptRecord, end: &Option<store::AttemptEnd>| match end {
        Some(end) => end.outcome.name(),
        None if won.contains(&attempt.attempt) => "complete",
        None => "unfinished",
    };
    let begun = || attempts.iter().map(|(attempt, _)| attempt);
    let ended = || attempts.iter().map(|(_, end)| end.as_ref());
    Ok(Columns::default()
        .text("attempt", begun().map(|attempt| Some(&attempt.attempt)))
        .text("unit", begun().map(|attempt| Some(&attempt.unit)))
        .text("run", begun().map(|attempt| Some(&attempt.run)))
        .text("stage", begun().map(|attempt| Some(&attempt.stage)))
        .text("partition", begun().map(|attempt| Some(&attempt.partition)))
        .text("outcome", attempts.iter().map(|(attempt, end)| Some(outcome(attempt, end))))
        .text("error_kind", ended().map(|end| end.map(|end| &end.kind)))
        .text("error", ended().map(|end| end.map(|end| &end.error)))
        .text("hint", ended().map(|end| end.and_then(|end| end.hint.as_ref())))
        .text("worker", begun().map(|attempt| Some(&attempt.worker)))
        .text("started", begun().map(|attempt| Some(&attempt.started)))
        .text("finished", ended().map(|end| end.map(|end| &end.finished)))
        .batch())
}
