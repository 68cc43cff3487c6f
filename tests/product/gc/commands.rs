//! The commands as a user types them, on a local store and on S3.

use crate::coa::{Place, filters, record, tables};

fn scene() -> Place {
    let place = Place::new();
    place.write("p.toml", filters("in/*.jsonl", 5));
    place.write("in/a.jsonl", format!("{}\n{}\n", record("a1", 4), record("a2", 6)));
    place.write("in/b.jsonl", format!("{}\n", record("b1", 7)));
    place
}

/// Old versions go, and nothing else: on whatever store.
pub(crate) fn collects(place: &Place, store: &str) {
    let run = ["run", "p.toml", "--store", store];
    place.coa(&run).ok();
    place.write("in/b.jsonl", format!("{}\n{}\n", record("b1", 7), record("b2", 8)));
    place.coa(&run).ok();
    let shown = tables(place, store);
    let said = place.coa(&["gc", "--store", store]).ok();
    assert!(said.out.contains("in all") && said.out.contains(" 0 "), "{}", said.out);
    assert!(said.err.contains("nothing was deleted"), "{}", said.err);
    place.coa(&["gc", "--store", store, "--retention", "0s"]).fails(2, &["below an hour", "--nothing-runs"]);
    let now = ["gc", "--store", store, "--retention", "0s", "--nothing-runs"];
    let listed = place.coa(&[&now[..], &["--verbose"]].concat()).ok();
    assert!(listed.out.contains("data file") && listed.out.contains("record"), "{}", listed.out);
    let before = place.number(store, "select count(*) from convert.trajectories@v1");
    assert_eq!(before, 3);
    let deleted = place.coa(&[&now[..], &["--delete"]].concat()).ok();
    let count = listed.out.trim().lines().count();
    assert!(deleted.err.contains(&format!("{count} deleted")), "{}\n{}", listed.out, deleted.err);
    assert!(place.coa(&now).ok().out.contains(" 0 "));
    // What is current is whole, there is nothing to do, and what is gone is said to be.
    assert_eq!(tables(place, store), shown);
    assert!(place.coa(&["plan", "p.toml", "--store", store]).ok().out.contains("0 units to run"));
    place.coa(&run).ok();
    assert_eq!(tables(place, store), shown);
    let old = ["sql", "select count(*) from convert.trajectories@v1", "--store", store];
    let said = place.coa(&old).fails(1, &["convert.trajectories@v1` cannot be read any more", "coa gc"]);
    assert_eq!(said.out, "");
    let said = place.coa(&["compact", "--store", store]).ok();
    assert!(said.out.contains("convert.trajectories: nothing to merge"), "{}", said.out);
}

#[test]
fn old_versions_go_from_a_local_store() {
    let place = scene();
    // A write of a process that was killed.
    collects(&place, "store");
    let half = place.write("store/tables/ingest/traces/half.parquet#1", "half");
    let said = place.coa(&["gc", "--store", "store", "--retention", "0s", "--nothing-runs", "--delete"]).ok();
    assert!(said.out.contains("half-written file"), "{}", said.out);
    assert!(!half.exists());
}

#[test]
fn mistakes_on_the_command_line() {
    let place = scene();
    place.coa(&["run", "p.toml"]).ok();
    place.coa(&["gc", "--store", "store", "--retention", "1y"]).fails(2, &["as in 7d"]);
    place.coa(&["gc", "--store", "nowhere"]).fails(1, &["there is no store"]);
    place.coa(&["compact", "convert.nothing", "--store", "store"]).fails(2, &["there is no table `convert.nothing`"]);
}

/// For the tests on servers.
pub(crate) fn scene_for_servers() -> Place {
    scene()
}
