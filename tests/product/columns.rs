//! Tables that got columns after they were made.

use serde_json::Value;

use crate::coa::{Place, filters, record};

/// Takes a column out of a table's first log entry: the table as an older version of this product made it.
fn without(place: &Place, table: &str, column: &str) {
    let path = place.path(&format!("store/tables/{table}/_delta_log/00000000000000000000.json"));
    let mut entry = String::new();
    for line in std::fs::read_to_string(&path).unwrap().lines() {
        let mut action: Value = serde_json::from_str(line).unwrap();
        if let Some(text) = action["metaData"]["schemaString"].as_str() {
            let mut schema: Value = serde_json::from_str(text).unwrap();
            let fields = schema["fields"].as_array_mut().unwrap();
            let before = fields.len();
            fields.retain(|field| field["name"] != column);
            assert_eq!(fields.len(), before - 1);
            action["metaData"]["schemaString"] = schema.to_string().into();
        }
        entry.push_str(&format!("{action}\n"));
    }
    std::fs::write(path, entry).unwrap();
}

#[test]
fn a_new_column_comes_with_the_next_rows() {
    let place = Place::new();
    place.write("in/a.jsonl", format!("{}\n", record("a1", 6)));
    place.write("p.toml", filters("in/*", 5));
    place.coa(&["run", "p.toml", "-q"]).ok();
    without(&place, "ingest/steps/steps.v1", "calls");
    let calls = "select count(calls) from ingest.steps where kind = 'turn'";
    place.coa(&["sql", calls, "--store", "store"]).fails(1, &["calls"]);
    // What is done is done: nothing runs for the sake of the column.
    let said = place.coa(&["run", "p.toml"]).ok();
    assert!(said.err.contains("done: 0 units"), "{}", said.err);
    place.write("in/b.jsonl", format!("{}\n", record("b1", 7)));
    place.coa(&["run", "p.toml", "-q"]).ok();
    assert_eq!(place.number("store", "select count(*) from ingest.steps where kind = 'turn'"), 13);
    assert!(place.number("store", &format!("{calls} and partition = 'b.jsonl'")) == 7);
    assert_eq!(place.number("store", "select count(*) from complexity.kept"), 2);
}
