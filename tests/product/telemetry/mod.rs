//! What runs and workers tell while they work: log lines, spans, metrics, and `coa status --watch`.

mod collector;
mod lines;
mod metrics;
mod traces;
mod watch;

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;

use crate::coa::{Place, record};
use crate::faults::Running;

/// A command in the background whose output goes to files.
struct Told {
    running: Running,
    out: PathBuf,
    err: PathBuf,
}

impl Told {
    fn start(place: &Place, name: &str, arguments: &[&str]) -> Self {
        let (out, err) = (place.path(&format!("{name}.out")), place.path(&format!("{name}.err")));
        let mut command = place.command(arguments);
        command.stdin(Stdio::null()).stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
        Self { running: Running::new(command.spawn().expect("coa starts")), out, err }
    }

    fn out(&self) -> String {
        std::fs::read_to_string(&self.out).unwrap()
    }

    fn err(&self) -> String {
        std::fs::read_to_string(&self.err).unwrap()
    }

    /// Waits until it has told something; it must not end before.
    fn tells(&mut self, word: &str) {
        loop {
            let ended = self.running.has_ended();
            if self.err().contains(word) || self.out().contains(word) {
                return;
            }
            assert!(!ended, "it ended without {word:?}: {}", self.err());
            std::thread::yield_now();
        }
    }

    /// Waits for its end and gives its exit code.
    fn end(self) -> i32 {
        self.running.end().code
    }
}

/// Files of records under `raw`, each a partition; every one has one line that is no record.
fn sources(place: &Place, files: usize, records: usize) {
    for file in 0..files {
        let mut text = String::new();
        for number in 0..records {
            text.push_str(&record(&format!("t{file}-{number}"), 1 + (file + number) % 9));
            text.push('\n');
        }
        text.push_str("{\"agent_name\": \"cut\n");
        place.write(&format!("raw/part-{file}.jsonl"), text);
    }
}

/// A pipeline whose last stage trains for longer than any test waits.
fn endless() -> String {
    r#"name = "endless"
store = "store"
[stages.pages]
operator = "world_pages"
[stages.ingest]
operator = "ingest_traces"
params = { format = "oagents", source = "raw/*.jsonl" }
[stages.convert]
operator = "convert_coa"
inputs = { traces = "ingest.traces", steps = "ingest.steps" }
[stages.tokenizer]
operator = "train_tokenizer"
inputs = { rows = "convert.trajectories", pages = "pages.pages" }
params = { vocabulary = 500 }
[stages.tokens]
operator = "tokenize"
inputs = { rows = "convert.trajectories", tokenizer = "tokenizer.tokenizer" }
[stages.sft]
operator = "sft"
inputs = { tokens = "tokens.tokens", tokenizer = "tokenizer.tokenizer" }
[stages.sft.params]
steps = 10000000
batch = 4
checkpoint_every = 1000
measure_every = 1000
optimizer = "muon"
model = { hidden = 32, layers = 1, heads = 2, kv_heads = 1, intermediate = 48 }
"#
    .to_owned()
}
