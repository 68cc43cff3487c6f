//! Bytes that changed in the store are noticed, and processes that work on one store at the same time do not get into
//! each other's way.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::coa::{Place, filters, record};

fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files_below(&path, found) } else { found.push(path) }
    }
}

fn demo() -> Place {
    let place = Place::new();
    place.write("in/a.jsonl", format!("{}\n{}\n", record("a1", 6), record("a2", 2)));
    place.write("in/b.jsonl", format!("{}\n", record("b1", 7)));
    place.write("p.toml", filters("in/*", 5));
    place
}

/// One bit of a table that a later stage reads: no row of it is believed, and the file is named.
#[test]
fn a_flipped_bit_is_noticed() {
    let place = demo();
    place.coa(&["run", "p.toml", "--select", "+convert", "-q"]).ok();
    let mut files = Vec::new();
    files_below(&place.path("store/tables/convert"), &mut files);
    let parquet: Vec<&PathBuf> = files
        .iter()
        .filter(|path| {
            path.to_string_lossy().contains("trajectories/") && path.extension().is_some_and(|e| e == "parquet")
        })
        .collect();
    assert_eq!(parquet.len(), 2);
    let intact = std::fs::read(parquet[0]).unwrap();
    for at in [intact.len() / 3, intact.len() - 1] {
        let mut bytes = intact.clone();
        bytes[at] ^= 4;
        std::fs::write(parquet[0], bytes).unwrap();
        let name = parquet[0].file_name().unwrap().to_string_lossy().into_owned();
        place.coa(&["run", "p.toml", "-q"]).fails(1, &["is damaged", &name, "hint: restore it from a copy"]);
    }
    std::fs::write(parquet[0], intact).unwrap();
    place.coa(&["resume", "--store", "store", "-q"]).ok();
    assert_eq!(place.number("store", "select count(*) from complexity.kept"), 2);
}

/// Several runs of one pipeline, begun at the same moment on a store that does not exist yet.
#[test]
fn runs_at_the_same_time_do_everything_once() {
    let place = demo();
    let started: Vec<_> = (0..3)
        .map(|_| {
            let mut command = place.command(&["run", "p.toml", "-q"]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for run in started {
        let output = run.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(place.number("store", "select count(*) from runs"), 3);
    assert_eq!(place.number("store", "select count(*) from ingest.traces"), 3);
    assert_eq!(place.number("store", "select count(distinct trace_id) from ingest.traces"), 3);
    assert_eq!(place.number("store", "select count(*) from complexity.kept"), 2);
    assert_eq!(place.number("store", "select count(*) from complexity.rejected"), 1);
}
