//! Queries over numbers that are none, and over inputs without rows.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Float64Type, Int64Type};
use operators::{Factory, UnitIo};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use schemas::{Step, StepKind, TableDef, encode};
use serde_json::Value;
use store::{AttemptIo, Created, Scope, StageFold, Store, UnitPlace, UnitRecord, UnitWant};
use tokio::runtime::{Handle, Runtime};

use super::{ingest, strings};
use crate::coa::{Place, filters, record, shared};

fn parquet(path: &Path) -> Vec<RecordBatch> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap().build().unwrap();
    reader.map(Result::unwrap).collect()
}

/// The case's rewards as scores of steps.
fn rewards(path: &Path) -> Vec<Step> {
    let mut steps = Vec::new();
    for batch in parquet(path) {
        let tasks = batch.column_by_name("task_id").unwrap().as_string::<i32>();
        let rewards = batch.column_by_name("reward").unwrap().as_primitive::<Float64Type>();
        for (task, reward) in tasks.iter().zip(rewards) {
            let mut step = Step::new(task.unwrap(), "0", 0, StepKind::Critique);
            step.score = reward;
            steps.push(step);
        }
    }
    steps
}

/// Commits these partitions of steps, as a stage `ingest` would, and brings the table in line with them.
async fn commit(store: &Store, partitions: &[Vec<Step>]) {
    let factory: &'static dyn Factory =
        jobs::registry().into_iter().find(|factory| factory.name() == "ingest_traces").unwrap();
    let mut units = Vec::new();
    for (number, steps) in partitions.iter().enumerate() {
        let (partition, attempt) = (format!("part-{number}"), format!("attempt-{number}"));
        let want = UnitWant {
            stage: "ingest".to_owned(),
            fingerprint: "f".to_owned(),
            partition: partition.clone(),
            inputs: "i".to_owned(),
        };
        let place = UnitPlace { unit: want.key(), stage: want.stage.clone(), partition, attempt: attempt.clone() };
        let (store, scratch, handle) = (store.clone(), tempfile::tempdir().unwrap(), Handle::current());
        let (batch, rows) = (encode(steps).unwrap(), steps.len() as u64);
        let written = tokio::task::spawn_blocking(move || {
            let io = AttemptIo::new(&store, &handle, place, factory, Vec::new(), Vec::new(), scratch.path());
            io.append("steps", TableDef::of::<Step>(), batch).unwrap();
            io.upload().unwrap()
        });
        let (tables, files) = written.await.unwrap();
        assert_eq!(tables.iter().map(|table| table.rows).sum::<u64>(), rows);
        units.push(Arc::new(UnitRecord {
            version: 1,
            unit: want.key(),
            run: 1,
            stage: want.stage,
            operator: factory.name().to_owned(),
            operator_version: factory.version(),
            params: Value::Null,
            seed: None,
            fingerprint: want.fingerprint,
            partition: want.partition,
            inputs: want.inputs,
            read: None,
            attempt,
            worker: "w".to_owned(),
            tables,
            files,
            rows_in: BTreeMap::new(),
            counts: BTreeMap::new(),
            started: String::new(),
            finished: String::new(),
            seconds: 0.0,
        }));
    }
    for unit in &units {
        assert!(matches!(store.commit_unit(unit).await.unwrap(), Created::Ours));
    }
    let fold = StageFold {
        stage: "ingest",
        run: 1,
        scope: Scope::Whole,
        units: &units,
        tables: &[("steps", TableDef::of::<Step>())],
        contended: false,
    };
    assert_eq!(store.fold_stage(&fold).await.unwrap(), 0);
}

/// The case's queries count the same over three files, over one, and without a filter that could skip anything.
#[test]
fn c48_numbers_that_are_none() {
    let Some(case) = shared("cases/C48") else { return };
    let parts: Vec<Vec<Step>> = (0..3).map(|part| rewards(&case.join(format!("in/part-{part}.parquet")))).collect();
    assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [6, 6, 3]);
    let place = Place::new();
    let runtime = Runtime::new().unwrap();
    for (name, partitions) in [("three", parts.clone()), ("one", vec![parts.concat()])] {
        runtime.block_on(async {
            let store = Store::create(place.path(name).to_str().unwrap(), "case").await.unwrap();
            commit(&store, &partitions).await;
        });
    }
    let text = std::fs::read_to_string(case.join("queries.sql")).unwrap();
    let queries: Vec<String> = text
        .lines()
        .filter_map(|line| Some(line.split_once(';')?.0.replace(" rows", " ingest.steps").replace("reward", "score")))
        .collect();
    // The engine's rule: a number that is none is above all others and equal to itself.
    let expected = [15, 5, 1, 6, 9, 5, 5, 8];
    assert_eq!(queries.len(), expected.len());
    for (query, expected) in queries.iter().zip(expected) {
        for store in ["three", "one"] {
            assert_eq!(place.number(store, query), expected, "{store}: {query}");
        }
        let Some((head, filter)) = query.split_once(" where ") else { continue };
        let unfiltered = head.replace("count(*)", &format!("sum(case when {filter} then 1 else 0 end)"));
        assert_eq!(place.number("three", &unfiltered), expected, "{unfiltered}");
    }
    for store in ["three", "one"] {
        let average = place.sql(store, "select isnan(avg(score)) as is_nan from ingest.steps");
        assert_eq!(average[0]["is_nan"], true, "{store}");
    }
}

const COUNT: &str = "select count(*) as n, avg(interactions) as mean from convert.trajectories";

/// Empty files beside full ones, and alone. The rows are runs with as many calls as the case has interactions; a file
/// without rows is one of blank lines.
#[test]
fn c50_inputs_without_rows() {
    let Some(case) = shared("cases/C50") else { return };
    let place = Place::new();
    let (mut text, mut kept) = (String::new(), Vec::new());
    for batch in parquet(&case.join("full/part-0.parquet")) {
        let tasks = batch.column_by_name("task_id").unwrap().as_string::<i32>();
        let interactions = batch.column_by_name("interactions").unwrap().as_primitive::<Int64Type>();
        let flags = batch.column_by_name("kept").unwrap().as_boolean();
        for row in 0..batch.num_rows() {
            text.push_str(&(record(tasks.value(row), interactions.value(row) as usize) + "\n"));
            kept.extend(flags.value(row).then(|| format!("'{}'", tasks.value(row))));
        }
    }
    place.write("full/part-0.jsonl", text);
    place.write("full/part-1.jsonl", "\n");
    place.write("full/part-2.jsonl", "");
    place.write("p.toml", filters("full/*", 1));
    place.coa(&["run", "p.toml", "-q"]).ok();
    let answer = place.sql("store", &format!("{COUNT} where task_id in ({})", kept.join(", ")));
    assert_eq!((answer[0]["n"].as_i64(), answer[0]["mean"].as_f64()), (Some(2), Some(6.0)));
    let ordered = place.sql("store", "select task_id from convert.trajectories order by task_id");
    assert_eq!(strings(&ordered, "task_id"), ["zr-1", "zr-2", "zr-3"]);
    let empty = "select partition from units where current and counts like '%\"empty_objects\":1%' order by 1";
    assert_eq!(strings(&place.sql("store", empty), "partition"), ["part-1.jsonl", "part-2.jsonl"]);

    // Nothing but empty files: the columns are known all the same.
    place.write("only_empty/part-0.jsonl", "\n");
    let none = case.join("jsonl_empty");
    for (source, store) in [("only_empty", "only"), (none.to_str().unwrap(), "none")] {
        place.write("p.toml", filters(&format!("{source}/*"), 1));
        place.coa(&["run", "p.toml", "-q", "--store", store]).ok();
        let answer = place.sql(store, COUNT);
        assert!(answer[0]["n"] == 0 && answer[0]["mean"].is_null(), "{store}: {answer:?}");
        let rows = place.sql(store, "select task_id, interactions from complexity.kept order by task_id");
        assert!(rows.is_empty(), "{store}");
    }

    place.write("p.toml", ingest("nothing/*", ""));
    place.coa(&["run", "p.toml", "--store", "nothing-store"]).fails(1, &["no object matches `nothing/*`"]);
}

/// A filter that keeps nothing: its output has columns and no rows, and a training says that it has nothing to train on.
#[test]
fn c50_a_filter_that_keeps_nothing() {
    let place = Place::new();
    let records: String = (1..=3).map(|task| record(&format!("few-{task}"), task) + "\n").collect();
    place.write("in/a.jsonl", records);
    let rest = r#"
[stages.tokenizer]
operator = "train_tokenizer"
inputs = { rows = "convert.trajectories" }
params = { vocabulary = 300 }
[stages.tokens]
operator = "tokenize"
inputs = { rows = "complexity.kept", tokenizer = "tokenizer.tokenizer" }
[stages.sft]
operator = "sft"
inputs = { tokens = "tokens.tokens", tokenizer = "tokenizer.tokenizer" }
[stages.sft.params]
steps = 2
batch = 1
model = { hidden = 32, layers = 1, heads = 2, kv_heads = 1, intermediate = 48 }
"#;
    place.write("p.toml", format!("{}{rest}", filters("in/*", 5)));
    place.coa(&["run", "p.toml"]).fails(1, &["there are 0 samples to train on"]);
    for (table, columns) in [("complexity.kept", "task_id, interactions"), ("tokens.tokens", "sample_id, input_ids")] {
        let rows = place.sql("store", &format!("select {columns} from {table} order by 1"));
        assert!(rows.is_empty(), "{table}");
    }
    assert_eq!(place.number("store", "select count(*) from complexity.rejected"), 3);
    let sft = place.sql("store", "select outcome, error from attempts where stage = 'sft'");
    assert_eq!((sft.len(), &sft[0]["outcome"]), (1, &"failed".into()));
}
