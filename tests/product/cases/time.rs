//! Times in many forms.

use super::{as_runs, ingest, strings};
use crate::coa::{Place, Said, shared};

/// Civil time, offsets, seconds and milliseconds in one column.
#[test]
fn c47_one_column_of_times() {
    let Some(case) = shared("cases/C47") else { return };
    let place = Place::new();
    place.write("in/times.jsonl", as_runs(&std::fs::read(case.join("in/times.jsonl")).unwrap(), &[]));
    place.write("p.toml", ingest("in/*.jsonl", "naive_timezone = \"Asia/Shanghai\""));
    let query = "select task_id, started_at, arrow_typeof(started_at) as kind, array_to_string(unread, ';') as unread \
                 from ingest.traces order by line";
    let mut found = Vec::new();
    for (zone, store) in [("UTC", "utc"), ("America/New_York", "new-york")] {
        let mut command = place.command(&["run", "p.toml", "-q", "--store", store]);
        Said::from(command.env("TZ", zone).output().unwrap()).ok();
        let mut command = place.command(&["sql", query, "--store", store, "--format", "json"]);
        found.push(Said::from(command.env("TZ", zone).output().unwrap()).ok().out);
    }
    assert_eq!(found[0], found[1], "the machine's zone makes no difference");
    let rows = place.sql("utc", query);
    let started: Vec<(&str, Option<&str>)> =
        rows.iter().map(|row| (row["task_id"].as_str().unwrap(), row["started_at"].as_str())).collect();
    let two = Some("2025-08-01T02:00:00Z");
    let half = Some("2025-08-01T02:00:00.500Z");
    let expected = [
        ("ts-1", two),
        ("ts-2", half),
        ("ts-3", half),
        ("ts-4", two),
        ("ts-5", two),
        ("ts-6", None),
        ("ts-7", None),
        ("ts-8", None),
        ("ts-9", Some("2025-08-01T02:00:00.123456Z")),
        ("ts-10", None),
        ("ts-11", two),
    ];
    assert_eq!(started, expected);
    assert!(rows.iter().all(|row| row["kind"].as_str().unwrap().contains("UTC")), "{:?}", rows[0]["kind"]);
    let unread = strings(&rows, "unread");
    let told: Vec<usize> = (0..rows.len()).filter(|row| unread[*row] != "null").collect();
    assert_eq!(told, [7, 9], "ts-8 and ts-10, and nothing else: {unread:?}");
    assert!(unread[7].contains("01/08/2025 10:00") && unread[9].contains("\"0\""), "{unread:?}");
    let days =
        "select count(*) from ingest.traces where date_trunc('day', started_at) = timestamp '2025-08-01 00:00:00'";
    assert_eq!(place.number("utc", days), 7);
}

/// Without a zone the run asks for one, and assumes none.
#[test]
fn c47_the_zone_is_asked_for() {
    let Some(case) = shared("cases/C47") else { return };
    let place = Place::new();
    place.write("in/times.jsonl", as_runs(&std::fs::read(case.join("in/times.jsonl")).unwrap(), &[]));
    place.write("p.toml", ingest("in/*.jsonl", ""));
    let said = place.coa(&["run", "p.toml"]).ok();
    for words in ["times without zone were not read", "naive_timezone", "times=1"] {
        assert!(said.err.contains(words), "{words} is not in:\n{}", said.err);
    }
    let first = place.sql("store", "select started_at, unread from ingest.traces where task_id = 'ts-1'");
    assert!(first[0]["started_at"].is_null());
    assert!(first[0]["unread"].to_string().contains("naive_timezone"));
    assert_eq!(place.number("store", "select count(*) from ingest.traces where started_at is not null"), 6);

    place.write("p.toml", ingest("in/*.jsonl", "naive_timezone = \"Asia/Shanghia\""));
    place.coa(&["check", "p.toml"]).fails(2, &["p.toml:8:18", "no time zone: name one as Asia/Shanghai"]);
}
