//! Workers on a PostgreSQL queue: they share a backfill, one is stopped past its lease and wakes later, one has a wrong
//! clock, and the database crashes in the middle.

use super::server::{Postgres, program};
use super::{Running, Scene, background, files_below, units_done, wait_until};

/// Arguments of a worker that leaves when there is nothing more to do.
fn worker(queue: &str) -> [&str; 7] {
    ["worker", "--queue", queue, "--jobs", "1", "--idle-exit", "3"]
}

#[test]
fn two_share_a_backfill() {
    let Some(database) = Postgres::start() else { return };
    let scene = Scene::new(20, 20);
    let queue = database.url();
    let workers = [scene.start(&worker(&queue)), scene.start(&worker(&queue))];
    let backfill = ["backfill", "p.toml", "--partitions", "2026-03-01..2026-03-20", "--queue", &queue, "--jobs", "0"];
    scene.place.coa(&backfill).ok();
    for worker in workers {
        worker.end().ok();
    }
    scene.holds("store");
    let by_worker = scene.place.sql("store", "select worker, count(*) as n from units group by worker");
    assert_eq!(by_worker.len(), 2, "{by_worker:?}");
    assert!(by_worker.iter().all(|row| row["n"].as_u64().unwrap() >= 10), "{by_worker:?}");
    let doubled = "select count(*) - count(distinct unit) from attempts";
    assert_eq!(scene.place.number("store", doubled), 0, "no unit was begun twice");
}

#[test]
fn one_is_stopped_past_its_lease_and_wakes() {
    let Some(database) = Postgres::start() else { return };
    // Units large enough to be caught at work.
    let scene = Scene::new(2, 3000);
    let queue = database.url();
    let mut first = scene.start(&worker(&queue));
    let mut run = scene.start(&["run", "p.toml", "--queue", &queue, "--jobs", "0"]);
    let store = scene.place.path("store");
    let begun = || files_below(&store.join("attempts")).iter().any(|name| name.ends_with(".json"));
    wait_until(&mut [&mut first, &mut run], begun);
    first.signal(libc::SIGSTOP);
    assert_eq!(units_done(&store), 0, "it was stopped at work");
    let second = scene.start(&["worker", "--queue", &queue, "--jobs", "1"]);
    run.end().ok();
    scene.holds("store");
    // It goes on with a unit that was given to another and done meanwhile.
    first.signal(libc::SIGCONT);
    first.end().ok();
    second.signal(libc::SIGTERM);
    second.end().ok();
    scene.holds("store");
    let tried = "select count(*) as n from attempts group by unit having count(*) > 1";
    assert_eq!(scene.place.sql("store", tried).len(), 1, "one unit was given to another worker");
    let once = "select count(*) - count(distinct unit) from units";
    assert_eq!(scene.place.number("store", once), 0);
}

#[test]
fn the_database_crashes_in_the_middle() {
    let Some(database) = Postgres::start() else { return };
    let scene = Scene::new(16, 30);
    let queue = database.url();
    let mut worker = scene.start(&worker(&queue));
    let mut run = scene.start(&["run", "p.toml", "--queue", &queue, "--jobs", "1"]);
    let store = scene.place.path("store");
    wait_until(&mut [&mut worker, &mut run], || units_done(&store) >= 4);
    database.crash_and_restart();
    run.end().ok();
    scene.holds("store");
    worker.end().ok();
}

#[test]
fn one_has_a_clock_that_is_an_hour_ahead() {
    if !program("faketime") {
        return;
    }
    let Some(database) = Postgres::start() else { return };
    let scene = Scene::new(12, 20);
    let queue = database.url();
    let right = scene.start(&worker(&queue));
    let plain = scene.place.command(&worker(&queue));
    let mut command = std::process::Command::new("faketime");
    command
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .args(["-f", "+1h"])
        .arg(plain.get_program())
        .args(plain.get_args());
    command.current_dir(scene.place.path("."));
    let wrong = Running(Some(background(command)));
    scene.place.coa(&["run", "p.toml", "--queue", &queue, "--jobs", "0"]).ok();
    right.end().ok();
    wrong.end().ok();
    scene.holds("store");
    let by_worker = scene.place.sql("store", "select worker, count(*) as n from units group by worker");
    assert_eq!(by_worker.len(), 2, "both worked: {by_worker:?}");
}
