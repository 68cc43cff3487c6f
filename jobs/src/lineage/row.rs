//! One row: the tables that hold it, where it was turned down, who read it, and the place in the source that its record
//! was read from.
//!
//! A trace, its trajectory and its sample have one id. A rollout and the runs of a teacher lead to their question by its
//! id, which is their task's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use schemas::{Question, Rejected, Rollout, Step, Table, TokenizedSample, Trace, Trajectory};
use serde::Serialize;
use serde_json::{Map, Value, json};
use store::{ObjectRead, StoredTable, UnitRecord};

use super::branch::some;
use super::made::runs_told;
use super::past::{Past, RunFacts, literal, place};
use super::source::{Object, look};
use super::what::{Quarantine, has_places, id_columns};
use super::{Branch, Lineage, counted};
use crate::error::CommandError;

/// A table that holds the row.
#[derive(Serialize)]
struct Place {
    stage: String,
    port: String,
    table: String,
    version: Option<u64>,
    partition: String,
    /// `kept`, or `rejected` where it was turned down.
    state: &'static str,
    /// What the table says of it.
    row: Map<String, Value>,
    unit: Option<UnitFacts>,
}

/// The unit that wrote it there.
#[derive(Clone, Serialize)]
struct UnitFacts {
    unit: String,
    run: u64,
    attempt: String,
    operator: String,
    operator_version: u32,
    params: Value,
    seed: Option<u64>,
    fingerprint: String,
    /// The tables and files it read, as `stage.port@v3`.
    inputs: Vec<String>,
    /// False where its record is of before that was noted, and the settings of its run tell instead.
    reads_recorded: bool,
}

/// Where a record stands in a source.
#[derive(Serialize)]
struct Origin {
    source: String,
    line: i64,
    byte_offset: i64,
    /// What the offset counts in: `source`, or `decompressed source`.
    offset_in: &'static str,
    /// The object, where the source is outside the store.
    object: Option<Object>,
    /// The file, where another stage wrote the source.
    file: Option<StageFile>,
}

/// A file that a stage wrote.
#[derive(Serialize)]
struct StageFile {
    from: String,
    uri: String,
    bytes: u64,
    sha256: String,
    unit: UnitFacts,
}

/// A stage that read the row together with others.
#[derive(Serialize)]
struct Reader {
    stage: String,
    /// What it read, as `stage.port`.
    from: String,
    outputs: Vec<String>,
    unit: UnitFacts,
}

/// Rows that a text names.
const SHOWN: usize = 16;

/// Traces a row.
pub(super) async fn trace(past: &mut Past<'_>, id: &str) -> Result<Lineage, CommandError> {
    let places = places(past, id).await?;
    let mut origin = None;
    for found in &places {
        if let Some(told) = origin_of(past, &found.0, found.1.as_ref()).await? {
            origin = Some(told);
            break;
        }
    }
    let readers = readers(past, &places).await?;
    let task = places.iter().find_map(|(place, _)| {
        let question = place.row.get("question_id").or(place.row.get("task_id"));
        question.and_then(Value::as_str).map(str::to_owned)
    });
    let task = match task {
        Some(task) if task != id => {
            let asked = asked_in(past, &task).await?;
            (!asked.is_empty()).then_some((task, asked))
        }
        _ => None,
    };
    let is_question = places.iter().any(|(place, _)| place.table == Question::NAME);
    let traces = if is_question { traces_of(past, id).await? } else { Vec::new() };
    let runs: BTreeSet<u64> = places.iter().filter_map(|(_, unit)| Some(unit.as_ref()?.run)).collect();
    let runs = past.facts(runs);
    let places: Vec<Place> = places.into_iter().map(|(place, _)| place).collect();
    Ok(answer(id, &places, origin, &readers, task, &traces, &runs))
}

/// Traces a record that was quarantined.
pub(super) async fn quarantined(past: &mut Past<'_>, found: Quarantine) -> Result<Lineage, CommandError> {
    let Quarantine { table, row } = found;
    let (place, unit) = at(past, &table, row).await?;
    let origin = origin_of(past, &place, unit.as_ref()).await?;
    let asked = format!("{}:{}", place.row["source"].as_str().unwrap_or_default(), place.row["line"]);
    let runs = past.facts(unit.map(|unit| unit.run));
    Ok(answer(&asked, &[place], origin, &[], None, &[], &runs))
}

type Found = (Place, Option<Arc<UnitRecord>>);

/// The tables that hold a row, in the order of the pipeline.
async fn places(past: &mut Past<'_>, id: &str) -> Result<Vec<Found>, CommandError> {
    let mut tables = past.tables.clone();
    tables.sort_by_key(|table| past.order.iter().position(|stage| *stage == table.stage));
    let mut found = Vec::new();
    for table in tables {
        let columns = match table.table.as_str() {
            Trace::NAME => "source, line, byte_offset, task_id, status",
            Trajectory::NAME => "task_id, interactions, tool_calls, weight",
            TokenizedSample::NAME => "cardinality(input_ids) as tokens, trained_tokens, truncated, tokenizer, weight",
            Rollout::NAME => "rollout_id, question_id, sample, correct, finish, answer, temperature, model",
            Question::NAME => "question, kind, hops",
            Rejected::NAME if has_places(past, &table).await? => "task_id, reason, detail, source, line, byte_offset",
            Rejected::NAME => "task_id, reason, detail",
            Step::NAME => "count(*) as steps",
            _ => continue,
        };
        let value = literal(id);
        let (ids, group) = match table.table.as_str() {
            Step::NAME => (vec!["trace_id"], " group by partition"),
            other => (id_columns(other).to_vec(), ""),
        };
        let matches: Vec<String> = ids.iter().map(|column| format!("{column} = {value}")).collect();
        let sql = format!("select partition, {columns} from {} where {}{group}", place(&table), matches.join(" or "));
        for row in past.rows(&sql).await? {
            found.push(at(past, &table, row).await?);
        }
    }
    Ok(found)
}

/// A row's place, and the unit that wrote it there.
async fn at(past: &mut Past<'_>, table: &StoredTable, mut row: Map<String, Value>) -> Result<Found, CommandError> {
    row.retain(|column, value| !value.is_null() && column != "id");
    let partition = row.shift_remove("partition").and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default();
    let history = past.history(table).await?;
    let version = history.newest();
    let attempt = version.and_then(|version| history.at(version).remove(&partition));
    let unit = match attempt {
        Some(attempt) => past.stage(&table.stage).await?.unit(&attempt).cloned(),
        None => None,
    };
    let state = match table.table.as_str() {
        Rejected::NAME => "rejected",
        schemas::Quarantined::NAME => "quarantined",
        _ => "kept",
    };
    let facts = match &unit {
        Some(unit) => Some(facts(past, unit).await?),
        None => None,
    };
    let StoredTable { stage, port, table, .. } = table.clone();
    Ok((Place { stage, port, table, version, partition, state, row, unit: facts }, unit))
}

async fn facts(past: &mut Past<'_>, unit: &UnitRecord) -> Result<UnitFacts, CommandError> {
    let mut inputs = Vec::new();
    let reads = past.reads(unit).await?;
    for read in reads.ports {
        inputs.push(past.name(&read).await?);
    }
    Ok(UnitFacts {
        unit: unit.unit.clone(),
        run: unit.run,
        attempt: unit.attempt.clone(),
        operator: unit.operator.clone(),
        operator_version: unit.operator_version,
        params: unit.params.clone(),
        seed: unit.seed,
        fingerprint: unit.fingerprint.clone(),
        inputs,
        reads_recorded: reads.recorded,
    })
}

/// The record that a place says its row was read from.
async fn origin_of(
    past: &mut Past<'_>,
    place: &Place,
    unit: Option<&Arc<UnitRecord>>,
) -> Result<Option<Origin>, CommandError> {
    let (Some(source), Some(line), Some(byte_offset)) = (
        place.row.get("source").and_then(Value::as_str),
        place.row.get("line").and_then(Value::as_i64),
        place.row.get("byte_offset").and_then(Value::as_i64),
    ) else {
        return Ok(None);
    };
    let behind_gzip = place.row.get("code").and_then(Value::as_str) == Some("not_gzip");
    let offset_in = if source.ends_with(".gz") && !behind_gzip { "decompressed source" } else { "source" };
    let (mut object, mut file) = (None, None);
    if let Some(unit) = unit {
        let reads = past.reads(unit).await?;
        if let Some(read) = reads.objects.into_iter().find(|object: &ObjectRead| object.uri == source) {
            object = look(vec![(read, None)]).await.pop();
        }
        for read in reads.ports {
            let upstream = past.stage(&read.stage).await?;
            let written = read.attempts.values().filter_map(|attempt| upstream.unit(attempt)).find_map(|unit| {
                let files = unit.files.iter().filter(|files| files.port == read.from).flat_map(|files| &files.files);
                let mut named = files.filter(|file| format!("{}/{}", unit.partition, file.name) == source);
                Some((Arc::clone(unit), named.next()?.clone()))
            });
            if let Some((unit, stored)) = written {
                file = Some(StageFile {
                    from: format!("{}.{}", read.stage, read.from),
                    uri: format!("{}/{}", past.store.url().as_str().trim_end_matches('/'), stored.path),
                    bytes: stored.bytes,
                    sha256: stored.sha256,
                    unit: facts(past, &unit).await?,
                });
            }
        }
    }
    Ok(Some(Origin { source: source.to_owned(), line, byte_offset, offset_in, object, file }))
}

/// The stages that read the row and have it in no table of theirs: it went into what they made of many.
async fn readers(past: &mut Past<'_>, places: &[Found]) -> Result<Vec<Reader>, CommandError> {
    let holders: BTreeSet<&str> = places.iter().map(|(place, _)| place.stage.as_str()).collect();
    let mut readers = Vec::new();
    for stage in past.order.clone().into_iter().filter(|stage| !holders.contains(stage.as_str())) {
        for unit in past.current(&stage).await?.into_values() {
            let reads = past.reads(&unit).await?;
            let read = reads.ports.iter().find(|read| {
                places.iter().any(|(place, wrote)| {
                    let attempt = wrote.as_ref().map(|unit| &unit.attempt);
                    place.stage == read.stage
                        && place.port == read.from
                        && attempt.is_some_and(|attempt| read.attempts.values().any(|other| other == attempt))
                })
            });
            let Some(read) = read else { continue };
            let tables = unit.tables.iter().map(|table| &table.port);
            let outputs = tables.chain(unit.files.iter().map(|files| &files.port));
            readers.push(Reader {
                stage: stage.clone(),
                from: format!("{}.{}", read.stage, read.from),
                outputs: outputs.map(|port| format!("{stage}.{port}")).collect(),
                unit: facts(past, &unit).await?,
            });
        }
    }
    Ok(readers)
}

/// The tables of questions that ask a task.
async fn asked_in(past: &mut Past<'_>, task: &str) -> Result<Vec<String>, CommandError> {
    let mut found = Vec::new();
    for table in past.tables.iter().filter(|table| table.table == Question::NAME) {
        let sql = format!("select question from {} where question_id = {}", place(table), literal(task));
        if !past.rows(&sql).await?.is_empty() {
            found.push(format!("{}.{}", table.stage, table.port));
        }
    }
    Ok(found)
}

/// The traces of runs on a question, as `stage.port` and id.
async fn traces_of(past: &mut Past<'_>, question: &str) -> Result<Vec<(String, String)>, CommandError> {
    let mut found = Vec::new();
    for table in past.tables.iter().filter(|table| table.table == Trace::NAME) {
        let sql = format!("select trace_id from {} where task_id = {}", place(table), literal(question));
        for row in past.rows(&sql).await? {
            let id = row["trace_id"].as_str().unwrap_or_default().to_owned();
            found.push((format!("{}.{}", table.stage, table.port), id));
        }
    }
    Ok(found)
}

fn answer(
    asked: &str,
    places: &[Place],
    origin: Option<Origin>,
    readers: &[Reader],
    task: Option<(String, Vec<String>)>,
    traces: &[(String, String)],
    runs: &[RunFacts],
) -> Lineage {
    let task_json = task.as_ref().map(|(task, asked)| json!({"task_id": task, "asked_in": asked}));
    let traces_json: Vec<Value> = traces.iter().map(|(table, id)| json!({"table": table, "trace_id": id})).collect();
    let json = json!({"asked": asked, "kind": "row", "origin": origin, "places": places, "read_by": readers,
        "task": task_json, "traces": traces_json, "runs": runs});
    let mut text = vec![Branch::new(asked, some(places.iter().map(Place::told), SHOWN))];
    if let Some(origin) = &origin {
        text[0].push(origin.told());
    }
    // Units of one stage differ in their partition only.
    let mut by_stage: BTreeMap<&str, (&Reader, u64)> = BTreeMap::new();
    for reader in readers {
        by_stage.entry(&reader.stage).or_insert((reader, 0)).1 += 1;
    }
    for (stage, (reader, units)) in by_stage {
        let Reader { from, outputs, unit, .. } = reader;
        text[0].push(Branch::leaf(format!(
            "read by {stage} ({} v{}) from {from} in {}, into {}",
            unit.operator,
            unit.operator_version,
            counted(units, "unit"),
            outputs.join(", ")
        )));
    }
    if let Some((task, asked)) = &task {
        text[0].push(Branch::leaf(format!("its task {task} is asked in {}", asked.join(", "))));
    }
    for trace in some(traces.iter().map(|(table, id)| Branch::leaf(format!("solved in {table}: {id}"))), SHOWN) {
        text[0].push(trace);
    }
    text.push(runs_told(runs));
    Lineage { json, text }
}

impl Place {
    fn told(&self) -> Branch {
        let version = self.version.map(|version| format!("@v{version}")).unwrap_or_default();
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let facts = self.row.iter().filter(|(column, _)| {
            !["source", "line", "byte_offset", "code", "reason", "detail"].contains(&column.as_str())
        });
        let facts: Vec<String> = facts.map(|(column, value)| format!("{column} {}", text(value))).collect();
        let why = ["code", "reason", "detail"].iter().filter_map(|column| self.row.get(*column)).map(text);
        let why: Vec<String> = why.collect();
        let mut line = format!("{}.{}{version}, partition {}: {}", self.stage, self.port, self.partition, self.state);
        if !why.is_empty() {
            line.push_str(&format!(", {}", why.join(": ")));
        }
        if !facts.is_empty() {
            line.push_str(&format!(" ({})", facts.join(", ")));
        }
        Branch::new(line, self.unit.iter().map(|unit| Branch::leaf(unit.told())).collect())
    }
}

impl UnitFacts {
    fn told(&self) -> String {
        let seed = self.seed.map(|seed| format!(", seed {seed}")).unwrap_or_default();
        let from = if self.inputs.is_empty() { String::new() } else { format!(", from {}", self.inputs.join(" and ")) };
        format!(
            "by {} v{}, parameters {}{seed}, run {}, unit {}{from}",
            self.operator, self.operator_version, self.params, self.run, self.unit
        )
    }
}

impl Origin {
    fn told(&self) -> Branch {
        let decompressed = match self.offset_in {
            "source" => "",
            _ => " of the decompressed text",
        };
        let place = format!("read from {} line {}, byte {}{decompressed}", self.source, self.line, self.byte_offset);
        let mut branch = Branch::leaf(place);
        match (&self.object, &self.file) {
            (Some(object), _) => branch.push(Branch::leaf(object.told())),
            (None, Some(file)) => {
                let StageFile { from, uri, bytes, sha256, unit } = file;
                let made = Branch::leaf(unit.told());
                branch
                    .push(Branch::new(format!("a file of {from}: {uri}, {bytes} bytes, sha256 {sha256}"), vec![made]));
            }
            (None, None) => branch
                .push(Branch::leaf("its size and version are not recorded: the record is of before they were noted")),
        }
        branch
    }
}
