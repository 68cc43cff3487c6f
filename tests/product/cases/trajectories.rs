//! What a case's runs become, and which of their answers counts.

use operators::coa::answer::exact_match;
use operators::coa::render;
use schemas::{Role, Segment};
use serde_json::Value;

use super::{ingested, lines};
use crate::coa::shared;

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
