//! `coa backfill`: some partitions, what was never done, what failed.

use crate::coa::{Place, Said, filters, record};

/// Three days of one record each.
fn days() -> Place {
    let place = Place::new();
    for day in ["2026-01-01", "2026-01-02", "2026-01-03"] {
        place.write(&format!("in/{day}/a.jsonl"), format!("{}\n", record(&format!("{day}-a"), 6)));
    }
    place.write("p.toml", filters("in/{date:%Y-%m-%d}/*.jsonl", 5));
    place
}

fn backfill(place: &Place, more: &[&str]) -> Said {
    let arguments: Vec<&str> = ["backfill", "p.toml"].into_iter().chain(more.iter().copied()).collect();
    place.coa(&arguments).ok()
}

/// The tasks that a table shows.
fn tasks(place: &Place, table: &str) -> Vec<String> {
    let rows = place.sql("store", &format!("select task_id from {table} order by 1"));
    rows.iter().map(|row| row["task_id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_was_never_done() {
    let place = days();
    let said = backfill(&place, &["--partitions", "2026-01-01..2026-01-02"]);
    assert!(said.err.contains("done: 6 units"), "{}", said.err);
    assert_eq!(tasks(&place, "complexity.kept"), ["2026-01-01-a", "2026-01-02-a"]);

    // A finished day changes: it is due, but it is not missing. The new day is shown beside the old state of the other.
    place.write("in/2026-01-02/a.jsonl", format!("{}\n{}\n", record("2026-01-02-a", 6), record("2026-01-02-b", 6)));
    let said = backfill(&place, &["--missing"]);
    assert!(said.err.contains("done: 3 units"), "{}", said.err);
    let shown = ["2026-01-01-a", "2026-01-02-a", "2026-01-03-a"];
    for table in ["ingest.traces", "convert.trajectories", "complexity.kept"] {
        assert_eq!(tasks(&place, table), shown, "{table}");
    }
    let said = backfill(&place, &["--missing"]);
    assert!(said.err.contains("done: 0 units"), "{}", said.err);

    let said = backfill(&place, &[]);
    assert!(said.err.contains("done: 3 units"), "the day that changed: {}", said.err);
    let shown = ["2026-01-01-a", "2026-01-02-a", "2026-01-02-b", "2026-01-03-a"];
    assert_eq!(tasks(&place, "complexity.kept"), shown);
}

/// A limit on what may be quarantined judges what the backfill did, and lets what depends on it begin.
#[test]
fn a_limit_is_about_the_days_that_were_asked_for() {
    let place = days();
    let limited = filters("in/{date:%Y-%m-%d}/*.jsonl", 5)
        .replace("operator = \"ingest_traces\"", "operator = \"ingest_traces\"\nmax_bad_ratio = 0.5");
    place.write("p.toml", limited);
    backfill(&place, &["--partitions", "2026-01-01"]);
    place.write("in/2026-01-01/a.jsonl", "{\n{\n{\n");
    backfill(&place, &["--missing"]);
    assert_eq!(tasks(&place, "complexity.kept"), ["2026-01-01-a", "2026-01-02-a", "2026-01-03-a"]);
    let arguments = ["backfill", "p.toml", "--partitions", "2026-01-01"];
    place.coa(&arguments).fails(1, &["3 of 3 records were quarantined"]);
}

#[test]
fn what_failed() {
    let place = days();
    place.write("p.toml", filters("in/{date:%Y-%m-%d}/*", 5));
    let cut = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xab, 0x56];
    let damaged = place.write("in/2026-01-02/b.jsonl.gz", cut);
    place.coa(&["backfill", "p.toml", "--partitions", "2026-01-01..2026-01-02"]).fails(1, &["1 of 6 units failed"]);
    assert_eq!(tasks(&place, "complexity.kept"), ["2026-01-01-a"]);

    // Tried again for the same reason, and only that: the third day was never done and is not asked for.
    place.coa(&["backfill", "p.toml", "--failed"]).fails(1, &["1 of 3 units failed, 2 were not tried"]);
    std::fs::remove_file(damaged).unwrap();
    backfill(&place, &[]);
    assert_eq!(tasks(&place, "complexity.kept"), ["2026-01-01-a", "2026-01-02-a", "2026-01-03-a"]);
}
