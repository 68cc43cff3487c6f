//! `coa report`: figures of what stands there now, and none of what was before.

use crate::coa::{Place, filters, record};

fn report(place: &Place) -> String {
    place.coa(&["report", "--store", "store"]).ok().out
}

/// The line of a stage.
fn line(report: &str, stage: &str) -> String {
    let line = report.lines().find(|line| line.starts_with(&format!("{stage} ")));
    let words: Vec<&str> = line.unwrap_or_else(|| panic!("no {stage} in\n{report}")).split_whitespace().collect();
    words.join(" ")
}

#[test]
fn after_a_changed_parameter_only_current_figures_are_shown() {
    let place = Place::new();
    place.write("in/a.jsonl", format!("{}\n{}\n{}\n", record("a1", 4), record("a2", 6), record("a3", 8)));
    place.write("p.toml", filters("in/*", 5));
    place.coa(&["run", "p.toml", "-q"]).ok();
    let before = report(&place);
    assert!(
        line(&before, "complexity").starts_with("complexity complexity_filter 1 3 kept 2, rejected 1 "),
        "{before}"
    );
    assert!(before.contains("rejected by complexity: too_few_interactions 1\n"), "{before}");

    // Changed and not run yet: there are no figures of the stage, old ones least of all.
    place.write("p.toml", filters("in/*", 7));
    place.coa(&["run", "p.toml", "-q", "--select", "+convert"]).ok();
    let between = report(&place);
    assert!(line(&between, "complexity").starts_with("complexity complexity_filter 0 0 "), "{between}");
    assert!(!between.contains("rejected by complexity"), "{between}");
    assert!(line(&between, "convert").contains("trajectories 3"), "{between}");

    place.coa(&["run", "p.toml", "-q"]).ok();
    let after = report(&place);
    assert!(line(&after, "complexity").starts_with("complexity complexity_filter 1 3 kept 1, rejected 2 "), "{after}");
    assert!(after.contains("rejected by complexity: too_few_interactions 2"), "{after}");
    assert!(!after.contains("too_few_interactions 1"), "{after}");

    // Taken back: the units of before are shown again, and nothing is done anew.
    place.write("p.toml", filters("in/*", 5));
    let said = place.coa(&["run", "p.toml"]).ok();
    assert!(said.err.contains("done: 0 units"), "{}", said.err);
    assert_eq!(line(&report(&place), "complexity"), line(&before, "complexity"));
}
