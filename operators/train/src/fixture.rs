//! A small corpus for tests: trajectories, a tokenizer trained on them, and their tokens.

use operators::memory::MemoryIo;
use operators::tokens::tokenize::Tokenize;
use operators::tokens::train_tokenizer::TrainTokenizer;
use operators::tokens::{Codec, TOKENIZER_CONFIG, TOKENIZER_FILE};
use operators::{Operator, seed};
use schemas::{Domain, Question, Role, Segment, TokenizedSample, Trajectory};
use serde_json::{Value, json};

pub(crate) struct Fixture {
    pub(crate) tokenizer: Vec<u8>,
    pub(crate) config: Vec<u8>,
    pub(crate) tokens: Vec<TokenizedSample>,
}

pub(crate) fn operator<O: Operator>(params: Value) -> O {
    O::new(serde_json::from_value(params).expect("parameters")).expect("an operator")
}

fn trajectory(number: u64) -> Trajectory {
    let mut call = Segment::new(Role::Tool, format!("lake {}", number % 7));
    call.tool = Some("web_search".into());
    let words = "depth ".repeat(seed(number, &["words"]) as usize % 9);
    Trajectory {
        trajectory_id: format!("t{number}"),
        task_id: None,
        question: format!("How deep is lake {}?", number % 7),
        golden_answers: vec![],
        answer: None,
        source_verdict: None,
        domain: Domain::Qa,
        segments: vec![
            Segment::new(Role::Think, format!("look {words}")),
            call,
            Segment::new(Role::Observation, format!("{} m", number % 7 * 10)),
            Segment::new(Role::Answer, format!("{}", number % 7 * 10)),
        ],
        interactions: 1,
        tool_calls: 1,
        notes: vec![],
        weight: 1.0 + (number % 2) as f64,
    }
}

pub(crate) fn fixture() -> Fixture {
    let rows: Vec<Trajectory> = (0..60).map(trajectory).collect();
    let io = MemoryIo::new().unwrap().with_rows("rows", &rows).unwrap();
    io.run(&operator::<TrainTokenizer>(json!({"vocabulary": 330})), 0).unwrap();
    let [tokenizer, config] = [TOKENIZER_FILE, TOKENIZER_CONFIG].map(|name| io.written("tokenizer", name).unwrap());
    let io = MemoryIo::new().unwrap().with_rows("rows", &rows).unwrap();
    let io = io.with_file("tokenizer", TOKENIZER_FILE, &tokenizer).unwrap();
    io.run(&operator::<Tokenize>(json!({})), 0).unwrap();
    Fixture { tokenizer, config, tokens: io.rows("tokens").unwrap() }
}

impl Fixture {
    pub(crate) fn codec(&self) -> Codec {
        Codec::from_bytes(&self.tokenizer).unwrap()
    }

    pub(crate) fn io(&self) -> MemoryIo {
        let io = MemoryIo::new().unwrap().with_rows("tokens", &self.tokens).unwrap();
        let io = io.with_file("tokenizer", TOKENIZER_FILE, &self.tokenizer).unwrap();
        io.with_file("tokenizer", TOKENIZER_CONFIG, &self.config).unwrap()
    }

    pub(crate) fn question(&self, number: u64) -> Question {
        Question {
            question_id: format!("q{number}"),
            question: format!("How deep is lake {}?", number % 7),
            golden_answers: vec![format!("{}", number % 7 * 10)],
            kind: "depth".into(),
            hops: 1,
            entities: vec![],
        }
    }
}
