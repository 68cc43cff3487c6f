//! Cases from the field: inputs that broke other tools, with the right outcome. They lie beside the checkout.
//!
//! Many cases are records of one or two fields, of no layout that this product reads. They are turned into run records on
//! their text ([`as_runs`]), so that what is odd about their bytes stays as it is.

mod commit;
mod json;
mod listing;
mod resume;
mod sql;
mod text;
mod time;
mod training;
mod trajectories;

use std::path::Path;

use serde_json::Value;

use crate::coa::{Place, filters};

/// A case through the filters.
fn ingested(case: &Path, min_interactions: u32) -> Place {
    let place = Place::new();
    place.write("p.toml", filters(&format!("{}/in/*", case.display()), min_interactions));
    place.coa(&["run", "p.toml", "-q"]).ok();
    place
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A pipeline that only ingests OAgents records, with these further parameters.
fn ingest(source: &str, params: &str) -> String {
    format!(
        "name = \"case\"\nstore = \"store\"\n[stages.ingest]\noperator = \"ingest_traces\"\n[stages.ingest.params]\n\
         format = \"oagents\"\nsource = \"{source}\"\n{params}\n"
    )
}

/// Lines of JSON objects as OAgents run records: each gets a question, and keys get the names that the layout has for
/// them.
fn as_runs(text: &[u8], keys: &[(&str, &str)]) -> Vec<u8> {
    let mut runs = Vec::with_capacity(text.len() + 1024);
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let mut line = line.to_vec();
        if let Some(brace) = line.iter().position(|byte| *byte == b'{') {
            line.splice(brace + 1..brace + 1, b"\"question\":\"q\",".iter().copied());
        }
        for (from, to) in keys {
            let (from, to) = (format!("\"{from}\":"), format!("\"{to}\":"));
            if let Some(at) = line.windows(from.len()).position(|part| part == from.as_bytes()) {
                line.splice(at..at + from.len(), to.bytes());
            }
        }
        runs.extend(line);
    }
    runs
}

/// One text column of a query's rows; "null" for null.
fn strings(rows: &[Value], column: &str) -> Vec<String> {
    rows.iter().map(|row| row[column].as_str().unwrap_or("null").to_owned()).collect()
}

/// Runs a case's generator in a place. False, with a message, where there is no Python.
fn generated(place: &Place, case: &Path) -> bool {
    let mut python = std::process::Command::new("python3");
    python.arg(case.join("gen.py")).current_dir(place.path("."));
    match python.status() {
        Ok(status) => assert!(status.success(), "the generator failed"),
        Err(_) => crate::coa::skipped("there is no python3"),
    }
    place.path("in").exists() || place.path("tree").exists()
}
