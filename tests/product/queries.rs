//! `coa sql`, `coa show`, `coa status`, `coa report`.

use crate::coa::{Place, filters, record};

fn demo() -> Place {
    let place = Place::new();
    let bad = "{\"question\": \"torn";
    place.write("in/a.jsonl", format!("{}\n{}\n{bad}\n", record("a1", 4), record("a2", 6)));
    place.write("p.toml", filters("in/*.jsonl", 5));
    place.coa(&["run", "p.toml", "-q"]).ok();
    place
}

#[test]
fn tables_have_long_and_short_names_and_cannot_be_changed() {
    let place = demo();
    let number = |query: &str| place.number("store", query);
    assert_eq!(number("select count(*) from complexity.kept"), 1);
    assert_eq!(number("select count(*) from traces"), 2, "only one stage has a port of this name");
    assert_eq!(number("select count(*) from quarantine where code = 'truncated'"), 1);
    place.coa(&["sql", "select * from rejected", "--store", "store"]).fails(1, &["rejected"]);
    let rejected = place.sql("store", "select task_id, reason, detail from complexity.rejected");
    assert_eq!(rejected[0]["reason"], "too_few_interactions");
    assert_eq!(rejected[0]["detail"], "4 interactions, at least 5 wanted");
    for query in [
        "drop table complexity.kept",
        "insert into complexity.kept select * from complexity.kept",
        "create table x as select 1",
        "copy (select 1) to 'x.csv'",
        "set datafusion.execution.batch_size = 1",
    ] {
        place.coa(&["sql", query, "--store", "store"]).fails(1, &["error: "]);
    }
    assert_eq!(number("select count(*) from complexity.kept"), 1);
}

#[test]
fn the_system_tables() {
    let place = demo();
    let number = |query: &str| place.number("store", query);
    assert_eq!(number("select count(*) from runs where outcome = 'complete'"), 1);
    assert_eq!(number("select count(*) from stages"), 3);
    assert_eq!(number("select sum(rows_out) from units where stage = 'complexity' and current"), 2);
    assert_eq!(number("select count(*) from attempts where outcome = 'complete'"), 3);
    let settings = place.sql("store", "select params from stages where stage = 'complexity'");
    assert_eq!(settings[0]["params"], "{\"min_interactions\":5}");
}

#[test]
fn formats() {
    let place = demo();
    let query = "select task_id, interactions from trajectories order by task_id";
    let csv = place.coa(&["sql", query, "--store", "store", "--format", "csv"]).ok().out;
    assert_eq!(csv, "task_id,interactions\na1,4\na2,6\n");
    let json = place.coa(&["sql", query, "--store", "store", "--format", "json"]).ok().out;
    assert_eq!(json.trim(), r#"[{"task_id":"a1","interactions":4},{"task_id":"a2","interactions":6}]"#);
    let table = place.coa(&["sql", query, "--store", "store"]).ok().out;
    assert!(table.contains("| a1      | 4            |"), "{table}");
    let none = place.coa(&["sql", "select 1 as one where false", "--store", "store", "--format", "json"]).ok().out;
    assert_eq!(none, "[]\n");
    place.coa(&["sql", "select nothing from traces", "--store", "store"]).fails(1, &["nothing"]);
}

#[test]
fn a_trajectory_as_a_person_reads_it() {
    let place = demo();
    let id = place.sql("store", "select trajectory_id from complexity.kept")[0]["trajectory_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let shown = place.coa(&["show", "trajectory", &id[..8], "--store", "store"]).ok().out;
    for line in
        ["What is a2?", "accepted: a", "| web_search", "|   a2 1", ": observation", ":   page 1 of a2", "| answer"]
    {
        assert!(shown.lines().any(|shown| shown == line), "{line:?} is not in:\n{shown}");
    }
    assert!(!shown.contains('\u{1b}'), "no colours without a terminal");
    place.coa(&["show", "trajectory", "zzz", "--store", "store"]).fails(2, &["no trajectory or rollout"]);
}

#[test]
fn status_and_report() {
    let place = demo();
    let status = place.coa(&["status", "--store", "store"]).ok().out;
    assert!(status.contains("complexity_filter") && status.contains("kept 1, rejected 1"), "{status}");
    let report = place.coa(&["report", "--store", "store"]).ok().out;
    assert!(report.contains("rejected by complexity: too_few_interactions 1"), "{report}");
    place.coa(&["status", "77", "--store", "store"]).fails(2, &["no run 77"]);
}
