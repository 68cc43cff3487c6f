//! Log lines as JSON.

use serde_json::Value;

use super::sources;
use crate::coa::{Place, filters};

/// Every line of stderr as an object.
fn parsed(err: &str) -> Vec<Value> {
    let lines: Vec<Value> =
        err.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect();
    for line in &lines {
        for field in ["timestamp", "level", "target", "message"] {
            assert!(line[field].is_string(), "{field} is missing: {line}");
        }
    }
    lines
}

#[test]
fn every_line_of_stderr_is_an_object() {
    let place = Place::new();
    sources(&place, 2, 10);
    // No gzip: its unit fails.
    place.write("raw/broken.jsonl.gz", "this is no gzip");
    place.write("p.toml", filters("raw/*", 5));
    let said = place.coa(&["--log-format", "json", "--log", "debug", "run", "p.toml"]);
    assert_eq!(said.code, 1, "{}", said.err);
    let lines = parsed(&said.err);
    let begun = lines.iter().find(|line| line["message"].as_str().unwrap().starts_with("run 1 of `filters`")).unwrap();
    assert_eq!((&begun["level"], &begun["run"], &begun["target"]), (&"INFO".into(), &1.into(), &"coa".into()));
    let failed = lines.iter().filter(|line| line["level"] == "ERROR" && line["target"] == "coa");
    let messages: Vec<&str> = failed.map(|line| line["message"].as_str().unwrap()).collect();
    assert!(messages.iter().any(|text| text.starts_with("ingest/")), "the unit's error is told: {messages:?}");
    assert!(messages.iter().any(|text| text.contains("units failed")), "and the run's: {messages:?}");
    // What happens within a unit says which one.
    let within: Vec<&Value> = lines.iter().filter(|line| line["stage"] == "convert" && line["try"].is_i64()).collect();
    assert!(!within.is_empty(), "no line belongs to a unit of `convert`");
    let attempts = place.sql("store", "select attempt, partition, worker from attempts where stage = 'convert'");
    for line in within.iter().filter(|line| line["attempt"].is_string()) {
        assert_eq!(line["run"], 1, "{line}");
        let of = attempts.iter().find(|row| row["attempt"] == line["attempt"]).expect("the attempt is on record");
        assert_eq!((&of["partition"], &of["worker"]), (&line["partition"], &line["worker"]), "{line}");
    }
}

#[test]
fn by_variable_and_where_nothing_else_is_logged() {
    let mut place = Place::new();
    sources(&place, 1, 3);
    place.write("p.toml", filters("raw/*.jsonl", 5));
    place.set("COA_LOG_FORMAT", "json");
    let lines = parsed(&place.coa(&["run", "p.toml"]).ok().err);
    let messages: Vec<&str> = lines.iter().map(|line| line["message"].as_str().unwrap()).collect();
    assert!(messages[0].starts_with("run 1 of"), "{messages:?}");
    assert!(messages.last().unwrap().starts_with("done: 3 units"), "{messages:?}");
    assert_eq!(lines.len(), 5, "one for the run's begin and end, one a stage: {messages:?}");
    let wrong = parsed(&place.coa(&["run", "no.toml"]).err);
    assert_eq!(wrong[0]["level"], "ERROR");
    assert_eq!(wrong[0]["message"], "there is no file `no.toml`");
    place.coa(&["--log-format", "xml", "run", "p.toml"]).fails(2, &["xml", "text", "json"]);
}
