//! `coa check`: all mistakes at once, each with its place; nothing is read or written.

use crate::coa::{Place, filters, shared};

#[test]
fn a_good_file_passes_and_touches_nothing() {
    let place = Place::new();
    place.write("p.toml", filters("nowhere/*.jsonl", 5));
    let said = place.coa(&["check", "p.toml"]).ok();
    assert_eq!(said.out, "p.toml: 3 stages, no mistakes\n");
    assert!(!place.path("store").exists());
}

#[test]
fn mistakes_are_shown_with_line_column_and_caret() {
    let place = Place::new();
    let text = filters("in/*.jsonl", 7).replace("min_interactions = 7", "min_interaction = 7\nmin_calls = \"many\"");
    place.write("p.toml", text);
    let said = place.coa(&["check", "p.toml"]).fails(2, &[]);
    let expected = "\
error: unknown key `min_interaction` (operator `complexity_filter`)
  --> p.toml:13:1
   |
13 | min_interaction = 7
   | ^^^^^^^^^^^^^^^
   |
   = hint: did you mean `min_interactions`?

error: unknown key `min_calls` (operator `complexity_filter`)
  --> p.toml:14:1
   |
14 | min_calls = \"many\"
   | ^^^^^^^^^
   |
   = hint: expected one of `min_interactions`

2 mistakes in p.toml
";
    assert_eq!(said.err, expected);
    place.coa(&["run", "p.toml"]).fails(2, &["unknown key `min_interaction`"]);
    assert!(!place.path("store").exists(), "nothing runs");
}

/// Values that are texts to TOML and more to an operator: each is judged where it stands.
#[test]
fn texts_with_a_meaning_are_checked() {
    let place = Place::new();
    place.write(
        "p.toml",
        r#"name = "bad"
store = "http://host/x"
[stages.a]
operator = "ingest_traces"
[stages.a.params]
format = "oagents"
source = "in/{date/*.jsonl"
repair = ["x", "non_finite", "y"]
where = ["n >= ", "ok", "a b"]
naive_timezone = "Mars"
[stages.b]
operator = "ingest_traces"
params = { format = "oagents", source = "s3:/b/*.jsonl" }
"#,
    );
    let said = place.coa(&["check", "p.toml"]).fails(
        2,
        &[
            "`store`: `http://host/x` is no usable address: unknown scheme `http`",
            "p.toml:2:9",
            "`source`: `in/{date/*.jsonl` is no usable pattern: a `{` is not closed",
            "p.toml:7:10",
            "unknown variant `x`",
            "p.toml:8:11",
            "unknown variant `y`",
            "p.toml:8:30",
            "`n >= ` does not end in a number",
            "p.toml:9:10",
            "`a b` does not begin with one field",
            "p.toml:9:25",
            "`Mars` is no time zone: name one as Asia/Shanghai",
            "p.toml:10:18",
            "two slashes follow `s3:`",
            "p.toml:13:41",
            "8 mistakes in p.toml",
        ],
    );
    assert_eq!(said.out, "");
    place.coa(&["plan", "p.toml"]).fails(2, &["8 mistakes"]);
}

/// The broken examples of case C51, written with this product's keys at the same lines.
#[test]
fn the_broken_settings_of_case_c51() {
    let Some(case) = shared("cases/C51") else { return };
    let place = Place::new();
    std::fs::create_dir(place.path("in")).unwrap();
    std::fs::copy(case.join("in/traces.jsonl"), place.path("in/traces.jsonl")).unwrap();
    // The placeholder files as they stand are not pipelines of this product, and are refused by line.
    for name in ["ok", "typo_key", "typo_type", "percent"] {
        let path = case.join(format!("{name}.toml"));
        place
            .coa(&["check", path.to_str().unwrap()])
            .fails(2, &[&format!("{name}.toml:2:2"), "unknown key `pipeline`"]);
    }
    let file = |key: &str, value: &str| {
        // The setting stands on line 8, as in the case.
        format!(
            r#"name = "demo"
store = "store"
# the complexity filter
[stages.complexity]
operator = "complexity_filter"
inputs = {{ rows = "convert.trajectories" }}
[stages.complexity.params]
{key} = {value}
[stages.ingest]
operator = "ingest_traces"
params = {{ format = "oagents", source = "in/*.jsonl" }}
[stages.convert]
operator = "convert_coa"
inputs = {{ traces = "ingest.traces", steps = "ingest.steps" }}
"#
        )
    };
    place.write("typo_key.toml", file("min_interaction", "7"));
    place
        .coa(&["check", "typo_key.toml"])
        .fails(2, &["typo_key.toml:8:1", "unknown key `min_interaction`", "did you mean `min_interactions`?"]);
    let screen = |value: &str| {
        file("min_interactions", "7")
            .replace("complexity_filter", "reflection_filter")
            .replace("min_interactions = 7", &format!("keep_without = {value}"))
    };
    place.write("typo_type.toml", screen("\"0,3\""));
    place.coa(&["check", "typo_type.toml"]).fails(2, &["typo_type.toml:8:16", "invalid type: string \"0,3\""]);
    for percent in ["30", "30.0"] {
        place.write("percent.toml", screen(percent));
        place
            .coa(&["check", "percent.toml"])
            .fails(2, &["percent.toml:8:16", "out of range: 30, expected a number from 0 to 1"]);
    }
    for broken in ["typo_key.toml", "typo_type.toml", "percent.toml"] {
        place.coa(&["run", broken]).fails(2, &[broken]);
        assert!(!place.path("store").exists(), "{broken}: nothing is written");
    }
    place.write("ok.toml", file("min_interactions", "7"));
    place.coa(&["run", "ok.toml"]).ok();
    assert_eq!(place.number("store", "select count(*) from complexity.kept"), 2);
    let status = place.coa(&["status", "--store", "store", "--json"]).ok();
    let status: serde_json::Value = serde_json::from_str(&status.out).unwrap();
    assert_eq!(status["settings"]["stages"]["complexity"]["params"]["min_interactions"], 7);
    assert_eq!(status["settings"]["stages"]["ingest"]["params"]["domain"], "qa", "defaults are stored too");
}

#[test]
fn operators_are_described_from_the_code() {
    let place = Place::new();
    let list = place.coa(&["operators"]).ok().out;
    for name in ["complexity_filter", "convert_coa", "evaluate", "ingest_traces", "sft", "tokenize"] {
        assert!(list.lines().any(|line| line.starts_with(name)), "{name} is not in:\n{list}");
    }
    let one = place.coa(&["operators", "complexity_filter"]).ok().out;
    for words in ["min_interactions (integer from 1, default 5)", "rows of `trajectories` v1", "rejected"] {
        assert!(one.contains(words), "{words:?} is not in:\n{one}");
    }
    place.coa(&["operators", "complexity_filtr"]).fails(2, &["did you mean `complexity_filter`?"]);
}
