//! What a model is trained on, and the weights it begins with.

use std::path::Path;

use operators::Operator;
use operators::coa::render::{self, Author, Run};
use operators::memory::MemoryIo;
use operators::tokens::{Codec, tokenize};
use schemas::{Domain, Rejected, Role, Segment, TokenizedSample, Trajectory};
use serde_json::{Value, json};

use super::lines;
use crate::coa::shared;

/// The case's tokenizer with the chat tokens that it lacks, behind its own.
fn chat_tokenizer(case: &Path) -> Vec<u8> {
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(case.join("tokenizer.json")).unwrap()).unwrap();
    let size = tokenizer["model"]["vocab"].as_object().unwrap().len();
    let added = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"].iter().enumerate().map(|(i, name)| {
        json!({"id": size + 100 + i, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    });
    tokenizer["added_tokens"].as_array_mut().unwrap().extend(added);
    tokenizer.to_string().into_bytes()
}

/// A text's segments: what each is, its text, and the characters inside its tags.
fn spans(text: &Value) -> Vec<(String, String)> {
    let characters: Vec<char> = text["text"].as_str().unwrap().chars().collect();
    let spans = text["segments"].as_array().unwrap().iter().map(|span| {
        let at = |key: &str| span[key].as_u64().unwrap() as usize;
        (span["kind"].as_str().unwrap().to_owned(), characters[at("start")..at("end")].iter().collect())
    });
    spans.collect()
}

/// Observations are masked by who wrote them, not by searching for marker tokens: with every segment a run of its own,
/// ids and mask are those of the case.
#[test]
fn c28_ids_and_mask_segment_by_segment() {
    let Some(case) = shared("cases/C28") else { return };
    let codec = Codec::from_bytes(&chat_tokenizer(&case)).unwrap();
    let expected = lines(&case.join("expected.jsonl"));
    let texts = lines(&case.join("in/texts.jsonl"));
    assert_eq!((texts.len(), expected.len()), (5, 5));
    for (text, expected) in texts.iter().zip(&expected) {
        assert_eq!(text["id"], expected["id"]);
        let runs = spans(text).into_iter().map(|(kind, text)| {
            let author = if kind == "observation" { Author::Environment } else { Author::Policy };
            Run { author, text, roles: Vec::new() }
        });
        let tokens =
            tokenize::tokens(&codec, &runs.collect::<Vec<Run>>()).unwrap().expect("the ids give the text back");
        assert_eq!(json!(tokens.ids), expected["by_segment_ids"], "{text}");
        let mask: Vec<u8> = tokens.mask.iter().map(|trained| u8::from(*trained)).collect();
        assert_eq!(json!(mask), expected["by_segment_mask"], "{text}");
        assert_eq!(codec.decode(&tokens.ids).unwrap(), text["text"].as_str().unwrap());
    }
}

/// The same texts as trajectories, through the operator: nothing is dropped, the ids give the text back, and exactly what
/// the environment wrote is masked. In this product's layout that is the block with the line feeds around it, so the
/// separator behind an observation is the environment's and never the model's to write.
#[test]
fn c28_nothing_but_the_environment_is_masked() {
    let Some(case) = shared("cases/C28") else { return };
    let tokenizer = chat_tokenizer(&case);
    let codec = Codec::from_bytes(&tokenizer).unwrap();
    let texts = lines(&case.join("in/texts.jsonl"));
    let rows: Vec<Trajectory> = texts.iter().map(trajectory).collect();
    let io = MemoryIo::new().unwrap().with_rows("rows", &rows).unwrap();
    let io = io.with_file("tokenizer", "tokenizer.json", &tokenizer).unwrap();
    let operator = tokenize::Tokenize::new(serde_json::from_value(json!({})).unwrap()).unwrap();
    io.run(&operator, 1).unwrap();
    assert_eq!(io.rows::<Rejected>("rejected").unwrap(), []);
    let samples: Vec<TokenizedSample> = io.rows("tokens").unwrap();
    assert_eq!(samples.len(), rows.len());
    for (row, sample) in rows.iter().zip(&samples) {
        assert_eq!(row.trajectory_id, sample.sample_id);
        let part = |wanted: Option<bool>| {
            let ids = sample.input_ids.iter().zip(&sample.loss_mask);
            let ids = ids.filter(|(_, trained)| wanted.is_none_or(|wanted| **trained == wanted));
            codec.decode(&ids.map(|(id, _)| *id as u32).collect::<Vec<u32>>()).unwrap()
        };
        let prompt = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(part(None), format!("{prompt}{}<|im_end|>", render::text(&row.segments)));
        let (mut observed, mut written) = (prompt.to_owned(), String::new());
        for run in render::runs(&row.segments) {
            let part = if run.author == Author::Environment { &mut observed } else { &mut written };
            part.push_str(&run.text);
        }
        assert_eq!(part(Some(false)), observed);
        assert_eq!(part(Some(true)), format!("{written}<|im_end|>"));
        let observations = row.segments.iter().filter(|segment| segment.role == Role::Observation);
        for observation in observations.filter(|observation| !observation.text.is_empty()) {
            assert!(observed.contains(&observation.text) && !written.contains(&observation.text), "{observation:?}");
        }
    }
}

/// A text of the case with its own segments; nothing is parsed.
fn trajectory(text: &Value) -> Trajectory {
    let mut segments = Vec::new();
    for (kind, text) in spans(text).into_iter().filter(|(kind, _)| kind != "sep") {
        let body = text.strip_prefix(&format!("<{kind}>")).unwrap().strip_suffix(&format!("</{kind}>")).unwrap();
        let role = match kind.as_str() {
            "think" => Role::Think,
            "plan" => Role::Plan,
            "web_search" => Role::Tool,
            "observation" => Role::Observation,
            "answer" => Role::Answer,
            other => panic!("{other}"),
        };
        let mut segment = Segment::new(role, body);
        if role == Role::Tool {
            segment.tool = Some(kind);
        }
        segments.push(segment);
    }
    Trajectory {
        trajectory_id: text["id"].as_str().unwrap().to_owned(),
        task_id: None,
        question: "q".to_owned(),
        golden_answers: Vec::new(),
        answer: None,
        source_verdict: None,
        domain: Domain::Qa,
        segments,
        interactions: 1,
        tool_calls: 1,
        notes: Vec::new(),
        weight: 1.0,
    }
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
