//! Runs a trained model on questions as an agent that really calls tools, and judges its answers.

use std::num::{NonZeroU32, NonZeroUsize};

use operators::tokens::{Codec, TOKENIZER_FILE};
use operators::toolbox::corpus_tools;
use operators::{FilesIn, In, Operator, OperatorError, Out, ParamsError, Port, Queue, Split, UnitContext};
use schemars::JsonSchema;
use schemas::{Page, Question, Rollout};
use serde::{Deserialize, Serialize};

use crate::device::{check_threads, device, use_threads};
use crate::model;
use crate::rollout::{Engine, Job, Limits, Sampling};

/// Parameters of `evaluate`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Rollouts a question.
    #[serde(default = "one")]
    pub samples: NonZeroU32,
    /// Logits are divided by it; 0 always takes the most likely token.
    #[serde(default)]
    pub temperature: f64,
    /// A rollout is ended at this many tokens, the prompt and observations included.
    #[serde(default = "tokens")]
    pub max_tokens: NonZeroUsize,
    /// A rollout is ended when it asks for more calls than this.
    #[serde(default = "calls")]
    pub max_calls: NonZeroUsize,
    /// Results a search shows.
    #[serde(default = "results")]
    pub search_results: NonZeroUsize,
    /// Rollouts in a batch.
    #[serde(default = "batch")]
    pub batch: NonZeroUsize,
    /// Processor threads; as many as there are processors where not given.
    #[serde(default)]
    pub threads: Option<NonZeroU32>,
}

fn one() -> NonZeroU32 {
    NonZeroU32::new(1).expect("not 0")
}
fn tokens() -> NonZeroUsize {
    NonZeroUsize::new(32_768).expect("not 0")
}
fn calls() -> NonZeroUsize {
    NonZeroUsize::new(24).expect("not 0")
}
fn results() -> NonZeroUsize {
    NonZeroUsize::new(2).expect("not 0")
}
fn batch() -> NonZeroUsize {
    NonZeroUsize::new(64).expect("not 0")
}

/// The operator.
pub struct Evaluate {
    params: Params,
}

const MODEL: FilesIn = FilesIn::new("model", "model", "the model, in Hugging Face layout");
const QUESTIONS: In<Question> = In::new("questions", "what it is asked");
const PAGES: In<Page> = In::new("pages", "what its tools search and read");
const ROLLOUTS: Out<Rollout> = Out::new("rollouts", "one row a rollout");

/// Rows are written in groups of this many.
const GROUP: usize = 64;

impl Operator for Evaluate {
    const NAME: &'static str = "evaluate";
    const VERSION: u32 = 1;
    const ABOUT: &'static str = "Runs a model on questions as an agent: it writes, calls real tools, reads what they \
                                 return and answers. Every question counts, answered or not.";
    const INPUTS: &'static [Port] = &[MODEL.port(), QUESTIONS.port(), PAGES.port()];
    const OUTPUTS: &'static [Port] = &[ROLLOUTS.port()];
    const SEEDED: bool = true;
    const QUEUE: Queue = Queue::Gpu;
    type Params = Params;

    fn new(params: Params) -> Result<Self, ParamsError> {
        if !(params.temperature >= 0.0 && params.temperature.is_finite()) {
            return Err(ParamsError::at("temperature", "out of range: a temperature is 0 or above"));
        }
        check_threads(params.threads)?;
        Ok(Self { params })
    }

    fn split(&self) -> Split {
        Split::Whole
    }

    fn run(&self, cx: &UnitContext<'_>) -> Result<(), OperatorError> {
        use_threads(self.params.threads);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let codec = Codec::load(&cx.file(&MODEL, TOKENIZER_FILE)?.path)?;
        let weights = cx.file(&MODEL, model::WEIGHTS_FILE)?;
        let model = model::load(&cx.file(&MODEL, model::CONFIG_FILE)?.path, &weights.path, device())?;
        if (model.config.vocabulary as usize) < codec.size() {
            return Err(OperatorError::input("the tokenizer has more ids than the model")
                .hint("use the tokenizer that belongs to the model"));
        }
        let tools = corpus_tools(cx.all(&PAGES)?, self.params.search_results.get(), threads)?;
        let mut jobs: Vec<Job> = Vec::new();
        for question in cx.all(&QUESTIONS)? {
            let samples = 0..i64::from(self.params.samples.get());
            jobs.extend(samples.map(|sample| Job { question: question.clone(), sample }));
        }
        if jobs.is_empty() {
            return Err(OperatorError::input("there are 0 questions to ask"));
        }
        let engine = Engine {
            model: &model,
            digest: &weights.digest,
            codec: &codec,
            tools: &tools,
            limits: Limits { tokens: self.params.max_tokens.get(), calls: self.params.max_calls.get() },
            sampling: Sampling { temperature: self.params.temperature, vocabulary: codec.size() as i64 },
            seed: cx.seed("rollouts"),
            places: self.params.batch.get(),
            tool_threads: threads,
        };
        cx.progress.begin(Some(jobs.len() as u64), "rollouts");
        let (mut done, mut right) = (0_u64, 0_u64);
        let mut all: Vec<Rollout> = Vec::new();
        engine.run(jobs, |rollout| {
            cx.check_stop()?;
            done += 1;
            right += u64::from(rollout.correct);
            cx.progress.at(done, &format!("{:.1} % right", 100.0 * right as f64 / done as f64));
            all.push(rollout);
            Ok(())
        })?;
        // In the order of the questions, not in the order they ended in.
        all.sort_by(|a, b| a.rollout_id.cmp(&b.rollout_id));
        for group in all.chunks(GROUP) {
            cx.append(&ROLLOUTS, group)?;
        }
        Ok(())
    }
}
