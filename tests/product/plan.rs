//! `coa plan`: what would run and why; only what changed runs again.

use serde_json::Value;

use crate::coa::{Place, filters, record};

/// Stage, state and reason of every unit.
fn plan(place: &Place, more: &[&str]) -> Vec<(String, String, String)> {
    let arguments: Vec<&str> = ["plan", "p.toml", "--json"].into_iter().chain(more.iter().copied()).collect();
    let units: Vec<Value> = serde_json::from_str(&place.coa(&arguments).ok().out).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    units.iter().map(|unit| (text(&unit["stage"]), text(&unit["state"]), text(&unit["reason"]))).collect()
}

fn reasons(place: &Place) -> Vec<String> {
    plan(place, &[])
        .into_iter()
        .map(|(stage, state, reason)| format!("{stage} {state} {reason}").trim().to_owned())
        .collect()
}

fn demo() -> Place {
    let place = Place::new();
    place.write("in/a.jsonl", format!("{}\n{}\n", record("a1", 4), record("a2", 6)));
    place.write("p.toml", filters("in/*.jsonl", 5));
    place
}

#[test]
fn what_runs_and_why() {
    let place = demo();
    assert_eq!(reasons(&place), ["ingest run new", "convert run after `ingest`", "complexity run after `convert`"]);
    place.coa(&["run", "p.toml", "-q"]).ok();
    assert_eq!(reasons(&place), ["ingest done", "convert done", "complexity done"]);

    // A comment changes nothing; a parameter re-runs its stage and what depends on it.
    place.write("p.toml", format!("# a comment\n{}", filters("in/*.jsonl", 5)));
    assert_eq!(reasons(&place), ["ingest done", "convert done", "complexity done"]);
    place.write("p.toml", filters("in/*.jsonl", 6));
    assert_eq!(
        reasons(&place),
        ["ingest done", "convert done", "complexity run parameters changed: min_interactions 5 -> 6"]
    );
    place.write(
        "p.toml",
        filters("in/*.jsonl", 6).replace("format = \"oagents\"", "format = \"oagents\", domain = \"math\""),
    );
    assert_eq!(
        reasons(&place),
        [
            "ingest run parameters changed: domain \"qa\" -> \"math\"",
            "convert run after `ingest`",
            "complexity run after `convert`"
        ]
    );

    // A source that changed is noticed, one that is added makes units of its own.
    place.write("p.toml", filters("in/*.jsonl", 5));
    place.write("in/a.jsonl", format!("{}\n{}\n", record("a1", 4), record("a3", 6)));
    place.write("in/b.jsonl", format!("{}\n", record("b1", 9)));
    assert_eq!(reasons(&place)[..2], ["ingest run inputs changed", "ingest run new"]);
    place.coa(&["run", "p.toml", "-q"]).ok();
    let kept = place.sql("store", "select task_id from complexity.kept order by task_id");
    assert_eq!(kept.iter().map(|row| row["task_id"].as_str().unwrap()).collect::<Vec<_>>(), ["a3", "b1"]);
}

#[test]
fn a_change_that_makes_no_difference_stops_there() {
    let place = demo();
    place.coa(&["run", "p.toml", "-q"]).ok();
    // The bytes change, what is read from them does not: a blank line at the end.
    place.write("in/a.jsonl", format!("{}\n{}\n\n", record("a1", 4), record("a2", 6)));
    let said = place.coa(&["run", "p.toml"]).ok();
    assert!(said.err.contains("done: 1 units"), "only ingest runs again:\n{}", said.err);
}

#[test]
fn stages_can_be_selected() {
    let place = demo();
    place
        .coa(&["run", "p.toml", "--select", "complexity"])
        .fails(2, &["reads from `convert`, which is not done", "--select +complexity"]);
    place.coa(&["run", "p.toml", "--select", "convrt"]).fails(2, &["no stage `convrt`: did you mean `convert`?"]);
    place.coa(&["run", "p.toml", "-q", "--select", "+convert"]).ok();
    assert_eq!(reasons(&place), ["ingest done", "convert done", "complexity run new"]);
    place.coa(&["run", "p.toml", "-q", "--select", "complexity"]).ok();
    let forced = plan(&place, &["--select", "convert+", "--force"]);
    let forced: Vec<(&str, &str)> = forced.iter().map(|(stage, state, _)| (stage.as_str(), state.as_str())).collect();
    assert_eq!(forced, [("convert", "run"), ("complexity", "run")]);
    let said = place.coa(&["run", "p.toml", "--select", "convert+", "--force"]).ok();
    assert!(said.err.contains("done: 2 units"), "{}", said.err);
    assert_eq!(place.number("store", "select count(*) from complexity.kept"), 1);
}

#[test]
fn a_store_belongs_to_one_pipeline() {
    let place = demo();
    place.coa(&["run", "p.toml", "-q"]).ok();
    place.write("other.toml", filters("in/*.jsonl", 5).replace("name = \"filters\"", "name = \"other\""));
    place.coa(&["run", "other.toml"]).fails(1, &["belongs to the pipeline `filters`, not to `other`", "hint: "]);
}

#[test]
fn the_queue_may_be_lost() {
    let place = demo();
    place.coa(&["run", "p.toml", "-q"]).ok();
    std::fs::remove_dir_all(place.path("store/queue")).unwrap();
    assert_eq!(reasons(&place), ["ingest done", "convert done", "complexity done"]);
    let said = place.coa(&["run", "p.toml"]).ok();
    assert!(said.err.contains("done: 0 units"), "{}", said.err);
    assert_eq!(place.number("store", "select count(*) from complexity.kept"), 1);
}

#[test]
fn a_failed_unit_is_told_with_its_reason_and_tried_again() {
    let place = demo();
    // A page that is cut in the middle of its compressed stream.
    place.write("in/b.jsonl.gz", [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xab, 0x56]);
    place.write("p.toml", filters("in/*", 5));
    let said = place
        .coa(&["run", "p.toml"])
        .fails(1, &["cannot be read on", "hint: the object is cut or damaged", "coa resume --store store"]);
    assert!(said.err.contains("1 of 6 units failed, 2 were not tried"), "{}", said.err);
    let failed: Vec<String> = reasons(&place).into_iter().filter(|line| line.contains("failed: ")).collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    // The partition that is done is shown, whole; the one that failed is not, in no part.
    assert_eq!(place.number("store", "select count(*) from ingest.traces where partition = 'a.jsonl'"), 2);
    assert_eq!(place.number("store", "select count(*) from ingest.traces"), 2);
    let attempts =
        place.sql("store", "select outcome, error_kind from attempts where stage = 'ingest' order by outcome");
    assert_eq!(attempts.len(), 2);
    assert_eq!((&attempts[1]["outcome"], &attempts[1]["error_kind"]), (&"failed".into(), &"input".into()));
    std::fs::remove_file(place.path("in/b.jsonl.gz")).unwrap();
    place.coa(&["run", "p.toml", "-q"]).ok();
    assert_eq!(place.number("store", "select count(*) from ingest.traces"), 2);
}
