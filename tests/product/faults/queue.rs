//! The queue's database is lost in the middle of a run: deleted, overwritten, or locked by somebody else.

use std::process::{Command, Stdio};

use super::{Running, Scene, background, files_below, units_done, wait_until};

/// Runs, does something to the queue when some units are done, and sees the run end well.
fn disturbed(harm: impl FnOnce(&std::path::Path)) {
    let scene = Scene::new(12, 40);
    let mut run = scene.start(&["run", "p.toml"]);
    let store = scene.place.path("store");
    wait_until(&mut [&mut run], || units_done(&store) >= 3);
    harm(&store.join("queue/jobs.sqlite"));
    run.end().ok();
    scene.holds("store");
}

#[test]
fn deleted() {
    disturbed(|database| std::fs::remove_dir_all(database.parent().unwrap()).unwrap());
}

#[test]
fn overwritten() {
    disturbed(|database| {
        for end in ["", "-wal", "-shm"] {
            let path = format!("{}{end}", database.display());
            if let Ok(facts) = std::fs::metadata(&path) {
                std::fs::write(&path, vec![0xA5; facts.len() as usize]).unwrap();
            }
        }
    });
}

#[test]
fn locked_by_somebody_else() {
    disturbed(|database| {
        let hold = "import sqlite3, sys\n\
                    db = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)\n\
                    db.execute('BEGIN EXCLUSIVE')\n\
                    print('held', flush=True)\n\
                    import time; time.sleep(2)\n\
                    db.execute('COMMIT')\n";
        let mut command = Command::new("python3");
        command.args(["-c", hold]).arg(database).stdout(Stdio::piped());
        let held = Running(Some(background(command)));
        held.end().ok();
    });
}

/// The queue believes that jobs are with a worker, and that the worker lives: it was given them and never got them.
#[test]
fn given_to_nobody() {
    let scene = Scene::new(3, 40);
    let mut run = scene.start(&["run", "p.toml", "--jobs", "0"]);
    let database = scene.place.path("store/queue/jobs.sqlite");
    let give = "import sqlite3, sys, time\n\
                db = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)\n\
                db.execute(\"INSERT INTO Workers (id, worker_type, storage_name, layers, last_seen, started_at) \
                VALUES ('nobody', 'cpu', 's', '', 9999999999, 0)\")\n\
                given = 0\n\
                while given < 3:\n    \
                    given += db.execute(\"UPDATE Jobs SET status = 'Queued', lock_by = 'nobody', \
                    lock_at = strftime('%s', 'now') WHERE status = 'Pending'\").rowcount\n";
    wait_until(&mut [&mut run], || database.exists() && files_below(&scene.place.path("store/runs")).len() == 1);
    let mut command = Command::new("python3");
    command.args(["-c", give]).arg(&database).stdout(Stdio::piped());
    Running(Some(background(command))).end().ok();
    let _worker = scene.start(&["worker", "--store", "store", "--jobs", "1"]);
    run.end().ok();
    scene.holds("store");
}
