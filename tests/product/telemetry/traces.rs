//! Spans at a stand-in collector: a run is one trace, whoever does its units.

use std::collections::BTreeSet;

use super::collector::{Collector, Span};
use super::{Told, sources};
use crate::coa::{Place, filters};

const STAGES: [&str; 3] = ["ingest", "convert", "complexity"];

/// The spans must be one trace: a run, its stages, their units as the store has them.
fn is_one_trace(place: &Place, collector: &Collector) -> Vec<Span> {
    let spans = collector.spans();
    let traces: BTreeSet<&[u8]> = spans.iter().map(|span| span.trace.as_slice()).collect();
    assert_eq!(traces.len(), 1, "{spans:?}");
    let runs = collector.named("run");
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert!(runs[0].parent.is_empty(), "{:?}", runs[0]);
    assert_eq!((runs[0].field("coa.run"), runs[0].field("coa.pipeline")), ("1", "filters"));
    let stages = collector.named("stage");
    for stage in &stages {
        assert_eq!((&stage.parent, stage.field("coa.run")), (&runs[0].id, "1"), "{stage:?}");
    }
    let units = collector.named("unit");
    let attempts = place.sql("store", "select attempt, stage, partition, worker from attempts");
    assert_eq!(units.len(), attempts.len(), "a span an attempt");
    for row in attempts {
        let text = |column: &str| row[column].as_str().unwrap().to_owned();
        let unit = units.iter().find(|unit| unit.field("coa.attempt") == text("attempt")).expect("its span");
        let stage = stages.iter().find(|stage| stage.field("coa.stage") == text("stage")).expect("its stage's");
        assert_eq!(unit.parent, stage.id, "{unit:?}");
        for column in ["stage", "partition", "worker"] {
            assert_eq!(unit.field(&format!("coa.{column}")), text(column), "{unit:?}");
        }
        assert_eq!((unit.field("coa.run"), unit.field("coa.try")), ("1", "1"), "{unit:?}");
        let within = |inner: &Span, outer: &Span| {
            outer.nanoseconds.0 <= inner.nanoseconds.0 && inner.nanoseconds.0 <= outer.nanoseconds.1
        };
        assert!(within(unit, stage) && within(stage, &runs[0]), "{unit:?} in {stage:?} in {:?}", runs[0]);
    }
    spans
}

#[test]
fn a_run_is_one_trace() {
    let mut place = Place::new();
    let collector = Collector::start();
    collector.is_used_by(&mut place);
    place.set("OTEL_SERVICE_NAME", "nightly");
    place.set("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test");
    place.set("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20hidden-token");
    place.set("AWS_SECRET_ACCESS_KEY", "hidden-key");
    place.set("PGPASSWORD", "hidden-password");
    sources(&place, 4, 10);
    place.write("p.toml", filters("raw/*.jsonl", 5));
    let said = place.coa(&["run", "p.toml"]).ok();
    assert!(!said.err.contains("spans"), "{}", said.err);
    let spans = is_one_trace(&place, &collector);
    assert_eq!(spans.len(), 1 + 3 + 12);
    assert!(spans.iter().all(|span| span.status != 2 && span.events.is_empty()), "{spans:?}");
    for (name, outcome) in [("run", "complete"), ("stage", "complete"), ("unit", "done")] {
        assert!(collector.named(name).iter().all(|span| span.field("coa.outcome") == outcome), "{name}");
    }
    let resource = &spans[0].resource;
    assert_eq!((resource["service.name"].as_str(), resource["deployment.environment"].as_str()), ("nightly", "test"));
    for request in collector.requests() {
        assert!(request.head.starts_with("post /v1/traces "), "{}", request.head);
        assert!(request.head.contains("content-type: application/x-protobuf"), "{}", request.head);
        assert!(request.head.contains("authorization: bearer hidden-token"), "{}", request.head);
        let hidden = request.body.windows(6).any(|bytes| bytes == b"hidden");
        assert!(!hidden, "a secret is in a span");
    }
}

#[test]
fn a_failed_unit_is_an_error_and_told_though_the_command_fails() {
    let mut place = Place::new();
    let collector = Collector::start();
    collector.is_used_by(&mut place);
    sources(&place, 2, 5);
    place.write("raw/broken.jsonl.gz", "this is no gzip");
    place.write("p.toml", filters("raw/*", 5));
    place.coa(&["run", "p.toml"]).fails(1, &["error: ingest/"]);
    let spans = is_one_trace(&place, &collector);
    assert_eq!(spans[0].resource["service.name"], "coa");
    let failed: Vec<Span> = spans.into_iter().filter(|span| span.status == 2).collect();
    let mut names: Vec<(&str, &str)> =
        failed.iter().map(|span| (span.name.as_str(), span.field("coa.stage"))).collect();
    names.sort_unstable();
    assert_eq!(names, [("run", ""), ("stage", "ingest"), ("unit", "ingest")]);
    let unit = failed.iter().find(|span| span.name == "unit").unwrap();
    let ended = place.sql("store", "select error, error_kind from attempts where outcome = 'failed'");
    let (error, kind) = (ended[0]["error"].as_str().unwrap(), ended[0]["error_kind"].as_str().unwrap());
    assert_eq!((unit.status_message.as_str(), unit.field("error.type")), (error, kind));
    let (name, fields) = &unit.events[0];
    assert_eq!((name.as_str(), fields["exception.message"].as_str()), ("exception", error));
    assert_eq!((fields["exception.type"].as_str(), unit.field("coa.outcome")), (kind, "failed"));
    // What could not be tried has no span, and what could is fine.
    let fine: Vec<Span> = collector.named("unit").into_iter().filter(|span| span.status != 2).collect();
    assert!(fine.iter().all(|span| span.field("coa.outcome") == "done"), "{fine:?}");
}

#[test]
fn units_of_other_workers_are_in_the_runs_trace() {
    let mut place = Place::new();
    let collector = Collector::start();
    collector.is_used_by(&mut place);
    sources(&place, 3, 10);
    place.write("p.toml", filters("raw/*.jsonl", 5));
    let mut run = Told::start(&place, "run", &["run", "p.toml", "--jobs", "0"]);
    run.tells("run 1 of");
    let worker = Told::start(&place, "worker", &["worker", "--store", "store", "--jobs", "2"]);
    assert_eq!(run.end(), 0);
    // What a worker has not sent yet it sends when it is told to leave.
    worker.running.signal(libc::SIGTERM);
    assert_eq!(worker.end(), 0);
    is_one_trace(&place, &collector);
    let (runs, units) = (collector.named("run"), collector.named("unit"));
    assert_eq!(units.len(), 9);
    assert!(units.iter().all(|unit| unit.field("coa.worker") != runs[0].field("coa.worker")), "{units:?}");
}

#[test]
fn a_dead_collector_costs_one_warning() {
    let mut place = Place::new();
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    drop(socket);
    place.set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &format!("http://user:hidden@{address}/v1/traces"));
    // Several exports, each of which fails.
    place.set("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "6");
    sources(&place, 4, 10);
    place.write("p.toml", filters("raw/*.jsonl", 5));
    let said = place.coa(&["run", "p.toml"]).ok();
    let warnings: Vec<&str> = said.err.lines().filter(|line| line.contains("WARN")).collect();
    assert_eq!(warnings.len(), 1, "{}", said.err);
    assert!(warnings[0].contains(&address.to_string()) && warnings[0].contains("refused"), "{warnings:?}");
    assert!(!said.err.contains("hidden"), "{}", said.err);
    for stage in STAGES {
        assert_eq!(place.number("store", &format!("select count(*) from units where stage = '{stage}'")), 4);
    }
    // One that takes connections and never answers is waited for a few seconds, at the end.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    place.set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &format!("http://{}", silent.local_addr().unwrap()));
    let said = place.coa(&["run", "p.toml", "--force"]).ok();
    assert_eq!(said.err.lines().filter(|line| line.contains("WARN")).count(), 1, "{}", said.err);
    // One that cannot be meant is told too, and runs go on.
    place.set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://user:hidden@no address");
    let said = place.coa(&["run", "p.toml"]).ok();
    assert_eq!(said.err.lines().filter(|line| line.contains("WARN")).count(), 1, "{}", said.err);
    assert!(said.err.contains("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") && !said.err.contains("hidden"), "{}", said.err);
}
