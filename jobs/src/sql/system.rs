//! The system tables: runs, stages, units and attempts, from the records in the store.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
use serde_json::{Map, Value};
use store::{AttemptEnd, AttemptRecord, Store, StoreError, UnitRecord};

/// Their names.
pub(super) const SYSTEM_TABLES: [&str; 4] = ["attempts", "runs", "stages", "units"];

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

pub(super) async fn runs(store: &Store) -> Result<RecordBatch, StoreError> {
    let runs = store.runs().await?;
    let begun = || runs.iter().map(|(run, _)| run);
    let ended = || runs.iter().map(|(_, end)| end.as_ref());
    Ok(Columns::default()
        .number("run", begun().map(|run| Some(run.run as i64)))
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
        .text("partitions", begun().map(|run| run.partitions.as_ref().map(|ranges| ranges.join(","))))
        .text("time_zone", begun().map(|run| run.time_zone.as_ref()))
        .number("resumes", begun().map(|run| run.resumes.map(|run| run as i64)))
        .text("worker", begun().map(|run| Some(&run.worker)))
        .text("settings", begun().map(|run| Some(run.resolved.to_string())))
        .batch())
}

/// The attempts whose output the tables show.
pub(super) async fn shown(store: &Store) -> Result<HashSet<String>, StoreError> {
    let mut shown = HashSet::new();
    for stage in store.stages().await? {
        shown.extend(store.current_units(&stage).await?.iter().map(|unit| unit.attempt.clone()));
    }
    Ok(shown)
}

pub(super) async fn units(store: &Store) -> Result<RecordBatch, StoreError> {
    let units = store.all_units().await?;
    let shown = shown(store).await?;
    let all = || units.iter();
    let rows_out = |unit: &UnitRecord| unit.tables.iter().map(|table| table.rows as i64).sum::<i64>();
    let by_port = |unit: &UnitRecord| {
        let rows = unit.tables.iter().map(|table| (table.port.clone(), table.rows.into()));
        Value::Object(rows.collect()).to_string()
    };
    Ok(Columns::default()
        .text("unit", all().map(|unit| Some(&unit.unit)))
        .text("stage", all().map(|unit| Some(&unit.stage)))
        .text("partition", all().map(|unit| Some(&unit.partition)))
        .flag("current", all().map(|unit| Some(shown.contains(&unit.attempt))))
        .text("operator", all().map(|unit| Some(&unit.operator)))
        .number("operator_version", all().map(|unit| Some(unit.operator_version.into())))
        .text("fingerprint", all().map(|unit| Some(&unit.fingerprint)))
        .text("inputs", all().map(|unit| Some(&unit.inputs)))
        .number("rows_in", all().map(|unit| Some(unit.rows_in.values().sum::<u64>() as i64)))
        .number("rows_out", all().map(|unit| Some(rows_out(unit))))
        .text("rows_by_port", all().map(|unit| Some(by_port(unit))))
        .text("counts", all().map(|unit| serde_json::to_string(&unit.counts).ok()))
        .text("params", all().map(|unit| Some(unit.params.to_string())))
        .number("run", all().map(|unit| Some(unit.run as i64)))
        .text("attempt", all().map(|unit| Some(&unit.attempt)))
        .text("worker", all().map(|unit| Some(&unit.worker)))
        .text("started", all().map(|unit| Some(&unit.started)))
        .text("finished", all().map(|unit| Some(&unit.finished)))
        .real("seconds", all().map(|unit| Some(unit.seconds)))
        .batch())
}

pub(super) async fn stages(store: &Store) -> Result<RecordBatch, StoreError> {
    let (settings, ends) = match store.last_run().await? {
        Some((run, end)) => {
            let settings = run.resolved["stages"].as_object().cloned().unwrap_or_default();
            (settings, end.map(|end| end.stages).unwrap_or_default())
        }
        None => (Map::new(), BTreeMap::new()),
    };
    let mut found: Vec<(&String, &Value, Vec<Arc<UnitRecord>>)> = Vec::new();
    for (stage, settings) in &settings {
        let print = settings["fingerprint"].as_str().unwrap_or_default();
        let units = store.current_units(stage).await?.into_iter().filter(|unit| unit.fingerprint == print);
        found.push((stage, settings, units.collect()));
    }
    let sum =
        |units: &[Arc<UnitRecord>], of: fn(&UnitRecord) -> u64| units.iter().map(|unit| of(unit)).sum::<u64>() as i64;
    let all = || found.iter();
    Ok(Columns::default()
        .text("stage", all().map(|(stage, _, _)| Some(stage.as_str())))
        .text("operator", all().map(|(_, settings, _)| settings["operator"].as_str()))
        .number("operator_version", all().map(|(_, settings, _)| settings["operator_version"].as_i64()))
        .text("fingerprint", all().map(|(_, settings, _)| settings["fingerprint"].as_str()))
        .text("outcome", all().map(|(stage, _, _)| ends.get(*stage).map(|end| end.outcome.name())))
        .number("units", all().map(|(stage, _, _)| ends.get(*stage).map(|end| end.units as i64)))
        .number("units_failed", all().map(|(stage, _, _)| ends.get(*stage).map(|end| end.failed as i64)))
        .number("quarantined", all().map(|(stage, _, _)| ends.get(*stage).map(|end| end.quarantined as i64)))
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

pub(super) async fn attempts(store: &Store) -> Result<RecordBatch, StoreError> {
    let attempts = store.attempts().await?;
    let won: HashMap<String, UnitRecord> =
        store.all_units().await?.into_iter().map(|unit| (unit.attempt.clone(), unit)).collect();
    let done: HashSet<&str> = won.values().map(|unit| unit.unit.as_str()).collect();
    let outcome = |attempt: &AttemptRecord, end: &Option<AttemptEnd>| match end {
        Some(end) => end.outcome.name(),
        None if won.contains_key(&attempt.attempt) => "complete",
        // Dead or late: whichever it is, it can change nothing any more.
        None if done.contains(attempt.want.key().as_str()) => "superseded",
        None => "unfinished",
    };
    let finished = |attempt: &AttemptRecord, end: &Option<AttemptEnd>| {
        let end = end.as_ref().map(|end| end.finished.clone());
        end.or_else(|| won.get(&attempt.attempt).map(|unit| unit.finished.clone()))
    };
    let begun = || attempts.iter().map(|(attempt, _)| attempt);
    let ended = || attempts.iter().map(|(_, end)| end.as_ref());
    Ok(Columns::default()
        .text("attempt", begun().map(|attempt| Some(&attempt.attempt)))
        .number("number", begun().map(|attempt| Some(attempt.number.into())))
        .text("unit", begun().map(|attempt| Some(attempt.want.key())))
        .number("run", begun().map(|attempt| Some(attempt.run as i64)))
        .text("stage", begun().map(|attempt| Some(&attempt.want.stage)))
        .text("partition", begun().map(|attempt| Some(&attempt.want.partition)))
        .text("outcome", attempts.iter().map(|(attempt, end)| Some(outcome(attempt, end))))
        .text("error_kind", ended().map(|end| end.map(|end| &end.kind)))
        .text("error", ended().map(|end| end.map(|end| &end.error)))
        .text("hint", ended().map(|end| end.and_then(|end| end.hint.as_ref())))
        .text("worker", begun().map(|attempt| Some(&attempt.worker)))
        .text("started", begun().map(|attempt| Some(&attempt.started)))
        .text("finished", attempts.iter().map(|(attempt, end)| finished(attempt, end)))
        .batch())
}
