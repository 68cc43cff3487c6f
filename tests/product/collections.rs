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

/// In = out + rejected at every stage, every rejection has a reason, and each stage keeps as many rows as it is known to:
/// conversion, complexity, quality, reflection, correction.
fn accounted(place: &Place, records: i64, kept: [i64; 5]) {
    let number = |query: &str| place.number("store", query);
    let mut rows = records;
    assert_eq!(number("select count(*) from ingest.traces") + number("select count(*) from ingest.quarantine"), rows);
    rows = number("select count(*) from ingest.traces");
    let stages = [
        ("convert", "trajectories"),
        ("complexity", "kept"),
        ("quality", "kept"),
        ("reflection", "kept"),
        ("correction", "kept"),
    ];
    for ((stage, port), kept) in stages.into_iter().zip(kept) {
        let rejected = number(&format!("select count(*) from {stage}.rejected"));
        let reasons = number(&format!("select count(*) from {stage}.rejected where reason <> '' and detail <> ''"));
        assert_eq!(reasons, rejected, "{stage}: every rejection has a reason");
        let out = number(&format!("select count(*) from {stage}.{port}"));
        assert_eq!(out + rejected, rows, "{stage}");
        assert_eq!(out, kept, "{stage}");
        rows = out;
    }
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
    let repeated = number("select count(*) from quality.rejected where reason = 'redundant_call'");
    assert_eq!(repeated, 1, "all 500 are right by the collection's verdict; one row repeats a call");
    // Rows without reflection are drawn by a hash of their id and the seed, half of them: the same ones every time.
    accounted(&place, 500, [500, 323, 322, 145, 145]);
}

#[test]
fn webdancer() {
    let Some(place) = run("webdancer", "data/Alibaba-NLP__WebAgent/sample_traj.jsonl") else { return };
    let number = |query: &str| place.number("store", query);
    assert_eq!(number("select count(*) from ingest.steps where kind = 'call'"), 222);
    assert_eq!(number("select count(*) from ingest.steps where tool = 'search'"), 204);
    assert_eq!(number("select count(*) from ingest.traces where cardinality(golden_answers) = 0"), 0);
    assert_eq!(number("select sum(interactions) from convert.trajectories"), 222);
    accounted(&place, 200, [200, 200, 134, 65, 65]);
}
