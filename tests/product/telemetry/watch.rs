//! Progress as other processes see it: `coa status`, once and with `--watch`.

use serde_json::Value;

use super::{Told, endless, sources};
use crate::coa::{Place, filters};
use crate::faults::{Postgres, Running};

/// What `coa status` says is being worked on.
fn at_work(place: &Place, queue: &[&str]) -> Vec<Value> {
    let mut arguments = vec!["status", "--store", "store", "--json"];
    arguments.extend(queue);
    let facts: Value = serde_json::from_str(&place.coa(&arguments).ok().out).unwrap();
    facts["at_work"].as_array().unwrap().clone()
}

/// Waits until the training is some steps further.
fn steps_beyond(place: &Place, queue: &[&str], steps: u64) -> Value {
    loop {
        let found = at_work(place, queue);
        let unit = found.iter().find(|unit| unit["stage"] == "sft" && unit["done"].as_u64() > Some(steps));
        if let Some(unit) = unit {
            return unit.clone();
        }
        std::thread::yield_now();
    }
}

/// A training by a worker of its own, watched until it is cancelled.
fn is_watched(place: &Place, queue: &[&str]) {
    sources(place, 1, 20);
    place.write("p.toml", endless());
    let with =
        |arguments: &[&'static str]| -> Vec<&str> { arguments.iter().copied().chain(queue.iter().copied()).collect() };
    let mut run = Told::start(place, "run", &with(&["run", "p.toml", "--jobs", "0"]));
    run.tells("run 1 of");
    let worker = Told::start(place, "worker", &with(&["worker", "--store", "store", "--queues", "cpu,gpu"]));
    let unit = steps_beyond(place, queue, 0);
    assert_eq!((unit["unit"].as_str(), unit["total"].as_u64()), (Some("steps"), Some(10_000_000)), "{unit}");
    assert!(unit["note"].as_str().unwrap().starts_with("loss "), "{unit}");
    steps_beyond(place, queue, unit["done"].as_u64().unwrap());
    let shown = place.coa(&with(&["status", "--store", "store"])).ok().out;
    assert!(shown.contains("/10000000 steps, loss "), "{shown}");
    let mut watch = Told::start(place, "watch", &with(&["status", "--store", "store", "--watch", "0.2"]));
    // Drawn again as it goes on.
    while watch.out().matches("/10000000 steps").count() < 2 {
        assert!(!watch.running.has_ended(), "{}", watch.err());
        std::thread::yield_now();
    }
    place.coa(&["cancel", "1", "--store", "store"]).ok();
    let out = watch.out.clone();
    assert_eq!(watch.end(), 130);
    let out = std::fs::read_to_string(out).unwrap();
    let last = out.split("\nstore ").last().unwrap();
    assert!(last.contains("cancelled"), "{last}");
    assert_eq!(run.end(), 130);
    worker.running.signal(libc::SIGTERM);
    assert_eq!(worker.end(), 0);
}

#[test]
fn a_long_unit_of_another_process_is_watched_until_it_is_cancelled() {
    is_watched(&Place::new(), &[]);
}

#[test]
fn a_long_unit_is_watched_over_a_shared_queue() {
    let Some(database) = Postgres::start() else { return };
    is_watched(&Place::new(), &["--queue", &database.url()]);
}

/// A run that waits, and what is watching it.
fn watched(place: &Place) -> (Told, Told) {
    let mut run = Told::start(place, "run", &["run", "p.toml", "--jobs", "0"]);
    run.tells("run 1 of");
    let mut watch = Told::start(place, "watch", &["status", "--store", "store", "--watch", "0.1"]);
    watch.tells("unfinished");
    (run, watch)
}

fn finish(place: &Place, run: Told) -> i32 {
    let worker = Told::start(place, "worker", &["worker", "--store", "store"]);
    let code = run.end();
    worker.running.signal(libc::SIGTERM);
    assert_eq!(worker.end(), 0);
    code
}

#[test]
fn it_ends_with_the_run_and_as_the_run() {
    let place = Place::new();
    sources(&place, 2, 5);
    place.write("p.toml", filters("raw/*.jsonl", 5));
    let (run, watch) = watched(&place);
    assert_eq!(finish(&place, run), 0);
    let out = watch.out.clone();
    assert_eq!(watch.end(), 0);
    let out = std::fs::read_to_string(out).unwrap();
    let pictures: Vec<&str> = out.split("\nstore ").collect();
    assert!(pictures.last().unwrap().contains("`filters`, complete"), "{out}");
    assert!(pictures.windows(2).all(|pair| pair[0].trim() != pair[1].trim()), "a picture came twice: {out}");
    // Of a run that has ended there is one picture.
    let said = place.coa(&["status", "1", "--store", "store", "--watch"]).ok();
    assert_eq!(said.out.matches("store ").count(), 1, "{}", said.out);
}

#[test]
fn it_fails_with_a_run_that_fails() {
    let place = Place::new();
    sources(&place, 1, 5);
    place.write("raw/broken.jsonl.gz", "this is no gzip");
    place.write("p.toml", filters("raw/*", 5));
    let (run, watch) = watched(&place);
    assert_eq!(finish(&place, run), 1);
    let err = watch.err.clone();
    assert_eq!(watch.end(), 1);
    let err = std::fs::read_to_string(err).unwrap();
    assert!(err.contains("error: run 1 failed: 1 units failed"), "{err}");
}

#[test]
fn a_terminal_is_drawn_on_in_place() {
    let place = Place::new();
    sources(&place, 2, 5);
    place.write("p.toml", filters("raw/*.jsonl", 5));
    let mut run = Told::start(&place, "run", &["run", "p.toml", "--jobs", "0"]);
    run.tells("run 1 of");
    let command = format!("{} status --store store --watch 0.1", crate::coa::binary().display());
    let mut script = std::process::Command::new("script");
    script.args(["-qfec", &command, "screen"]).current_dir(place.path(".")).env("TERM", "xterm");
    script.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    let Ok(child) = script.spawn() else {
        crate::coa::skipped("there is no `script` on this machine");
        return;
    };
    let screen = || String::from_utf8_lossy(&std::fs::read(place.path("screen")).unwrap_or_default()).into_owned();
    // Drawn twice, the second time over the first: the cursor goes up.
    let goes_up = |code: &str| code.trim_start_matches(|c: char| c.is_ascii_digit()).starts_with('A');
    while !screen().split("\u{1b}[").skip(1).any(goes_up) {
        assert!(!run.running.has_ended(), "{}", run.err());
        std::thread::yield_now();
    }
    assert_eq!(finish(&place, run), 0);
    assert_eq!(Running::new(child).end().code, 0);
    assert!(screen().contains("complete"), "{}", screen());
}

#[test]
fn what_cannot_be_watched() {
    let place = Place::new();
    place.coa(&["status", "--store", "store", "--watch"]).fails(1, &[]);
    sources(&place, 1, 1);
    place.write("p.toml", filters("raw/*.jsonl", 5));
    place.coa(&["run", "p.toml", "-q"]).ok();
    place.coa(&["status", "7", "--store", "store", "--watch"]).fails(2, &["no run 7"]);
    place.coa(&["status", "--store", "store", "--watch", "0"]).fails(2, &["from 0.1 to 86400 seconds"]);
    place.coa(&["status", "--store", "store", "--watch", "--json"]).fails(2, &["--json"]);
}
