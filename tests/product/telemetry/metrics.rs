//! Metrics of runs and workers, scraped as Prometheus does.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use super::{Told, endless, sources};
use crate::coa::{Place, filters};

/// Sends a request to a server and gives its whole answer.
fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a server");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The samples of a server, by name and labels.
fn scrape(address: &str) -> BTreeMap<String, f64> {
    let answer = ask(address, "GET /metrics HTTP/1.1\r\nHost: here\r\nAccept: text/plain\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
    let samples = body.lines().filter(|line| !line.starts_with('#'));
    samples
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
            (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("no number: {line}")))
        })
        .collect()
}

/// Where a command that was started with `--metrics` says they are.
fn address(told: &mut Told) -> String {
    told.tells("/metrics\n");
    let err = told.err();
    let (_, rest) = err.split_once("http://").expect("an address");
    rest.split_once("/metrics").expect("its path").0.to_owned()
}

/// The size of all Parquet files below a folder.
fn parquet_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .map(|path| match path.extension().and_then(|extension| extension.to_str()) {
            _ if path.is_dir() && path.ends_with("_delta_log") => 0,
            _ if path.is_dir() => parquet_bytes(&path),
            Some("parquet") => path.metadata().unwrap().len(),
            _ => 0,
        })
        .sum()
}

#[test]
fn a_workers_metrics_agree_with_the_store() {
    let place = Place::new();
    sources(&place, 3, 20);
    place.write("raw/broken.jsonl.gz", "this is no gzip");
    place.write("p.toml", filters("raw/*", 5));
    let arguments = ["run", "p.toml", "--jobs", "0", "--metrics", "127.0.0.1:0"];
    let mut run = Told::start(&place, "run", &arguments);
    let at_run = address(&mut run);
    // Nobody takes the jobs yet.
    while scrape(&at_run).get("coa_queue_jobs{queue=\"cpu\"}") != Some(&4.0) {
        std::thread::yield_now();
    }
    let mut worker = Told::start(&place, "worker", &["worker", "--store", "store", "--metrics", "127.0.0.1:0"]);
    let at_worker = address(&mut worker);
    assert_eq!(run.end(), 1, "a unit fails");
    let found = scrape(&at_worker);
    let units = place.sql("store", "select stage, seconds from units");
    assert_eq!(units.len(), 9);
    let sum = |name: &str| -> f64 {
        let of = |sample: &&String| sample.starts_with(&format!("{name}{{"));
        found.iter().filter(|(sample, _)| of(sample)).map(|(_, value)| value).sum()
    };
    for stage in ["ingest", "convert", "complexity"] {
        let here: Vec<_> = units.iter().filter(|unit| unit["stage"] == stage).collect();
        assert_eq!(found[&format!("coa_units_total{{stage=\"{stage}\",outcome=\"done\"}}")], here.len() as f64);
        assert_eq!(found[&format!("coa_unit_duration_seconds_count{{stage=\"{stage}\"}}")], here.len() as f64);
        assert_eq!(found[&format!("coa_units_at_work{{stage=\"{stage}\"}}")], 0.0);
        let seconds: f64 = here.iter().map(|unit| unit["seconds"].as_f64().unwrap()).sum();
        let told = found[&format!("coa_unit_duration_seconds_sum{{stage=\"{stage}\"}}")];
        assert!((told - seconds).abs() < 1e-6, "{stage}: {told} and {seconds}");
        let bytes = parquet_bytes(&place.path(&format!("store/tables/{stage}"))) as f64;
        assert_eq!(found[&format!("coa_written_bytes_total{{stage=\"{stage}\"}}")], bytes);
    }
    for port in ["ingest.traces", "ingest.steps", "ingest.quarantine", "convert.trajectories", "complexity.kept"] {
        let (stage, name) = port.split_once('.').unwrap();
        let rows = place.number("store", &format!("select count(*) from {port}")) as f64;
        assert!(rows > 0.0, "{port}");
        assert_eq!(found[&format!("coa_rows_out_total{{stage=\"{stage}\",port=\"{name}\"}}")], rows, "{port}");
    }
    let read = place.number("store", "select count(*) from convert.trajectories") as f64;
    assert_eq!(found["coa_rows_in_total{stage=\"complexity\",port=\"rows\"}"], read);
    let attempts = place.number("store", "select count(*) from attempts") as f64;
    assert_eq!(sum("coa_units_total"), attempts);
    assert_eq!(found["coa_units_total{stage=\"ingest\",outcome=\"failed\"}"], 1.0);
    assert_eq!(found["coa_queue_jobs{queue=\"cpu\"}"], 0.0);
    assert!(found["process_resident_memory_bytes"] > 1e6 && found["process_cpu_seconds_total"] > 0.0, "{found:?}");
    assert_eq!(sum("coa_build_info"), 1.0);
    worker.running.signal(libc::SIGTERM);
    assert_eq!(worker.end(), 0);
}

#[test]
fn a_run_is_seen_at_work() {
    let place = Place::new();
    sources(&place, 2, 20);
    place.write("p.toml", endless());
    let mut run = Told::start(&place, "run", &["run", "p.toml", "--jobs", "1", "--metrics", "127.0.0.1:0"]);
    let address = address(&mut run);
    while scrape(&address).get("coa_units_at_work{stage=\"sft\"}") != Some(&1.0) {
        assert!(!run.running.has_ended(), "{}", run.err());
        std::thread::yield_now();
    }
    let found = scrape(&address);
    for (stage, done) in place
        .sql("store", "select stage, count(*) as n from units group by stage")
        .iter()
        .map(|row| (row["stage"].as_str().unwrap(), row["n"].as_f64().unwrap()))
    {
        assert_eq!(found[&format!("coa_units_total{{stage=\"{stage}\",outcome=\"done\"}}")], done, "{stage}");
    }
    assert!(!found.contains_key("coa_units_total{stage=\"sft\",outcome=\"done\"}"), "{found:?}");
    run.running.signal(libc::SIGTERM);
    assert_eq!(run.end(), 130);
}

#[test]
fn what_else_is_asked_is_answered() {
    let place = Place::new();
    sources(&place, 1, 1);
    place.write("p.toml", filters("raw/*.jsonl", 5));
    let mut run = Told::start(&place, "run", &["run", "p.toml", "--jobs", "0", "--metrics", "localhost:0"]);
    let address = address(&mut run);
    let status = |request: &str| ask(&address, request).lines().next().unwrap_or_default().to_owned();
    assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
    assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
    assert_eq!(status("nonsense\r\n\r\n"), "HTTP/1.1 400 Bad Request");
    assert_eq!(status("GET /metrics?x=1 HTTP/1.0\r\n\r\n"), "HTTP/1.1 200 OK");
    run.running.signal(libc::SIGTERM);
    assert_eq!(run.end(), 130);
}

#[test]
fn an_address_that_cannot_be_had_is_told_before_anything_begins() {
    let place = Place::new();
    sources(&place, 1, 1);
    place.write("p.toml", filters("raw/*.jsonl", 5));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let in_use = [address.as_str(), "in use"];
    place.coa(&["run", "p.toml", "--metrics", &address]).fails(1, &in_use);
    assert!(!place.path("store/runs").exists(), "a run was begun");
    place.coa(&["worker", "--queue", "q.sqlite", "--metrics", &address]).fails(1, &in_use);
    for wrong in ["9464", "here", "127.0.0.1:99999", "192.0.2.1:0"] {
        place.coa(&["run", "p.toml", "--metrics", wrong]).fails(2, &[wrong, "hint: --metrics takes an address"]);
        place.coa(&["worker", "--queue", "q.sqlite", "--metrics", wrong]).fails(2, &[wrong]);
    }
}
