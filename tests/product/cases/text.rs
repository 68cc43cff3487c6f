//! Bytes that are not quite the text they should be.

use super::{as_runs, ingested, strings};
use crate::coa::{Place, shared};

/// A byte-order mark, CR LF, empty and blank lines.
#[test]
fn c01_byte_order_mark_and_carriage_returns() {
    let Some(case) = shared("cases/C01") else { return };
    let place = ingested(&case, 1);
    let rows = place.sql("store", "select task_id, question, line from ingest.traces order by task_id");
    let found: Vec<(&str, i64)> =
        rows.iter().map(|row| (row["task_id"].as_str().unwrap(), row["line"].as_i64().unwrap())).collect();
    assert_eq!(found, [("harbor-1", 1), ("harbor-2", 2), ("harbor-3", 4)]);
    assert_eq!(place.number("store", "select count(*) from ingest.quarantine"), 0);
    assert_eq!(place.number("store", "select sum(position(chr(13) in question)) from ingest.traces"), 0);
    assert!(rows[1]["question"].as_str().unwrap().contains("Zürich –"));
}

/// Half a surrogate pair, left by a tool that cut its output. `answer` and `observations` stand in for the answers of the
/// layout. The policy: such a record is quarantined, alone, unless the repair is asked for; then the half becomes U+FFFD
/// and the row says so.
#[test]
fn c03_half_a_surrogate_pair() {
    let Some(case) = shared("cases/C03") else { return };
    let original = std::fs::read(case.join("in/surrogates.jsonl")).unwrap();
    let place = Place::new();
    place.write("in/a.jsonl", as_runs(&original, &[("observations", "prediction"), ("answer", "true_answer")]));
    place.write("p.toml", super::ingest("in/*.jsonl", ""));
    place.coa(&["run", "p.toml", "-q"]).ok();
    let kept = place.sql("store", "select task_id, prediction, line from ingest.traces order by line");
    assert_eq!(strings(&kept, "task_id"), ["sur-3", "sur-5"]);
    assert!(kept[0]["prediction"].as_str().unwrap().contains('\u{1f680}'));
    let bad = place.sql("store", "select line, code, reason, byte_offset from ingest.quarantine order by line");
    assert_eq!(bad.iter().map(|row| row["line"].as_i64().unwrap()).collect::<Vec<_>>(), [1, 2, 4]);
    assert_eq!(strings(&bad, "code"), ["lone_surrogate"; 3]);
    for row in &bad {
        let reason = row["reason"].as_str().unwrap();
        assert!(reason.contains("half of a surrogate pair at byte "), "{reason}");
    }

    place.write("p.toml", super::ingest("in/*.jsonl", "repair = [\"lone_surrogates\"]"));
    place.coa(&["run", "p.toml", "-q"]).ok();
    assert_eq!(place.number("store", "select count(*) from ingest.quarantine"), 0);
    let query =
        "select task_id, prediction, array_to_string(repaired, ',') as repaired from ingest.traces order by line";
    let kept = place.sql("store", query);
    assert_eq!(strings(&kept, "task_id"), ["sur-1", "sur-2", "sur-3", "sur-4", "sur-5"]);
    assert_eq!(kept[0]["prediction"], "page text cut here \u{fffd}");
    assert_eq!(kept[1]["prediction"], "\u{fffd} starts with a low half");
    let repaired = strings(&kept, "repaired");
    assert_eq!(repaired, ["lone_surrogates", "lone_surrogates", "", "lone_surrogates", ""]);

    // As the records stand, none is of the layout; each is accounted for by line and byte all the same.
    place.write("in/a.jsonl", &original);
    place.write("p.toml", super::ingest("in/*.jsonl", ""));
    place.coa(&["run", "p.toml", "-q"]).ok();
    let bad = place.sql("store", "select code, byte_offset, byte_length from ingest.quarantine order by line");
    let surrogate = "lone_surrogate";
    assert_eq!(strings(&bad, "code"), [surrogate, surrogate, "missing_field", surrogate, "missing_field"]);
    let mut at = 0;
    for (row, line) in bad.iter().zip(original.split_inclusive(|byte| *byte == b'\n')) {
        assert_eq!(row["byte_offset"], at);
        at += line.len();
    }
}
