//! A store that an older version of this product wrote: everything in it is read, and new work is not mixed into it unseen.
//!
//! It lies in `tests/product/old` with its pipeline, its source, and its rows as they were read then. Its unit records say
//! nothing of what a unit read, its table of rejected rows has no column for places in sources, and `ingest_traces` was at
//! version 1.

use std::path::Path;

use serde_json::{Map, Value};

use crate::coa::{Place, checkout, record, tables};

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        if path.is_dir() { copy(&path, &to.join(name)) } else { _ = std::fs::copy(&path, to.join(name)).unwrap() }
    }
}

fn old() -> Place {
    let place = Place::new();
    copy(&checkout().join("tests/product/old"), &place.path("."));
    place
}

/// The operator's version today.
fn today(operator: &str) -> u32 {
    jobs::registry().into_iter().find(|factory| factory.name() == operator).expect("it is registered").version()
}

/// A record with a field that the pipeline's condition looks at.
fn weighed(task: &str, n: u32) -> String {
    record(task, 2).replacen('{', &format!("{{\"n\": {n}, "), 1)
}

#[test]
fn an_old_store_is_read() {
    let place = old();
    let rows: Map<String, Value> = serde_json::from_slice(&std::fs::read(place.path("rows.json")).unwrap()).unwrap();
    let found = tables(&place, "store");
    assert_eq!(found.keys().collect::<Vec<_>>(), rows.keys().collect::<Vec<_>>());
    for (name, expected) in &rows {
        let mut expected: Vec<String> = expected.as_array().unwrap().iter().map(Value::to_string).collect();
        expected.sort();
        assert_eq!(found[name], expected, "{name}");
    }
    assert_eq!(place.number("store", "select count(*) from ingest.steps@v0"), 0);

    let status: Value = serde_json::from_str(&place.coa(&["status", "--store", "store", "--json"]).ok().out).unwrap();
    assert_eq!((&status["run"], &status["pipeline"]), (&1.into(), &"old".into()));
    assert_eq!(status["end"]["outcome"], "complete");
    let stages: Vec<String> =
        status["stages"].as_array().unwrap().iter().map(|s| format!("{} {}", s["stage"], s["done"])).collect();
    assert_eq!(stages, ["\"ingest\" 1", "\"convert\" 1"]);
    let runs = place.sql("store", "select run, outcome, seed from runs");
    assert_eq!(runs, [serde_json::json!({"run": 1, "outcome": "complete", "seed": 0})]);
    place.coa(&["report", "--store", "store"]).ok();

    let said = place.coa(&["lineage", "convert.trajectories", "--store", "store"]).ok();
    for words in ["by convert_coa v1", "by ingest_traces v1", "what it read is not recorded", "source in/*"] {
        assert!(said.out.contains(words), "{words} is not in\n{}", said.out);
    }
}

#[test]
fn old_work_is_not_mixed_with_new() {
    let place = old();
    let plan = |place: &Place| -> Vec<String> {
        let units: Vec<Value> = serde_json::from_str(&place.coa(&["plan", "p.toml", "--json"]).ok().out).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        units
            .iter()
            .map(|unit| format!("{} {} {}", text(&unit["stage"]), text(&unit["state"]), text(&unit["reason"])))
            .collect()
    };
    let now = today("ingest_traces");
    assert!(now > 1);
    let expected =
        [format!("ingest run operator version changed: 1 -> {now}"), "convert run after `ingest`".to_owned()];
    assert_eq!(plan(&place), expected);

    // One further partition: the old one stands beside it, and what is of which version is told.
    place.write("in/b.jsonl", format!("{}\n{}\n", weighed("b1", 1), weighed("b2", 0)));
    place.coa(&["backfill", "p.toml", "-q", "--partitions", "b.jsonl"]).ok();
    let versions =
        "select partition, operator_version from units where current and stage = 'ingest' order by partition";
    let row = |partition: &str, version: u32| serde_json::json!({"partition": partition, "operator_version": version});
    assert_eq!(place.sql("store", versions), [row("a.jsonl", 1), row("b.jsonl", now)]);
    let status = place.coa(&["status", "--store", "store"]).ok().out;
    assert!(status.contains("1 shown as they were before"), "{status}");
    let said = place.coa(&["lineage", "ingest.traces", "--store", "store"]).ok().out;
    assert!(said.contains("by ingest_traces v1,") && said.contains(&format!("by ingest_traces v{now},")), "{said}");

    // Columns that were added since are null in the rows of before.
    let places = place.sql("store", "select task_id, line, byte_offset from ingest.rejected order by partition");
    let offset = weighed("b1", 1).len() + 1;
    assert_eq!(
        places,
        [
            serde_json::json!({"task_id": "a3", "line": null, "byte_offset": null}),
            serde_json::json!({"task_id": "b2", "line": 2, "byte_offset": offset})
        ]
    );

    // A run does the old partition again, and the version of before still has its rows.
    place.coa(&["run", "p.toml", "-q"]).ok();
    assert_eq!(place.sql("store", versions), [row("a.jsonl", now), row("b.jsonl", now)]);
    assert_eq!(place.number("store", "select count(line) from ingest.rejected"), 2);
    assert_eq!(place.number("store", "select count(*) from convert.trajectories"), 3);
    assert_eq!(place.number("store", "select count(*) from convert.trajectories@v1"), 2);
    assert_eq!(plan(&place), ["ingest done ", "ingest done ", "convert done ", "convert done "]);
}
