//! SIGKILL during every stage, then `coa resume`: the same rows, the same model bit for bit, nothing doubled, and no
//! table ever shown in part.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::coa::{Place, skipped, table_names, tables};

/// The quickstart's pipeline in small.
pub(crate) const PIPELINE: &str = r#"
name = "small"
store = "store"
seed = 3
[stages.pages]
operator = "world_pages"
[stages.questions]
operator = "world_questions"
params = { train = 40, heldout = 4, last = 8, units = 2 }
[stages.teacher]
operator = "world_teacher"
inputs = { questions = "questions.train", pages = "pages.pages" }
[stages.ingest]
operator = "ingest_traces"
inputs = { records = "teacher.records" }
params = { format = "oagents" }
[stages.convert]
operator = "convert_coa"
inputs = { traces = "ingest.traces", steps = "ingest.steps" }
[stages.complexity]
operator = "complexity_filter"
inputs = { rows = "convert.trajectories" }
params = { min_interactions = 3 }
[stages.quality]
operator = "quality_filter"
inputs = { rows = "complexity.kept" }
[stages.reflection]
operator = "reflection_filter"
inputs = { rows = "quality.kept" }
[stages.correction]
operator = "correction_upsample"
inputs = { rows = "reflection.kept" }
[stages.tokenizer]
operator = "train_tokenizer"
inputs = { rows = "correction.kept", pages = "pages.pages" }
params = { vocabulary = 500 }
[stages.tokens]
operator = "tokenize"
inputs = { rows = "correction.kept", tokenizer = "tokenizer.tokenizer" }
[stages.sft]
operator = "sft"
inputs = { tokens = "tokens.tokens", tokenizer = "tokenizer.tokenizer" }
[stages.sft.params]
steps = 24
batch = 4
checkpoint_every = 6
measure_every = 6
optimizer = "muon"
model = { hidden = 32, layers = 1, heads = 2, kv_heads = 1, intermediate = 48 }
[stages.agent]
operator = "evaluate"
inputs = { model = "sft.model", questions = "questions.last", pages = "pages.pages" }
params = { temperature = 1.0, max_tokens = 160, max_calls = 4, batch = 4 }
"#;

const STAGES: [&str; 13] = [
    "pages",
    "questions",
    "teacher",
    "ingest",
    "convert",
    "complexity",
    "quality",
    "reflection",
    "correction",
    "tokenizer",
    "tokens",
    "sft",
    "agent",
];

/// Name and digest of every file that a stage's units wrote.
fn files(place: &Place, stage: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for folder in std::fs::read_dir(place.path(&format!("store/units/{stage}"))).unwrap() {
        for record in std::fs::read_dir(folder.unwrap().path()).unwrap() {
            let record: Value = serde_json::from_slice(&std::fs::read(record.unwrap().path()).unwrap()).unwrap();
            for file in record["files"].as_array().unwrap().iter().flat_map(|port| port["files"].as_array().unwrap()) {
                let text = |key: &str| file[key].as_str().unwrap().to_owned();
                found.insert(text("name"), text("sha256"));
            }
        }
    }
    found
}

/// Whether any attempt at a unit of the stage has begun.
fn begun(store: &Path, stage: &str) -> bool {
    let Ok(prints) = std::fs::read_dir(store.join("attempts").join(stage)) else { return false };
    prints.flatten().any(|print| std::fs::read_dir(print.path()).is_ok_and(|mut found| found.next().is_some()))
}

fn has_checkpoint(store: &Path) -> bool {
    let Ok(units) = std::fs::read_dir(store.join("checkpoints")) else { return false };
    units.flatten().any(|unit| {
        std::fs::read_dir(unit.path())
            .is_ok_and(|found| found.flatten().any(|file| file.file_name().to_string_lossy().ends_with(".json")))
    })
}

/// Starts a command and kills it as soon as `when` holds, or lets it end.
fn kill_when(place: &Place, arguments: &[&str], when: impl Fn(&Path) -> bool) -> bool {
    let mut child = place.command(arguments).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let store = place.path("store");
    loop {
        if when(&store) {
            child.kill().unwrap();
            child.wait().unwrap();
            return true;
        }
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "it ended by itself, and badly");
            return false;
        }
        std::thread::yield_now();
    }
}

#[test]
fn killed_during_every_stage_and_resumed() {
    let undisturbed = Place::new();
    undisturbed.write("p.toml", PIPELINE);
    let said = undisturbed.coa(&["run", "p.toml", "-q"]);
    if said.err.contains("sandbox cannot be set up") {
        skipped(&said.err);
        return;
    }
    said.ok();
    let expected = tables(&undisturbed, "store");
    assert!(expected.len() > 15 && !expected["agent.rollouts"].is_empty(), "{:?}", expected.keys());

    let place = Place::new();
    place.write("p.toml", PIPELINE);
    let mut kills = 0;
    for (index, stage) in STAGES.iter().enumerate() {
        let command: &[&str] = if index == 0 { &["run", "p.toml"] } else { &["resume", "--store", "store"] };
        kills += u32::from(kill_when(&place, command, |store| begun(store, stage)));
        seen_whole_or_not_at_all(&place, &expected, stage);
        if *stage == "sft" {
            // Once more, when training has something to go on from.
            kills += u32::from(kill_when(&place, &["resume", "--store", "store"], has_checkpoint));
            seen_whole_or_not_at_all(&place, &expected, stage);
        }
    }
    assert_eq!(kills, STAGES.len() as u32 + 1, "the command ended before it could be killed");
    place.coa(&["resume", "--store", "store"]).ok();
    let found = tables(&place, "store");
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, rows) in &expected {
        assert_eq!(&found[name], rows, "{name}");
    }
    for stage in ["teacher", "tokenizer", "sft"] {
        assert_eq!(files(&place, stage), files(&undisturbed, stage), "{stage}");
    }
    let doubled = "select count(*) - count(distinct trajectory_id) from convert.trajectories";
    assert_eq!(place.number("store", doubled), 0);
    // A second resume has nothing to do.
    let said = place.coa(&["resume", "--store", "store"]).ok();
    assert!(said.err.contains("done: 0 units"), "{}", said.err);
}

/// A table is what it will be in the end, or it is not there.
fn seen_whole_or_not_at_all(place: &Place, expected: &BTreeMap<String, Vec<String>>, when: &str) {
    let names = table_names(place, "store");
    if names.is_empty() {
        return;
    }
    let counts: Vec<String> =
        names.iter().map(|name| format!("select '{name}' as name, count(*) as n from {name}")).collect();
    for row in place.sql("store", &counts.join(" union all ")) {
        let (name, n) = (row["name"].as_str().unwrap(), row["n"].as_u64().unwrap() as usize);
        let whole = expected[name].len();
        // A table is made before its first entry: empty for a moment, as that of a stage that wrote nothing is.
        assert!(n == whole || n == 0, "{name} after the kill in {when}: {n} of {whole} rows");
    }
}

#[test]
fn a_run_that_is_asked_to_stop_comes_to_a_safe_place() {
    let place = Place::new();
    // Long enough to be interrupted for sure.
    place.write(
        "p.toml",
        PIPELINE.replace("steps = 24", "steps = 100000").replace("checkpoint_every = 6", "checkpoint_every = 50"),
    );
    let mut child = place.command(&["run", "p.toml"]).stderr(Stdio::piped()).spawn().unwrap();
    let store = place.path("store");
    while !has_checkpoint(&store) {
        if let Some(status) = child.try_wait().unwrap() {
            let said: crate::coa::Said = child.wait_with_output().unwrap().into();
            assert!(said.err.contains("sandbox cannot be set up"), "{status}: {}", said.err);
            skipped(&said.err);
            return;
        }
        std::thread::yield_now();
    }
    // SAFETY: the process is our child and was not waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    let said: crate::coa::Said = child.wait_with_output().unwrap().into();
    said.fails(130, &["interrupted; `coa resume --store store` goes on"]);
    let attempts = place.sql("store", "select outcome from attempts where stage = 'sft'");
    assert_eq!(attempts[0]["outcome"], "interrupted");
    let runs = place.sql("store", "select outcome from runs");
    assert_eq!(runs[0]["outcome"], "interrupted");

    // The checkpoint it left tells what it was trained on.
    let units = std::fs::read_dir(store.join("checkpoints")).unwrap().flatten();
    let files = units.flat_map(|unit| std::fs::read_dir(unit.path()).unwrap().flatten());
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    let step = names.filter_map(|name| name.strip_suffix(".json")?.parse::<u64>().ok()).max().unwrap();
    let told = place.coa(&["lineage", &format!("sft@{step}"), "--store", "store", "--json"]).ok().out;
    let told: Value = serde_json::from_str(&told).unwrap();
    let training = &told["training"];
    assert_eq!((training["checkpoint"].as_u64(), training["steps"].as_u64()), (Some(step), Some(100_000)));
    assert_eq!(training["data"][0]["rows"], place.number("store", "select count(*) from tokens.tokens"));
    place
        .coa(&["lineage", "sft@7", "--store", "store"])
        .fails(2, &["no checkpoint or model `sft@7`", &format!("sft@{step}")]);
}

/// How many times a run is killed: COA_TEST_KILLS, or as many as take little time.
fn kills() -> u64 {
    std::env::var("COA_TEST_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(20)
}

/// Killed at moments drawn from a seed, spread over the whole run.
#[test]
fn killed_at_random_moments() {
    let undisturbed = Place::new();
    undisturbed.write("p.toml", PIPELINE);
    let began = Instant::now();
    let said = undisturbed.coa(&["run", "p.toml", "-q"]);
    if said.err.contains("sandbox cannot be set up") {
        skipped(&said.err);
        return;
    }
    said.ok();
    let whole = began.elapsed();
    let expected = tables(&undisturbed, "store");

    let place = Place::new();
    place.write("p.toml", PIPELINE);
    let (kills, mut state, mut done) = (kills(), 0x2545_F491_4F6C_DD1D_u64, 0);
    let store = place.path("store");
    for kill in 0..kills {
        // xorshift: the moments are the same in every run of this test.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let share = (state >> 11) as f64 / (1_u64 << 53) as f64;
        // One kill a share of the run, and at least what it takes to start.
        let moment = Duration::from_millis(20) + whole.mul_f64(2.0 * share / kills.min(20) as f64);
        let resumable = store.join("runs").exists();
        let command: &[&str] = if resumable { &["resume", "--store", "store", "-q"] } else { &["run", "p.toml", "-q"] };
        let began = Instant::now();
        done += u64::from(kill_when(&place, command, |_| began.elapsed() >= moment));
        seen_whole_or_not_at_all(&place, &expected, &format!("kill {kill}"));
    }
    assert!(done * 2 >= kills, "{done} of {kills} kills hit a running command");
    let last = place.coa(&["run", "p.toml", "-q"]);
    // Kills may have hit one unit five times in a row, which is then given up once, as its message says.
    if last.err.contains("5 attempts in a row ended without a word") {
        place.coa(&["resume", "--store", "store", "-q"]).ok();
    } else {
        last.ok();
    }
    assert_eq!(tables(&place, "store"), expected);
    assert_eq!(files(&place, "sft"), files(&undisturbed, "sft"));
}
