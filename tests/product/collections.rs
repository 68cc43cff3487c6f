//! Real collections of traces, through ingestion, conversion and filters: everything is accounted for.

use crate::coa::{Place, checkout, shared};

/// The shipped pipeline for a collection, with its source set.
fn shipped(name: &str, source: &std::path::Path) -> String {
    let text = std::fs::read_to_string(checkout().join(format!("pipelines/{name}.toml"))).unwrap();
    let line = text.lines().find(|line| line.starts_with("source = ")).expect("a source line");
    text.replace(line, &format!("source = \"{}\"", source.display()))
}

fn run(name: &str, path: &str) -> Option<Place> {
    let source = shared(path)?;
    let place = Place::new();
    place.write("p.toml", shipped(name, &source));
    place.coa(&["run", "p.toml", "-q", "--store", "store"]).ok();
    Some(place)
}

/// In = out + rejected at every stage, and every rejection has a reason.
fn accounted(place: &Place, records: i64, kept_at_last: i64) {
    let number = |query: &str| place.number("store", query);
    let mut rows = records;
    assert_eq!(number("select count(*) from ingest.traces") + number("select count(*) from ingest.quarantine"), rows);
    rows = number("select count(*) from ingest.traces");
    for (stage, kept) in [
        ("convert", "trajectories"),
        ("complexity", "kept"),
        ("quality", "kept"),
        ("reflection", "kept"),
        ("correction", "kept"),
    ] {
        let rejected = number(&format!("select count(*) from {stage}.rejected"));
        let reasons = number(&format!("select count(*) from {stage}.rejected where reason <> '' and detail <> ''"));
        assert_eq!(reasons, rejected, "{stage}: every rejection has a reason");
        let out = number(&format!("select count(*) from {stage}.{kept}"));
        assert_eq!(out + rejected, rows, "{stage}");
        rows = out;
    }
    assert_eq!(rows, kept_at_last);
}

#[test]
fn fireact() {
    let Some(place) = run("fireact", "data/anchen1011__FireAct/hotpotqa.json") else { return };
    let number = |query: &str| place.number("store", query);
    assert_eq!(number("select count(*) from ingest.steps where kind = 'call'"), 885);
    assert_eq!(number("select count(*) from ingest.steps where kind = 'answer'"), 500);
    assert_eq!(number("select count(*) from ingest.traces where source_verdict"), 500);
    assert_eq!(number("select sum(interactions) from convert.trajectories"), 885);
    // The verdict is never part of what a model would read.
    let leaks = "select count(*) from (select unnest(segments) as s from convert.trajectories) where s['text'] like '%Episode finished%'";
    assert_eq!(number(leaks), 0);
    let too_few = number("select count(*) from complexity.rejected where reason = 'too_few_interactions'");
    assert_eq!(too_few, 177, "1 row without a search and 176 with one");
    accounted(&place, 500, number("select count(*) from correction.kept"));
}

#[test]
fn webdancer() {
    let Some(place) = run("webdancer", "data/Alibaba-NLP__WebAgent/sample_traj.jsonl") else { return };
    let number = |query: &str| place.number("store", query);
    assert_eq!(number("select count(*) from ingest.steps where kind = 'call'"), 222);
    assert_eq!(number("select count(*) from ingest.steps where tool = 'search'"), 204);
    assert_eq!(number("select count(*) from ingest.traces where cardinality(golden_answers) = 0"), 0);
    assert_eq!(number("select sum(interactions) from convert.trajectories"), 222);
    accounted(&place, 200, number("select count(*) from correction.kept"));
}
