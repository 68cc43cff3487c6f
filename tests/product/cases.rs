//! Cases from the field: inputs that broke other tools, with the right outcome. They lie beside the checkout.

use std::path::Path;

use operators::coa::answer::exact_match;
use operators::coa::render;
use schemas::{Role, Segment};
use serde_json::Value;

use crate::coa::{Place, filters, shared};

fn ingested(case: &Path, min_interactions: u32) -> Place {
    let place = Place::new();
    place.write("p.toml", filters(&format!("{}/in/*", case.display()), min_interactions));
    place.coa(&["run", "p.toml", "-q"]).ok();
    place
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A byte-order mark, CR LF, empty and blank lines.
#[test]
fn c01_byte_order_mark_and_carriage_returns() {
    let Some(case) = shared("cases/C01") else { return };
    let place = ingested(&case, 1);
    let rows = place.sql("store", "select task_id, question, line from ingest.traces order by task_id");
    let found: Vec<(&str, i64)> =
        rows.iter().map(|row| (row["task_id"].as_str().unwrap(), row["line"].as_i64().unwrap())).collect();
    assert_eq!(found, [("harbor-1", 1), ("harbor-2", 2), ("harbor-3", 4)]);
    assert_eq!(place.number("store", "select count(*) from ingest.quarantine"), 0);
    assert_eq!(place.number("store", "select sum(position(chr(13) in question)) from ingest.traces"), 0);
    assert!(rows[1]["question"].as_str().unwrap().contains("Zürich –"));
}

/// A page that quotes the tags: they are text, before and after rendering.
#[test]
fn c10_tags_inside_an_observation() {
    let Some(case) = shared("cases/C10") else { return };
    let place = ingested(&case, 5);
    let kept = place.sql("store", "select interactions, answer, segments from complexity.kept");
    assert_eq!((kept[0]["interactions"].as_i64(), kept[0]["answer"].as_str()), (Some(5), Some("Lyonell")));
    let segments: Vec<Segment> = serde_json::from_value(kept[0]["segments"].clone()).unwrap();
    let tools: Vec<&str> =
        segments.iter().filter(|s| s.role == Role::Tool).map(|s| s.tool.as_deref().unwrap()).collect();
    assert_eq!(tools.iter().filter(|tool| **tool == "web_search").count(), 3);
    assert_eq!(tools.iter().filter(|tool| **tool == "crawl_page").count(), 1);
    assert_eq!(tools.iter().filter(|tool| **tool == "code").count(), 1);
    let (read, flaws) = render::parse(&render::text(&segments));
    assert_eq!(flaws, []);
    let plain = |segments: &[Segment]| -> Vec<(Role, Option<String>, String)> {
        segments.iter().map(|s| (s.role, s.tool.clone(), s.text.clone())).collect()
    };
    assert_eq!(plain(&read), plain(&segments));
    assert!(segments.iter().any(|s| s.role == Role::Observation && s.text.contains("a < b, Vec<String>")));
    // Every character of the pages is the environment's, so none of it is trained.
    let written: String = render::runs(&segments)
        .into_iter()
        .filter(|run| run.author == render::Author::Policy)
        .map(|run| run.text)
        .collect();
    assert!(!written.contains("Paris") && !written.contains("Utopia"));
}

/// Runs that hit the step limit or crashed, with nulls everywhere.
#[test]
fn c16_step_limits_and_crashes() {
    let Some(case) = shared("cases/C16") else { return };
    let place = ingested(&case, 5);
    assert_eq!(place.number("store", "select count(*) from ingest.traces"), 3);
    let rejected = place.sql("store", "select task_id, reason from convert.rejected order by task_id");
    let rejected: Vec<(&str, &str)> =
        rejected.iter().map(|row| (row["task_id"].as_str().unwrap(), row["reason"].as_str().unwrap())).collect();
    assert_eq!(rejected, [("oa-2", "iteration_limit"), ("oa-3", "agent_error")]);
    let kept = place.sql("store", "select task_id, answer, golden_answers from complexity.kept");
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0]["task_id"], "oa-1");
    let golden: Vec<String> = serde_json::from_value(kept[0]["golden_answers"].clone()).unwrap();
    assert_eq!(exact_match(&golden, kept[0]["answer"].as_str().unwrap()), Some(true));
    let calls = "select count(*) from ingest.steps s join ingest.traces t on s.trace_id = t.trace_id where task_id = 'oa-2' and kind = 'call'";
    assert_eq!(place.number("store", calls), 6, "the final answer is not a call");
}

/// Gold answers that normalise to nothing.
#[test]
fn c21_empty_gold_answers() {
    let Some(case) = shared("cases/C21") else { return };
    let pairs = lines(&case.join("in/pairs.jsonl"));
    for (pair, expected) in pairs.iter().zip(lines(&case.join("expected.jsonl"))) {
        let gold: Vec<String> = match &pair["gold"] {
            Value::String(text) => vec![text.clone()],
            other => serde_json::from_value(other.clone()).unwrap(),
        };
        let found = exact_match(&gold, pair["pred"].as_str().unwrap());
        assert_eq!(found, expected["match"].as_bool(), "{pair}");
    }
}

/// Which answer counts, where the text is the model's own.
#[test]
fn c23_which_answer_counts() {
    let Some(case) = shared("cases/C23") else { return };
    let expected = lines(&case.join("expected.jsonl"));
    for (transcript, expected) in lines(&case.join("in/transcripts.jsonl")).iter().zip(expected) {
        let response = transcript["response"].as_str().unwrap();
        if response.contains("\\boxed") {
            continue; // answers of mathematics are not extracted yet
        }
        let (segments, _) = render::parse(response);
        let answer = segments.iter().rev().find(|s| s.role == Role::Answer).map(|s| s.text.trim().to_owned());
        assert_eq!(answer.as_deref(), expected["answer"].as_str(), "{transcript}");
    }
}

/// Observations are masked by who wrote them, not by searching for marker tokens.
#[test]
fn c28_no_marker_search() {
    let Some(case) = shared("cases/C28") else { return };
    let tokenizer = std::fs::read(case.join("tokenizer.json")).unwrap();
    // The case's tokenizer has no chat tokens; they are added behind its own.
    let mut tokenizer: Value = serde_json::from_slice(&tokenizer).unwrap();
    let size = tokenizer["model"]["vocab"].as_object().unwrap().len();
    let added: Vec<Value> = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        .iter()
        .enumerate()
        .map(|(i, name)| {
            serde_json::json!({"id": size + 100 + i, "content": name, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true})
        })
        .collect();
    tokenizer["added_tokens"].as_array_mut().unwrap().extend(added);
    let codec = operators::tokens::Codec::from_bytes(tokenizer.to_string().as_bytes()).unwrap();
    for text in lines(&case.join("in/texts.jsonl")) {
        // The spans of the case as author runs: a separator behind an observation is the model's own.
        let characters: Vec<char> = text["text"].as_str().unwrap().chars().collect();
        let mut runs: Vec<(bool, String)> = Vec::new();
        for span in text["segments"].as_array().unwrap() {
            let at = |key: &str| span[key].as_u64().unwrap() as usize;
            let part: String = characters[at("start")..at("end")].iter().collect();
            let observed = span["kind"] == "observation";
            match runs.last_mut() {
                Some((last, text)) if *last == observed => text.push_str(&part),
                _ => runs.push((observed, part)),
            }
        }
        let (mut ids, mut trained, mut masked) = (Vec::new(), String::new(), String::new());
        for (observed, part) in &runs {
            let encoded = codec.encode(part).unwrap().ids;
            let back = codec.decode(&encoded).unwrap();
            assert_eq!(&back, part);
            if *observed {
                masked.push_str(&back)
            } else {
                trained.push_str(&back)
            }
            ids.extend(encoded);
        }
        assert_eq!(codec.decode(&ids).unwrap(), text["text"].as_str().unwrap());
        assert_eq!(trained.chars().count() + masked.chars().count(), characters.len());
        assert!(!trained.contains("result") && !trained.contains("page page"), "{text}");
    }
}

/// Settings that changed between a run and its continuation.
#[test]
fn c43_edited_settings() {
    let Some(case) = shared("cases/C43") else { return };
    let place = Place::new();
    let copy = |from: &str| {
        for entry in std::fs::read_dir(case.join(from)).unwrap() {
            let entry = entry.unwrap();
            place.write(&format!("in/{}", entry.file_name().to_string_lossy()), std::fs::read(entry.path()).unwrap());
        }
    };
    copy("in");
    place.write("p.toml", filters("in/*", 5));
    place.coa(&["run", "p.toml", "-q"]).ok();
    assert_eq!(place.number("store", "select count(*) from complexity.kept"), 5);
    place.write("p.toml", filters("in/*", 6));
    let said = place.coa(&["run", "p.toml"]).ok();
    assert!(said.err.contains("done: 1 units"), "ingestion and conversion are reused:\n{}", said.err);
    assert_eq!(place.number("store", "select count(*) from complexity.kept"), 4, "no rows of both versions");
    let said = place.coa(&["run", "p.toml", "--jobs", "16"]).ok();
    assert!(said.err.contains("done: 0 units"), "the number of workers is neutral:\n{}", said.err);
    copy("in_added");
    place.coa(&["run", "p.toml", "-q"]).ok();
    assert_eq!(place.number("store", "select count(*) from complexity.kept"), 5, "the added object is noticed");
    let path = place.path("in/traces.jsonl");
    let same_size = std::fs::read_to_string(&path).unwrap().replace("Next I look", "Then I look");
    std::fs::write(&path, same_size).unwrap();
    place.coa(&["run", "p.toml", "-q"]).ok();
    let changed =
        "select count(*) from (select unnest(segments) as s from complexity.kept) where s['text'] like 'Then I look%'";
    assert!(place.number("store", changed) > 0, "overwritten content of the same size is noticed");
}

/// A tied output head, an untied one, and one that is missing.
#[test]
fn c53_tied_output_heads() {
    let Some(case) = shared("cases/C53") else { return };
    let load = |name: &str| {
        let folder = case.join(name);
        operators_train::model::load(&folder.join("config.json"), &folder.join("model.safetensors"), tch::Device::Cpu)
    };
    let tied = load("tied").unwrap();
    let ids = tch::Tensor::from_slice(&[1_i64, 2, 3]).unsqueeze(0);
    let hidden = tied.hidden(&ids);
    let embedding = &tied.weights()[0].1;
    assert!(tied.logits(&hidden) == hidden.linear(embedding, None::<&tch::Tensor>));
    assert!(tied.weights().iter().all(|(name, _)| name != "lm_head.weight"));
    let untied = load("untied").unwrap();
    assert!(untied.weights().iter().any(|(name, _)| name == "lm_head.weight"));
    let error = load("untied_missing").err().unwrap();
    assert!(error.message.contains("lm_head.weight"), "{}", error.message);
}
