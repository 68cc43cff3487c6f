//! Writers that die, stall or are refused: a reader sees a whole result or none.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::{as_runs, generated, ingest};
use crate::bucket::Bucket;
use crate::coa::{Place, Said, filters, record, shared};

/// Waits until something holds; a child that ends before it is an error, and so is a wait without end.
fn wait_until(child: &mut Child, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        if let Some(status) = child.try_wait().unwrap() {
            panic!("it ended too early: {status}");
        }
        assert!(began.elapsed() < Duration::from_secs(300), "it takes too long");
        std::thread::yield_now();
    }
}

/// Attempts at a stage that have begun.
fn begun(place: &Place, stage: &str) -> usize {
    let units = std::fs::read_dir(place.path(&format!("store/attempts/{stage}")));
    let units = units.into_iter().flatten().flatten().map(|unit| unit.path());
    units.map(|unit| records(&unit)).sum()
}

/// Records below a folder; one that is being written has another ending yet.
fn records(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries
        .map(|path| if path.is_dir() { records(&path) } else { path.extension().is_some_and(|e| e == "json").into() })
        .sum()
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: the process is our child and was not waited for.
    unsafe { libc::kill(child.id() as i32, signal) };
}

/// Killed after the second part of an upload; then the third part is refused three times.
#[test]
fn c38_an_upload_in_parts() {
    let Some(case) = shared("cases/C38") else { return };
    let (place, bucket) = (Place::new(), Bucket::new());
    if !generated(&place, &case) {
        return;
    }
    let text = as_runs(&std::fs::read(place.path("in/big.jsonl")).unwrap(), &[("observations", "prediction")]);
    place.write("in/big.jsonl", text);
    place.write("p.toml", ingest("in/*", "").replace("store = \"store\"", "store = \"s3://b/deep/store\""));
    let coa = |arguments: &[&str]| Said::from(bucket.of(place.command(arguments)).output().unwrap());
    let sql = |query: &str| coa(&["sql", query, "--store", "s3://b/deep/store", "--format", "csv"]);

    // (a) The kill.
    let mut run = bucket.of(place.command(&["run", "p.toml", "-q"]));
    let mut run = run.stderr(Stdio::null()).spawn().unwrap();
    let mut seen = Vec::new();
    wait_until(&mut run, || {
        seen.extend(bucket.take_requests());
        seen.iter().any(|asked| asked == "PART 2")
    });
    run.kill().unwrap();
    run.wait().unwrap();
    sql("select count(*) from ingest.traces").fails(1, &["ingest"]);
    let records = |keys: &[String]| keys.iter().filter(|key| key.contains("/units/")).count();
    assert_eq!(records(&bucket.keys()), 0, "nothing says that anything is done");
    assert!(
        !bucket.keys().iter().any(|key| key.ends_with(".parquet") && key.contains("/traces/")),
        "no part is an object"
    );
    let doctor = coa(&["doctor", "--store", "s3://b/deep/store"]);
    let dead = bucket.open_uploads().len();
    assert!(dead > 0 && doctor.out.contains(&format!("{dead} unfinished")), "{}", doctor.out);

    // (b) The refusals, while the run goes on.
    let mut left = 3;
    bucket.fail(move |asked| {
        (asked == "PART 3" && left > 0).then(|| {
            left -= 1;
            500
        })
    });
    coa(&["resume", "--store", "s3://b/deep/store", "-q"]).ok();
    let asked = bucket.take_requests();
    assert!(asked.iter().filter(|asked| *asked == "PART 3").count() >= 4, "it was refused three times");
    let counts = sql("select count(*), count(distinct task_id) from ingest.traces").ok().out;
    assert_eq!(counts.lines().last(), Some("150000,150000"));
    let counts = sql("select rows_out from units where current").ok().out;
    assert_eq!(counts.lines().last(), Some("150000"), "the record counts what is in the files");
    let attempts = sql("select count(*) from attempts where stage = 'ingest'").ok().out;
    assert_eq!(attempts.lines().last(), Some("2"), "what was in hand at the kill is not done beside it");
    assert_eq!(bucket.open_uploads().len(), dead, "of this attempt nothing is left open");
    assert!(!bucket.keys().iter().any(|key| key.contains("tmp")), "{:?}", bucket.keys());
}

/// A part that is refused for good: the error names the object and nothing is shown.
#[test]
fn c38_a_part_that_is_never_taken() {
    let (place, bucket) = (Place::new(), Bucket::new());
    let noise = |row: u64| {
        (0..60).map(|word| format!("{:016x}", operators::seed(row, &[&word.to_string()]))).collect::<String>()
    };
    let text: String = (0..60_000)
        .map(|row| format!("{{\"question\":\"q\",\"task_id\":\"mp-{row}\",\"prediction\":\"{}\"}}\n", noise(row)))
        .collect();
    place.write("in/big.jsonl", text);
    place.write("p.toml", ingest("in/*", "").replace("store = \"store\"", "store = \"s3://b/store\""));
    bucket.fail(|asked| (asked == "PART 3").then_some(403));
    let coa = |arguments: &[&str]| Said::from(bucket.of(place.command(arguments)).output().unwrap());
    coa(&["run", "p.toml"]).fails(1, &["cannot write `s3://b/store/tables/ingest/traces", "1 of 1 units failed"]);
    coa(&["sql", "select * from ingest.traces", "--store", "s3://b/store"]).fails(1, &["ingest"]);
    assert_eq!(bucket.open_uploads(), Vec::<String>::new(), "its parts were given back");
    bucket.fail(|_| None);
    coa(&["resume", "--store", "s3://b/store", "-q"]).ok();
    let count = coa(&["sql", "select count(*) from ingest.traces", "--store", "s3://b/store", "--format", "csv"]).ok();
    assert_eq!(count.out.lines().last(), Some("60000"));
}

/// The case's rows with so much beside them that a worker can be caught at work.
fn bulky(case: &Path) -> Vec<u8> {
    let padding = format!("{{\"padding\":\"{}\",", "x".repeat(400_000));
    let text = std::fs::read_to_string(case.join("in/rows.jsonl")).unwrap();
    as_runs(text.replace('{', &padding).as_bytes(), &[("answer", "prediction")])
}

/// A worker is stopped at work for longer than its sign of life is waited for; another does the unit; the first wakes.
#[test]
fn c40_a_worker_that_wakes_late() {
    let Some(case) = shared("cases/C40") else { return };
    let place = Place::new();
    place.write("in/rows.jsonl", bulky(&case));
    place.write("p.toml", ingest("in/*", ""));
    let start = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut run = start(&["run", "p.toml", "--jobs", "0"]);
    wait_until(&mut run, || records(&place.path("store/runs")) > 0 && place.path("store/queue").exists());
    let worker = ["worker", "--store", "store", "--jobs", "1", "--idle-exit", "2"];
    let mut first = start(&worker);
    wait_until(&mut first, || begun(&place, "ingest") == 1);
    signal(&first, libc::SIGSTOP);
    assert_eq!(records(&place.path("store/units")), 0, "it was stopped at work");
    let second = start(&["worker", "--store", "store", "--jobs", "1", "--idle-exit", "20"]);
    Said::from(run.wait_with_output().unwrap()).ok();
    let rows = || {
        let rows = place.sql("store", "select count(*) as n, count(distinct task_id) as ids from ingest.traces");
        (rows[0]["n"].as_i64().unwrap(), rows[0]["ids"].as_i64().unwrap())
    };
    assert_eq!(rows(), (100, 100));
    signal(&first, libc::SIGCONT);
    Said::from(first.wait_with_output().unwrap()).ok();
    assert_eq!(rows(), (100, 100), "what was thrown away is not seen");
    assert_eq!(place.number("store", "select count(*) from units"), 1);
    let attempts = place.sql("store", "select outcome, worker from attempts where stage = 'ingest' order by number");
    let outcomes: Vec<&str> = attempts.iter().map(|row| row["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["superseded", "complete"]);
    assert_ne!(attempts[0]["worker"], attempts[1]["worker"]);
    signal(&second, libc::SIGTERM);
    second.wait_with_output().unwrap();
}

/// A unit that is the death of its worker every time is given up, with a reason; other stages go on.
#[test]
fn c40_a_unit_that_kills_its_worker() {
    let Some(case) = shared("cases/C40") else { return };
    let place = Place::new();
    place.write("in/rows.jsonl", bulky(&case));
    place.write("other/a.jsonl", record("other", 6));
    let other = ingest("other/*", "").replace("[stages.ingest", "[stages.other");
    let other = other.split_once("[stages").unwrap().1;
    place.write("p.toml", format!("{}[stages{other}", ingest("in/*", "")));
    for kill in 1..=5 {
        let mut command = place.command(&["run", "p.toml", "-q", "--jobs", "1"]);
        let mut run = command.stderr(Stdio::null()).spawn().unwrap();
        wait_until(&mut run, || begun(&place, "ingest") == kill);
        run.kill().unwrap();
        run.wait().unwrap();
    }
    assert_eq!(records(&place.path("store/units/ingest")), 0, "it was killed at work every time");
    let words = "5 attempts in a row ended without a word";
    place.coa(&["run", "p.toml", "--jobs", "1"]).fails(1, &[words, "the process was killed or the machine died"]);
    assert_eq!(place.number("store", "select count(*) from other.traces"), 1, "the other stage goes on");
    let failed = place.sql("store", "select error from attempts where stage = 'ingest' and outcome = 'failed'");
    assert!(failed.len() == 1 && failed[0]["error"].as_str().unwrap().contains(words), "{failed:?}");
    place.coa(&["sql", "select * from ingest.traces", "--store", "store"]).fails(1, &["ingest"]);
}

/// There is nothing to set about how long a worker may be silent, so nothing can be set that does not fit together.
#[test]
fn c40_settings_that_do_not_fit_together() {
    let Some(case) = shared("cases/C40") else { return };
    let place = Place::new();
    let own = std::fs::read_to_string(case.join("pipeline.toml")).unwrap();
    let queue = own.split_once("[queue]").unwrap().1.split_once("[[stage]]").unwrap().0;
    place.write("p.toml", format!("{}[queue]{queue}", filters("in/*", 5)));
    place.coa(&["check", "p.toml"]).fails(2, &["p.toml:", "queue"]);
    place.write("p.toml", format!("reenqueue_orphaned_after = \"2s\"\n{}", filters("in/*", 5)));
    place.coa(&["check", "p.toml"]).fails(2, &["p.toml:1:1", "unknown key `reenqueue_orphaned_after`"]);
}
