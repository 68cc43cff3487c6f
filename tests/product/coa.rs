//! Running `coa` as a user does, and finding what tests may need.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// The checkout.
pub(crate) fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the checkout").to_owned()
}

/// A file beside the checkout that is not part of it: real data, for tests and measurements. `None`, with a message,
/// where it is absent.
pub(crate) fn shared(path: &str) -> Option<PathBuf> {
    let found = checkout().join("../shared").join(path);
    if found.exists() {
        return Some(found);
    }
    skipped(&format!("there is no ../shared/{path}"));
    None
}

/// Says why a test is skipped, past the test harness, which shows nothing of a test that passes.
pub(crate) fn skipped(why: &str) {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {why}");
}

/// The built binary: it lies two folders above the test binary.
pub(crate) fn binary() -> PathBuf {
    let here = std::env::current_exe().expect("a test knows its own path");
    let folder = here.parent().and_then(Path::parent).expect("a test binary lies in deps");
    let binary = folder.join("coa");
    assert!(binary.exists(), "`{}` is not built: run `make test`", binary.display());
    binary
}

/// A folder to work in, and what the environment of commands has besides.
pub(crate) struct Place {
    folder: TempDir,
    environment: Vec<(String, String)>,
}

/// What a command printed and how it ended.
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code().unwrap_or(-1), out: text(&output.stdout), err: text(&output.stderr) }
    }
}

impl Said {
    /// The command must have succeeded.
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{}\n{}", self.out, self.err);
        self
    }

    /// The command must have failed with this code and these words on stderr.
    pub(crate) fn fails(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, code, "{}\n{}", self.out, self.err);
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in:\n{}", self.err);
        }
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self
    }
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder"), environment: Vec::new() }
    }

    /// Sets a variable for the commands to come.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.environment.retain(|(other, _)| other != name);
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a file has a folder")).expect("a folder");
        std::fs::write(&path, content).expect("a file");
        path
    }

    /// `coa` in this folder, not yet started.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(arguments).current_dir(self.folder.path()).env_remove("COA_STORE").env_remove("RUST_LOG");
        // Queues of stores that are not local lie there: none is shared with another test.
        command.env("XDG_STATE_HOME", self.path("state"));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    pub(crate) fn coa(&self, arguments: &[&str]) -> Said {
        self.command(arguments).output().expect("coa starts").into()
    }

    /// Rows of a query on a store.
    pub(crate) fn sql(&self, store: &str, query: &str) -> Vec<Value> {
        let said = self.coa(&["sql", query, "--store", store, "--format", "json"]).ok();
        serde_json::from_str(&said.out).expect("rows as JSON")
    }

    /// The one number a query gives.
    pub(crate) fn number(&self, store: &str, query: &str) -> i64 {
        let rows = self.sql(store, query);
        let row = rows[0].as_object().expect("a row");
        row.values().next().and_then(Value::as_i64).unwrap_or_else(|| panic!("no number: {rows:?}"))
    }
}

/// Columns that tell how long something took: they differ between any two runs.
const TIMES: [&str; 2] = ["seconds", "tool_seconds"];

/// The tables of a store that stages wrote.
pub(crate) fn table_names(place: &Place, store: &str) -> Vec<String> {
    let query = "select table_schema || '.' || table_name as name from information_schema.tables \
                 where table_schema not in ('public', 'views', 'information_schema')";
    let said = place.coa(&["sql", query, "--store", store, "--format", "json"]);
    if said.err.contains("there is no store") {
        return Vec::new();
    }
    let rows: Vec<Value> = serde_json::from_str(&said.ok().out).unwrap();
    rows.iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
}

/// Every table with its rows in an order of their own, without what differs between any two runs.
pub(crate) fn tables(place: &Place, store: &str) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    for name in table_names(place, store) {
        let mut rows: Vec<String> = place
            .sql(store, &format!("select * from {name}"))
            .into_iter()
            .map(|mut row| {
                for column in TIMES {
                    row.as_object_mut().unwrap().remove(column);
                }
                row.to_string()
            })
            .collect();
        rows.sort();
        found.insert(name, rows);
    }
    found
}

/// A pipeline from OAgents records to filtered trajectories.
pub(crate) fn filters(source: &str, min_interactions: u32) -> String {
    format!(
        r#"name = "filters"
store = "store"
[stages.ingest]
operator = "ingest_traces"
params = {{ format = "oagents", source = "{source}" }}
[stages.convert]
operator = "convert_coa"
inputs = {{ traces = "ingest.traces", steps = "ingest.steps" }}
[stages.complexity]
operator = "complexity_filter"
inputs = {{ rows = "convert.trajectories" }}
[stages.complexity.params]
min_interactions = {min_interactions}
"#
    )
}

/// An OAgents record with this many searches.
pub(crate) fn record(task: &str, searches: usize) -> String {
    let steps: Vec<Value> = (1..=searches)
        .map(|step| {
            serde_json::json!({"step_type": "action", "step": step, "model_output": "Thought: look",
                "tool_calls": [{"id": format!("c{step}"), "type": "function",
                    "function": {"name": "web_search", "arguments": {"query": format!("{task} {step}")}}}],
                "observations": format!("page {step} of {task}"), "error": null})
        })
        .collect();
    serde_json::json!({"agent_name": "team", "task_id": task, "question": format!("What is {task}?"), "prediction": "a",
        "true_answer": "a", "intermediate_steps": steps, "agent_error": null, "search_agent_actions": {}})
    .to_string()
}
