//! Data sets in memory: what is in them, that they are the same each time, and that their bounds hold.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::RecordBatch;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use schemas::{Domain, Role, Segment, Table, TrainingStep, Trajectory, decode};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::*;
use crate::memory::MemoryIo;

fn trajectory(id: usize, task: Option<usize>, text: &str) -> Trajectory {
    let mut call = Segment::new(Role::Tool, "look");
    call.tool = Some("web_search".into());
    call.arguments = Some(r#"{"query": "Laos", "deep": [1.5, null]}"#.into());
    Trajectory {
        trajectory_id: format!("row-{id}"),
        task_id: task.map(|task| format!("task-{task}")),
        question: "Which?".into(),
        golden_answers: vec!["a".into()],
        answer: None,
        source_verdict: Some(id.is_multiple_of(2)),
        domain: Domain::Qa,
        segments: vec![call, Segment::new(Role::Answer, text)],
        interactions: 1,
        tool_calls: 1,
        notes: vec![],
        weight: if id == 3 { f64::NAN } else { 1.0 },
    }
}

fn operator(params: Value) -> Publish {
    Publish::new(serde_json::from_value(params).unwrap()).unwrap()
}

/// The files of the data set of these rows.
fn publish<T: Table>(rows: &[T], params: Value, seed: u64) -> BTreeMap<String, Vec<u8>> {
    let io = MemoryIo::new().unwrap().with_rows("rows", rows).unwrap();
    io.run(&operator(params), seed).unwrap();
    let names = io.written_names("dataset");
    names.into_iter().map(|name| (name.clone(), io.written("dataset", &name).unwrap())).collect()
}

fn batches(file: &[u8]) -> Vec<RecordBatch> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(bytes(file)).unwrap();
    builder.build().unwrap().map(Result::unwrap).collect()
}

fn bytes(file: &[u8]) -> std::fs::File {
    let mut copy = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut copy, file).unwrap();
    copy
}

/// The rows of a split, shard by shard.
fn rows<T: Table>(files: &BTreeMap<String, Vec<u8>>, split: &str) -> Vec<T> {
    let shards = files.iter().filter(|(name, _)| name.starts_with(&format!("data/{split}-")));
    shards.flat_map(|(_, file)| batches(file)).flat_map(|batch| decode::<T>(&batch).unwrap()).collect()
}

fn manifest(files: &BTreeMap<String, Vec<u8>>) -> Value {
    serde_json::from_slice(&files["manifest.json"]).unwrap()
}

fn names(files: &BTreeMap<String, Vec<u8>>) -> Vec<&str> {
    files.keys().map(String::as_str).collect()
}

fn tasks(rows: &[Trajectory]) -> BTreeSet<String> {
    rows.iter().map(|row| row.task_id.clone().unwrap_or_else(|| row.trajectory_id.clone())).collect()
}

/// 900 rows of 300 tasks and 100 rows without one.
fn many() -> Vec<Trajectory> {
    (0..1000).map(|id| trajectory(id, (id < 900).then_some(id % 300), &format!("answer {id}"))).collect()
}

#[test]
fn every_row_is_in_one_split_and_no_task_in_two() {
    let all = many();
    let files = publish(&all, json!({"validation": 0.2}), 7);
    let parts = ["README.md", "data/train-00000-of-00001.parquet", "data/validation-00000-of-00001.parquet"];
    assert_eq!(names(&files), [&parts[..], &["manifest.json"]].concat());
    let (train, validation) = (rows::<Trajectory>(&files, "train"), rows::<Trajectory>(&files, "validation"));
    assert!(tasks(&train).is_disjoint(&tasks(&validation)));
    let held_out = tasks(&validation).len();
    assert!((50..=110).contains(&held_out), "{held_out} of 400 groups, 80 expected");
    // Not a number is not equal to itself, so the rows are compared as text.
    let text = |rows: &[Trajectory]| rows.iter().map(|row| format!("{row:?}")).collect::<BTreeSet<_>>();
    assert_eq!(text(&[train, validation].concat()), text(&all));
    // Another pipeline seed splits otherwise.
    let again = publish(&all, json!({"validation": 0.2}), 8);
    assert_ne!(tasks(&rows(&again, "validation")), tasks(&rows(&files, "validation")));
}

#[test]
fn equal_rows_give_equal_files() {
    let params = json!({"validation": 0.3, "license": "cc-by-4.0"});
    let (first, second) = (publish(&many(), params.clone(), 1), publish(&many(), params, 1));
    assert_eq!(names(&first), names(&second));
    for (name, content) in &first {
        assert!(second[name] == *content, "{name} differs");
    }
}

#[test]
fn a_larger_share_takes_nothing_back() {
    let held_out = |share: f64| tasks(&rows(&publish(&many(), json!({"validation": share}), 7), "validation"));
    assert!(held_out(0.1).is_subset(&held_out(0.4)));
}

#[test]
fn without_validation_there_is_no_such_split() {
    let files = publish(&many(), json!({}), 7);
    assert_eq!(names(&files), ["README.md", "data/train-00000-of-00001.parquet", "manifest.json"]);
    let order: Vec<String> = rows::<Trajectory>(&files, "train").into_iter().map(|row| row.trajectory_id).collect();
    assert_eq!(order, many().into_iter().map(|row| row.trajectory_id).collect::<Vec<_>>(), "in the order read");
    assert!(!String::from_utf8_lossy(&files["README.md"]).contains("validation"));
}

#[test]
fn an_empty_table_is_a_data_set_without_rows() {
    let files = publish::<Trajectory>(&[], json!({"validation": 0.5}), 7);
    assert_eq!(names(&files), ["README.md", "data/train-00000-of-00001.parquet", "manifest.json"]);
    assert!(rows::<Trajectory>(&files, "train").is_empty());
    assert_eq!((&manifest(&files)["rows"], &manifest(&files)["splits"][0]["rows"]), (&json!(0), &json!(0)));
    let schema = ParquetRecordBatchReaderBuilder::try_new(bytes(&files["data/train-00000-of-00001.parquet"])).unwrap();
    assert_eq!(schema.schema().fields().len(), TableDef::of::<Trajectory>().schema().fields().len());
}

#[test]
fn a_split_without_rows_is_left_out() {
    for (share, split, other) in [(1e-9, "train", "validation"), (1.0 - 1e-9, "validation", "train")] {
        let files = publish(&[trajectory(0, Some(0), "x")], json!({"validation": share}), 7);
        assert_eq!(rows::<Trajectory>(&files, split).len(), 1);
        assert_eq!(files.len(), 3, "{:?}", names(&files));
        assert!(!String::from_utf8_lossy(&files["README.md"]).contains(&format!("data/{other}")));
    }
}

#[test]
fn the_manifest_accounts_for_every_file_and_row() {
    let files = publish(&many(), json!({"validation": 0.2}), 7);
    let manifest = manifest(&files);
    let listed = manifest["files"].as_array().unwrap();
    assert_eq!(listed.len(), files.len() - 1);
    let mut total = 0;
    for file in listed {
        let content = &files[file["name"].as_str().unwrap()];
        assert_eq!(file["bytes"], content.len());
        assert_eq!(file["sha256"], shards::hexadecimal(&Sha256::digest(content)));
        if file["name"] != "README.md" {
            let rows: usize = batches(content).iter().map(RecordBatch::num_rows).sum();
            assert_eq!(file["rows"], rows);
            total += rows;
        }
    }
    assert_eq!((total, &manifest["rows"]), (1000, &json!(1000)));
    assert_eq!(manifest["input"]["table"], "trajectories");
    assert_eq!(manifest["input"]["units"][0]["rows"], 1000);
    assert_eq!(manifest["grouped_by"], json!(["task_id", "trajectory_id"]));
    assert_eq!((&manifest["seed"], &manifest["params"]["validation"]), (&json!(7), &json!(0.2)));
}

#[test]
fn shards_are_bounded() {
    // Text that hardly shrinks: hexadecimal digits of hashes.
    let noise = |id: usize| {
        (0..80).map(|part| shards::hexadecimal(&Sha256::digest(format!("{id} {part}")))).collect::<String>()
    };
    let all: Vec<Trajectory> = (0..400).map(|id| trajectory(id, Some(id), &noise(id))).collect();
    let limit = 200_000;
    let files = publish(&all, json!({"validation": 0.1, "max_shard_bytes": limit}), 7);
    let train: Vec<&String> = files.keys().filter(|name| name.starts_with("data/train-")).collect();
    assert!(train.len() > 5, "{train:?}");
    for (number, name) in train.iter().enumerate() {
        assert_eq!(**name, format!("data/train-{number:05}-of-{:05}.parquet", train.len()));
        assert!(files[*name].len() < limit + 20_000, "{name}: {} bytes", files[*name].len());
    }
    assert_eq!(rows::<Trajectory>(&files, "train").len() + rows::<Trajectory>(&files, "validation").len(), 400);
}

#[test]
fn json_is_plain_text_to_every_reader() {
    let files = publish(&many(), json!({}), 7);
    let builder = ParquetRecordBatchReaderBuilder::try_new(bytes(&files["data/train-00000-of-00001.parquet"])).unwrap();
    assert!(!format!("{:?}", builder.schema()).contains("arrow.json"));
    assert!(!format!("{:?}", builder.parquet_schema()).to_lowercase().contains("json"));
    let first = rows::<Trajectory>(&files, "train").remove(0);
    assert_eq!(first.segments[0].arguments.as_deref(), Some(r#"{"query": "Laos", "deep": [1.5, null]}"#));
}

#[test]
fn the_card_says_what_the_folder_holds() {
    let params = json!({"validation": 0.2, "pretty_name": "Team: \"runs\"", "license": "apache-2.0", "config": "sft"});
    let files = publish(&many(), params, 7);
    let card = String::from_utf8(files["README.md"].clone()).unwrap();
    let train = rows::<Trajectory>(&files, "train").len();
    for part in [
        "---\npretty_name: \"Team: \\\"runs\\\"\"\nlicense: \"apache-2.0\"\nsize_categories:\n- \"1K<n<10K\"\nconfigs:\n\
         - config_name: \"sft\"\n  data_files:\n  - split: \"train\"\n    path: \"data/train-*\"\n  - split: \"validation\"\n",
        "  - name: \"golden_answers\"\n    list: \"string\"\n",
        "  - name: \"segments\"\n    list:\n    - name: \"role\"\n      dtype: \"string\"\n",
        &format!("    num_examples: {train}\n"),
    ] {
        assert!(card.contains(part), "{part}\nis not in\n{card}");
    }
}

#[test]
fn a_group_can_be_named_and_must_be_a_text_column() {
    let files = publish(&many(), json!({"validation": 0.2, "group": "trajectory_id"}), 7);
    let held_out = rows::<Trajectory>(&files, "validation").len();
    assert!((140..=260).contains(&held_out), "{held_out} of 1,000 rows");
    let io = MemoryIo::new().unwrap().with_rows("rows", &many()).unwrap();
    let error = io.run(&operator(json!({"validation": 0.2, "group": "weight"})), 7).unwrap_err();
    assert!(error.message.contains("no text column `weight`"), "{error}");
    assert!(error.hint.unwrap().contains("`task_id`"));
}

#[test]
fn a_table_without_ids_can_be_published_whole_only() {
    let io = MemoryIo::new().unwrap().with_rows::<TrainingStep>("rows", &[]).unwrap();
    io.run(&operator(json!({})), 7).unwrap();
    let error = io.run(&operator(json!({"validation": 0.2})), 7).unwrap_err();
    assert!(error.message.contains("neither task nor id"), "{error}");
}

#[test]
fn parameters_out_of_range_are_refused() {
    for (params, key) in [
        (json!({"validation": 1.0}), "validation"),
        (json!({"max_shard_bytes": 1000}), "max_shard_bytes"),
        (json!({"license": "my own\nlicence"}), "license"),
        (json!({"config": "../up"}), "config"),
        (json!({"pretty_name": " "}), "pretty_name"),
    ] {
        let error = Publish::new(serde_json::from_value(params).unwrap()).err().expect("refused");
        assert_eq!(error.key, Some(key), "{}", error.message);
    }
}

#[test]
fn it_stops_when_asked_to() {
    let io = MemoryIo::new().unwrap().with_rows("rows", &many()).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(true);
    let error = io.run_watched(&operator(json!({})), 7, &crate::NoProgress, &stop).unwrap_err();
    assert_eq!(error.kind, crate::ErrorKind::Interrupted);
    assert!(io.written_names("dataset").is_empty());
}
