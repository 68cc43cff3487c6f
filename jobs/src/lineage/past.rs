//! What the store knows of the past, read once: runs, units, and the logs of tables.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};
use store::{
    AttemptRecord, ObjectRead, PortRead, RunEnd, RunRecord, StagePast, Store, StoredTable, TableHistory, UnitRecord,
    table_history, tables,
};

use crate::error::CommandError;
use crate::registry::registry;
use crate::sql::query;

/// The past of a store.
pub(super) struct Past<'a> {
    pub(super) store: &'a Store,
    /// Every table, the newest of each port.
    pub(super) tables: Vec<StoredTable>,
    /// The stages that have records, in the order of the last run's pipeline; others behind them.
    pub(super) order: Vec<String>,
    runs: BTreeMap<u64, (RunRecord, Option<RunEnd>)>,
    stages: HashMap<String, Arc<StagePast>>,
    histories: HashMap<(String, String, u32), Arc<TableHistory>>,
}

/// What a unit read.
pub(super) struct Reads {
    /// False where the record is of before this was noted, and the settings of its run tell instead.
    pub(super) recorded: bool,
    pub(super) objects: Vec<ObjectRead>,
    pub(super) ports: Vec<PortRead>,
}

/// A run, as lineage tells it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RunFacts {
    pub(super) run: u64,
    pub(super) pipeline: String,
    /// Where the pipeline's file was.
    pub(super) path: String,
    pub(super) seed: u64,
    pub(super) started: String,
    pub(super) outcome: &'static str,
    /// XXH3 of the pipeline's text, 128 bits, hexadecimal.
    pub(super) text_xxh3: String,
    /// The pipeline's text.
    pub(super) text: String,
}

impl<'a> Past<'a> {
    pub(super) async fn new(store: &'a Store) -> Result<Self, CommandError> {
        let mut newest: BTreeMap<(String, String), StoredTable> = BTreeMap::new();
        for table in tables(store).await? {
            let name = (table.stage.clone(), table.port.clone());
            if newest.get(&name).is_none_or(|other| other.version < table.version) {
                newest.insert(name, table);
            }
        }
        let runs: BTreeMap<u64, _> = store.runs().await?.into_iter().map(|run| (run.0.run, run)).collect();
        let mut order = store.stages().await?;
        let last = runs.values().next_back().and_then(|(run, _)| run.resolved["stages"].as_object().cloned());
        let last: Vec<String> = last.into_iter().flat_map(|stages| stages.into_iter().map(|(name, _)| name)).collect();
        order.sort_by_key(|stage| last.iter().position(|name| name == stage).unwrap_or(usize::MAX));
        let tables = newest.into_values().collect();
        Ok(Self { store, tables, order, runs, stages: HashMap::new(), histories: HashMap::new() })
    }

    /// A stage's past.
    pub(super) async fn stage(&mut self, stage: &str) -> Result<Arc<StagePast>, CommandError> {
        if let Some(known) = self.stages.get(stage) {
            return Ok(Arc::clone(known));
        }
        let past = Arc::new(self.store.stage_past(stage).await?);
        self.stages.insert(stage.to_owned(), Arc::clone(&past));
        Ok(past)
    }

    /// The units that make up a stage's tables as they stand.
    pub(super) async fn current(&mut self, stage: &str) -> Result<BTreeMap<String, Arc<UnitRecord>>, CommandError> {
        Ok(self.stage(stage).await?.units_at(None))
    }

    /// A table's log.
    pub(super) async fn history(&mut self, table: &StoredTable) -> Result<Arc<TableHistory>, CommandError> {
        let key = (table.stage.clone(), table.port.clone(), table.version);
        if let Some(known) = self.histories.get(&key) {
            return Ok(Arc::clone(known));
        }
        let history = Arc::new(table_history(self.store, table).await?);
        self.histories.insert(key, Arc::clone(&history));
        Ok(history)
    }

    /// The newest table of a port.
    pub(super) fn table(&self, stage: &str, port: &str) -> Option<&StoredTable> {
        self.tables.iter().find(|table| table.stage == stage && table.port == port)
    }

    /// A run, if its record can be read.
    pub(super) fn run(&self, run: u64) -> Option<&RunRecord> {
        self.runs.get(&run).map(|(run, _)| run)
    }

    /// What is told of runs.
    pub(super) fn facts(&self, runs: impl IntoIterator<Item = u64>) -> Vec<RunFacts> {
        let known = runs.into_iter().filter_map(|run| self.runs.get(&run));
        let facts = known.map(|(run, end)| RunFacts {
            run: run.run,
            pipeline: run.pipeline.clone(),
            path: run.path.clone(),
            seed: run.seed,
            started: run.started.clone(),
            outcome: end.as_ref().map_or("unfinished", |end| end.outcome.name()),
            text_xxh3: format!("{:032x}", xxhash_rust::xxh3::xxh3_128(run.text.as_bytes())),
            text: run.text.clone(),
        });
        facts.collect()
    }

    /// What a unit read. Where its record does not say, what its run's settings bind, as it stood after that run.
    pub(super) async fn reads(&mut self, unit: &UnitRecord) -> Result<Reads, CommandError> {
        if let Some(read) = &unit.read {
            return Ok(Reads { recorded: true, objects: read.objects.clone(), ports: read.ports.clone() });
        }
        let settings = self.run(unit.run).map(|run| run.resolved["stages"][&unit.stage]["inputs"].clone());
        let inputs =
            registry().into_iter().find(|operator| operator.name() == unit.operator).map(|found| found.inputs());
        let mut ports = Vec::new();
        for (port, bound) in settings.as_ref().and_then(Value::as_object).into_iter().flatten() {
            let Some((stage, from)) = bound.as_str().and_then(|bound| bound.split_once('.')) else { continue };
            let units = self.stage(stage).await?.units_at(Some(unit.run));
            let whole = inputs.is_some_and(|inputs| inputs.iter().any(|input| input.name == port && input.whole));
            let own = units.get(&unit.partition).filter(|_| !whole);
            let attempts = match own {
                Some(own) => BTreeMap::from([(own.partition.clone(), own.attempt.clone())]),
                None => units.into_values().map(|unit| (unit.partition.clone(), unit.attempt.clone())).collect(),
            };
            ports.push(PortRead { port: port.clone(), stage: stage.to_owned(), from: from.to_owned(), attempts });
        }
        Ok(Reads { recorded: false, objects: Vec::new(), ports })
    }

    /// The name of what was read through a port, with the versions of its table that show it.
    pub(super) async fn name(&mut self, read: &PortRead) -> Result<String, CommandError> {
        let (stage, from) = (&read.stage, &read.from);
        let Some(table) = self.table(stage, from).cloned() else { return Ok(format!("{stage}.{from}")) };
        Ok(match self.history(&table).await?.showing(&read.attempts) {
            Some((version, _)) => format!("{stage}.{from}@v{version}"),
            None => format!("{stage}.{from}"),
        })
    }

    /// An attempt that did not finish, as the record of the unit it was at.
    pub(super) fn unfinished(&self, attempt: &AttemptRecord) -> Option<UnitRecord> {
        let run = self.run(attempt.run)?;
        let settings = &run.resolved["stages"][&attempt.want.stage];
        let operator = settings["operator"].as_str()?.to_owned();
        let seeded = registry().iter().any(|factory| factory.name() == operator && factory.seeded());
        Some(UnitRecord {
            version: attempt.version,
            unit: attempt.want.key(),
            run: attempt.run,
            stage: attempt.want.stage.clone(),
            operator,
            operator_version: settings["operator_version"].as_u64().unwrap_or_default() as u32,
            params: settings["params"].clone(),
            seed: seeded.then_some(run.seed),
            fingerprint: attempt.want.fingerprint.clone(),
            partition: attempt.want.partition.clone(),
            inputs: attempt.want.inputs.clone(),
            read: None,
            attempt: attempt.attempt.clone(),
            worker: attempt.worker.clone(),
            tables: Vec::new(),
            files: Vec::new(),
            rows_in: BTreeMap::new(),
            counts: BTreeMap::new(),
            started: attempt.started.clone(),
            finished: String::new(),
            seconds: 0.0,
        })
    }

    /// Output ports of files that a stage has.
    pub(super) async fn file_ports(&mut self, stage: &str) -> Result<Vec<String>, CommandError> {
        let mut ports: Vec<String> = Vec::new();
        for unit in self.current(stage).await?.values() {
            ports.extend(unit.files.iter().map(|files| files.port.clone()));
        }
        ports.sort();
        ports.dedup();
        Ok(ports)
    }

    /// Rows of a query as JSON objects.
    pub(super) async fn rows(&self, sql: &str) -> Result<Vec<Map<String, Value>>, CommandError> {
        let answer = query(self.store, sql).await?;
        let mut writer = arrow::json::WriterBuilder::new()
            .with_explicit_nulls(true)
            .build::<_, arrow::json::writer::JsonArray>(Vec::new());
        let unreadable = |error: arrow::error::ArrowError| CommandError::Query(error.to_string());
        for batch in &answer.batches {
            writer.write(batch).map_err(unreadable)?;
        }
        writer.finish().map_err(unreadable)?;
        let bytes = writer.into_inner();
        if bytes.is_empty() {
            return Ok(Vec::new());
        }
        serde_json::from_slice(&bytes).map_err(|error| CommandError::Query(error.to_string()))
    }
}

impl RunFacts {
    /// In one line.
    pub(super) fn told(&self) -> String {
        format!(
            "run {}: pipeline `{}`, seed {}, {}, begun {}, {}; text xxh3 {}",
            self.run, self.pipeline, self.seed, self.path, self.started, self.outcome, self.text_xxh3
        )
    }
}

/// A table as a query names it.
pub(super) fn place(table: &StoredTable) -> String {
    format!("\"{}\".\"{}\"", table.stage, table.port)
}

/// Text as a query writes it.
pub(super) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
