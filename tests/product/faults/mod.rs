//! Faults that a run survives: it ends with the rows of an undisturbed one, row for row.

mod collecting;
mod conformance;
mod disk;
mod proxy;
mod queue;
mod server;
mod storms;
mod workers;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::coa::{Place, Said, filters, record, tables};

pub(crate) use server::Postgres;

/// A backfill's worth of sources, and what an undisturbed run makes of them.
struct Scene {
    place: Place,
    expected: BTreeMap<String, Vec<String>>,
}

impl Scene {
    /// Sources with this many partitions, one a day from 2026-03-01, and records in each.
    fn new(partitions: usize, records: usize) -> Self {
        let place = Place::new();
        for day in 1..=partitions {
            let mut text = String::new();
            for number in 0..records {
                text.push_str(&record(&format!("t{day}-{number}"), 1 + (day + number) % 9));
                text.push('\n');
            }
            if day % 3 == 0 {
                text.push_str("{\"agent_name\": \"cut\n");
            }
            place.write(&format!("raw/2026-03-{day:02}/part.jsonl"), text);
        }
        place.write("p.toml", filters("raw/{date:%Y-%m-%d}/*.jsonl", 5));
        place.coa(&["run", "p.toml", "--store", "undisturbed", "-q"]).ok();
        let expected = tables(&place, "undisturbed");
        assert!(expected.len() >= 6 && !expected["complexity.kept"].is_empty(), "{:?}", expected.keys());
        Self { place, expected }
    }

    /// A store must hold what the undisturbed one does.
    fn holds(&self, store: &str) {
        let found = tables(&self.place, store);
        assert_eq!(found.keys().collect::<Vec<_>>(), self.expected.keys().collect::<Vec<_>>());
        for (name, rows) in &self.expected {
            assert_eq!(&found[name], rows, "{name}");
        }
    }

    /// Starts a command in the background.
    fn start(&self, arguments: &[&str]) -> Running {
        Running(Some(background(self.place.command(arguments))))
    }
}

fn background(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a command starts")
}

/// A command in the background; killed if the test ends before it.
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn new(child: Child) -> Self {
        Self(Some(child))
    }

    fn id(&self) -> i32 {
        self.0.as_ref().expect("not waited for").id() as i32
    }

    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: the process is our child and was not waited for.
        unsafe { libc::kill(self.id(), signal) };
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.as_mut().expect("not waited for").try_wait().expect("a child can be asked").is_some()
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Said {
        self.0.take().expect("not waited for").wait_with_output().expect("a child ends").into()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// How many records of finished units a local store has.
fn units_done(store: &Path) -> usize {
    files_below(&store.join("units")).into_iter().filter(|name| name.ends_with(".json")).count()
}

fn files_below(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.path().is_dir() {
            true => found.extend(files_below(&entry.path())),
            false => found.push(entry.path().display().to_string()),
        }
    }
    found
}

/// Waits until something holds; whatever it waits for must not end before.
fn wait_until(running: &mut [&mut Running], holds: impl Fn() -> bool) {
    while !holds() {
        for command in running.iter_mut() {
            if command.has_ended() {
                let said = Running(command.0.take()).end();
                panic!("it ended before: {} {}", said.code, said.err);
            }
        }
        std::thread::yield_now();
    }
}
