//! Data sets: what a stage `publish` leaves in a store.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use arrow::array::{AsArray, RecordBatch};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;

use crate::coa::{Place, filters, record};

/// The filters, and what they keep as a data set.
fn pipeline(validation: f64) -> String {
    format!(
        r#"{}
[stages.publish]
operator = "publish"
inputs = {{ rows = "complexity.kept" }}
params = {{ validation = {validation}, license = "apache-2.0" }}
"#,
        filters("in/*", 5)
    )
}

/// Three source files with 40 tasks; those with an even number come twice, in two files.
fn sources(place: &Place) {
    let mut files: BTreeMap<usize, String> = BTreeMap::new();
    for task in 0..40 {
        for copy in 0..(2 - task % 2) {
            files.entry((task + copy) % 3).or_default().push_str(&(record(&format!("task {task}"), 6) + "\n"));
        }
    }
    for (number, content) in files {
        place.write(&format!("in/{number}.jsonl"), content);
    }
}

/// The files of a store's only data set, by name.
fn data_set(place: &Place, store: &str) -> BTreeMap<String, Vec<u8>> {
    fn walk(folder: &Path, base: &Path, found: &mut BTreeMap<String, Vec<u8>>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, base, found);
            } else {
                let name = path.strip_prefix(base).unwrap().to_str().unwrap().to_owned();
                found.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    let attempts = place.path(&format!("{store}/files/publish/dataset/all"));
    let attempts: Vec<_> = std::fs::read_dir(attempts).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(attempts.len(), 1, "{attempts:?}");
    let mut found = BTreeMap::new();
    walk(&attempts[0], &attempts[0], &mut found);
    found
}

/// A text column of a split.
fn texts(files: &BTreeMap<String, Vec<u8>>, split: &str, column: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (_, content) in files.iter().filter(|(name, _)| name.starts_with(&format!("data/{split}-"))) {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, content).unwrap();
        let batches = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
        for batch in batches.map(Result::unwrap) {
            let batch: RecordBatch = batch;
            let column = batch.column_by_name(column).unwrap().as_string::<i32>();
            found.extend(column.iter().map(|value| value.unwrap().to_owned()));
        }
    }
    found
}

#[test]
fn a_data_set_holds_every_row_once_and_no_task_twice() {
    let place = Place::new();
    sources(&place);
    place.write("p.toml", pipeline(0.3));
    place.coa(&["run", "p.toml", "-q"]).ok();
    let files = data_set(&place, "store");
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    let expected =
        ["README.md", "data/train-00000-of-00001.parquet", "data/validation-00000-of-00001.parquet", "manifest.json"];
    assert_eq!(names, expected);

    let published = ["train", "validation"].map(|split| texts(&files, split, "trajectory_id"));
    let mut published: Vec<String> = published.concat();
    published.sort();
    let mut kept: Vec<String> = place
        .sql("store", "select trajectory_id as id from complexity.kept")
        .iter()
        .map(|row| row["id"].as_str().unwrap().to_owned())
        .collect();
    kept.sort();
    assert_eq!((published.len(), published), (60, kept));
    let tasks =
        ["train", "validation"].map(|split| texts(&files, split, "task_id").into_iter().collect::<BTreeSet<_>>());
    assert!(tasks[0].is_disjoint(&tasks[1]) && tasks[0].len() + tasks[1].len() == 40, "{tasks:?}");
    assert!((4..=22).contains(&tasks[1].len()), "{} of 40 tasks", tasks[1].len());

    let manifest: Value = serde_json::from_slice(&files["manifest.json"]).unwrap();
    assert_eq!((&manifest["input"]["stage"], &manifest["input"]["output"]), (&"complexity".into(), &"kept".into()));
    assert_eq!(manifest["input"]["units"].as_array().unwrap().len(), 3);
    assert_eq!(manifest["rows"], 60);
}

#[test]
fn another_store_gets_the_same_bytes_and_another_share_other_ones() {
    let place = Place::new();
    sources(&place);
    place.write("p.toml", pipeline(0.3));
    place.coa(&["run", "p.toml", "-q"]).ok();
    place.coa(&["run", "p.toml", "-q", "--store", "elsewhere"]).ok();
    assert!(data_set(&place, "store") == data_set(&place, "elsewhere"));
    let said = place.coa(&["run", "p.toml"]).ok();
    assert!(said.err.contains("done: 0 units"), "{}", said.err);

    place.write("p.toml", pipeline(0.0));
    let said = place.coa(&["run", "p.toml"]).ok();
    assert!(said.err.contains("done: 1 unit"), "{}", said.err);
    let units = "select count(*) from units where stage = 'publish'";
    assert_eq!(place.number("store", units), 2);
    let rows = "select count(*) from units where stage <> 'publish' and run > 1";
    assert_eq!(place.number("store", rows), 0);
}

#[test]
fn another_table_is_another_data_set_even_where_neither_has_rows() {
    let place = Place::new();
    place.write("in/a.jsonl", record("a", 2) + "\n");
    place.write("p.toml", pipeline(0.0));
    place.coa(&["run", "p.toml", "-q"]).ok();
    let kept = data_set(&place, "store");
    assert!(texts(&kept, "train", "trajectory_id").is_empty());
    place.write("p.toml", pipeline(0.0).replace("complexity.kept", "ingest.quarantine"));
    let said = place.coa(&["run", "p.toml"]).ok();
    assert!(said.err.contains("done: 1 unit"), "{}", said.err);
    place.coa(&["run", "p.toml", "-q", "--store", "elsewhere"]).ok();
    assert!(texts(&data_set(&place, "elsewhere"), "train", "code").is_empty());
}

#[test]
fn only_tables_can_be_published() {
    let place = Place::new();
    let text = "name = \"p\"\n[stages.pages]\noperator = \"world_pages\"\n[stages.tokenizer]\noperator = \"train_tokenizer\"\n\
                inputs = { rows = \"x.kept\" }\n[stages.publish]\noperator = \"publish\"\n\
                inputs = { rows = \"tokenizer.tokenizer\" }\nparams = { validation = 1.0 }\n";
    place.write("p.toml", text);
    let words = ["input `rows` takes rows of any table, `tokenizer.tokenizer` gives files of kind `tokenizer`"];
    place.coa(&["check", "p.toml"]).fails(2, &words).fails(2, &["1 leaves nothing to train on"]);
}
