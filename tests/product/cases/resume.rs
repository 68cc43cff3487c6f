//! What a run that goes on takes over, and what it does again.

use std::process::Stdio;

use serde_json::Value;

use super::{ingested, lines, strings};
use crate::coa::{Place, filters, shared};

/// Runs that failed are not done: what is to be tried again follows from success, not from being there. Collecting and
/// removing doubles are no stages of this product; conversion passes on the runs that ended well, each once.
#[test]
fn c41_failed_runs_are_not_done() {
    let Some(case) = shared("cases/C41") else { return };
    let place = ingested(&case, 5);
    let tasks: Vec<String> = lines(&case.join("tasks.jsonl"))
        .iter()
        .map(|task| format!("('{}')", task["task_id"].as_str().unwrap()))
        .collect();
    let tasks = format!("(select column1 as task from (values {}))", tasks.join(", "));
    let again =
        format!("select task from {tasks} where task not in (select task_id from convert.trajectories) order by task");
    assert_eq!(strings(&place.sql("store", &again), "task"), ["res-2", "res-5"]);
    let rows = place.sql(
        "store",
        "select c.task_id, answer, line from convert.trajectories c \
        join ingest.traces t on t.trace_id = c.trajectory_id order by 1",
    );
    let found: Vec<(&str, &str, i64)> = rows
        .iter()
        .map(|row| (row["task_id"].as_str().unwrap(), row["answer"].as_str().unwrap(), row["line"].as_i64().unwrap()))
        .collect();
    assert_eq!(
        found,
        [("res-1", "7", 1), ("res-3", "7", 4), ("res-4", "7", 5)],
        "neither the first nor the last, the good one"
    );
    let rejected = place.sql("store", "select task_id, reason, detail from convert.rejected order by task_id");
    assert_eq!(strings(&rejected, "task_id"), ["res-2", "res-3", "res-4"]);
    assert_eq!(strings(&rejected, "reason"), ["agent_error"; 3]);
    assert!(rejected[0]["detail"].as_str().unwrap().contains("timeout after 180s"), "{}", rejected[0]);
    let state = format!(
        "select count(*) as n, case when c.task_id is not null then 'done' when t.task_id is not null then 'failed' \
         else 'not started' end as state from {tasks} \
         left join convert.trajectories c on c.task_id = task \
         left join (select distinct task_id from ingest.traces) t on t.task_id = task group by 2 order by 2"
    );
    let states = place.sql("store", &state);
    let states: Vec<(i64, &str)> =
        states.iter().map(|row| (row["n"].as_i64().unwrap(), row["state"].as_str().unwrap())).collect();
    assert_eq!(states, [(3, "done"), (1, "failed"), (1, "not started")]);
}

/// The case's pipeline: filters and tokens.
fn with_tokens(min_interactions: u32) -> String {
    let rest = r#"
[stages.tokenizer]
operator = "train_tokenizer"
inputs = { rows = "convert.trajectories" }
params = { vocabulary = 300 }
[stages.tokens]
operator = "tokenize"
inputs = { rows = "complexity.kept", tokenizer = "tokenizer.tokenizer" }
"#;
    format!("{}{rest}", filters("in/*", min_interactions))
}

/// Killed while tokens are made, then gone on with under another setting: no table mixes both.
#[test]
fn c43_edited_after_a_kill() {
    let Some(case) = shared("cases/C43") else { return };
    let place = Place::new();
    place.write("in/traces.jsonl", std::fs::read(case.join("in/traces.jsonl")).unwrap());
    place.write("p.toml", with_tokens(5));
    let mut command = place.command(&["run", "p.toml", "-q"]);
    let mut run = command.stderr(Stdio::null()).spawn().unwrap();
    let begun = place.path("store/attempts/tokens");
    while !begun.exists() && run.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    let _ = run.kill();
    run.wait().unwrap();
    assert!(begun.exists());
    let rows = place.sql("store", "select rows_by_port from units where stage = 'complexity'");
    assert!(rows.len() == 1 && rows[0]["rows_by_port"].as_str().unwrap().contains("\"kept\":5"), "{rows:?}");
    place.write("p.toml", with_tokens(6));
    let units: Value = serde_json::from_str(&place.coa(&["plan", "p.toml", "--json"]).ok().out).unwrap();
    let reason = |stage: &str| {
        let unit = units.as_array().unwrap().iter().find(|unit| unit["stage"] == stage).unwrap();
        format!("{} {}", unit["state"].as_str().unwrap(), unit["reason"].as_str().unwrap_or_default())
    };
    assert_eq!(reason("ingest"), "done ");
    assert_eq!(reason("convert"), "done ");
    assert_eq!(reason("complexity"), "run parameters changed: min_interactions 5 -> 6");
    assert_eq!(reason("tokens"), "run after `complexity`");
    place.coa(&["run", "p.toml", "-q"]).ok();
    assert_eq!(place.number("store", "select count(*) from complexity.kept"), 4);
    let tokens = place.sql("store", "select sample_id from tokens.tokens order by 1");
    let kept = place.sql("store", "select trajectory_id as sample_id from complexity.kept order by 1");
    assert_eq!((tokens.len(), &tokens), (4, &kept), "tokens of what is kept now, and of nothing else");
    // Which run did what.
    let status: Value = serde_json::from_str(&place.coa(&["status", "--store", "store", "--json"]).ok().out).unwrap();
    let by: Vec<(&str, u64)> = status["stages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|stage| (stage["stage"].as_str().unwrap(), stage["units"][0]["run"].as_u64().unwrap()))
        .collect();
    assert_eq!(by, [("ingest", 1), ("convert", 1), ("complexity", 2), ("tokenizer", 1), ("tokens", 2)]);
    let said = place.coa(&["status", "--store", "store"]).ok().out;
    let told: Vec<&str> =
        said.lines().map(str::trim).filter(|line| line.starts_with("re") || line.starts_with("run again")).collect();
    let changed = "run again: parameters changed: min_interactions 5 -> 6";
    let reused = "reused from run 1";
    // Of the run that was killed, tokens were never done.
    assert_eq!(told, [reused, reused, changed, reused], "{said}");
    assert!(said.contains("run as new"), "{said}");
    let said = place.coa(&["run", "p.toml", "--jobs", "16"]).ok();
    assert!(said.err.contains("done: 0 units"), "the number of workers is neutral:\n{}", said.err);
}

/// Settings that changed between a run and its continuation.
#[test]
fn c43_edited_settings() {
    let Some(case) = shared("cases/C43") else { return };
    let place = Place::new();
    let copy = |from: &str| {
        for entry in std::fs::read_dir(case.join(from)).unwrap() {
            let entry = entry.unwrap();
            place.write(&format!("in/{}", entry.file_name().to_string_lossy()), std::fs::read(entry.path()).unwrap());
        }
    };
    copy("in");
    place.write("p.toml", filters("in/*", 5));
    place.coa(&["run", "p.toml", "-q"]).ok();
    assert_eq!(place.number("store", "select count(*) from complexity.kept"), 5);
    place.write("p.toml", filters("in/*", 6));
    let said = place.coa(&["run", "p.toml"]).ok();
    assert!(said.err.contains("done: 1 units"), "ingestion and conversion are reused:\n{}", said.err);
    assert_eq!(place.number("store", "select count(*) from complexity.kept"), 4, "no rows of both versions");
    let said = place.coa(&["run", "p.toml", "--jobs", "16"]).ok();
    assert!(said.err.contains("done: 0 units"), "the number of workers is neutral:\n{}", said.err);
    copy("in_added");
    place.coa(&["run", "p.toml", "-q"]).ok();
    assert_eq!(place.number("store", "select count(*) from complexity.kept"), 5, "the added object is noticed");
    let path = place.path("in/traces.jsonl");
    let same_size = std::fs::read_to_string(&path).unwrap().replace("Next I look", "Then I look");
    std::fs::write(&path, same_size).unwrap();
    place.coa(&["run", "p.toml", "-q"]).ok();
    let changed =
        "select count(*) from (select unnest(segments) as s from complexity.kept) where s['text'] like 'Then I look%'";
    assert!(place.number("store", changed) > 0, "overwritten content of the same size is noticed");
}
