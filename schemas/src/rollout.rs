//! Rollouts: one run of the trained model as an agent.

use serde::{Deserialize, Serialize};

use crate::{Column, Segment, Table};

/// Why a rollout ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// With `</answer>`.
    Answer,
    /// The model ended its turn without an answer.
    Stop,
    /// At the token limit.
    Length,
    /// At the limit of tool calls.
    CallLimit,
}

/// One rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Rollout {
    /// Question id and sample number.
    pub rollout_id: String,
    /// The question's id.
    pub question_id: String,
    /// Which of the samples of this question, from 0.
    pub sample: i64,
    /// The question as asked.
    pub question: String,
    /// The kind of question.
    pub kind: String,
    /// Accepted answers.
    pub golden_answers: Vec<String>,
    /// The model's last answer; null where it gave none.
    pub answer: Option<String>,
    /// Whether the answer equals an accepted one after normalisation. No answer is wrong.
    pub correct: bool,
    /// Why it ended.
    pub finish: Finish,
    /// What was written and observed.
    pub segments: Vec<Segment>,
    /// Token ids, prompt first, exactly as sampled and observed.
    pub input_ids: Vec<i32>,
    /// True for the ids the model sampled.
    pub sampled: Vec<bool>,
    /// Log-probability of each sampled id at the time of sampling, in nats; 0 elsewhere.
    pub log_probs: Vec<f32>,
    /// Tool calls made.
    pub tool_calls: i64,
    /// Calls that were malformed or that the tool answered with an error.
    pub failed_calls: i64,
    /// Tokens of the prompt.
    pub prompt_tokens: i64,
    /// Tokens the model sampled.
    pub sampled_tokens: i64,
    /// Tokens of observations.
    pub observation_tokens: i64,
    /// Wall time spent in tools, in seconds.
    pub tool_seconds: f64,
    /// Wall time from start to end, in seconds; other rollouts of the batch run in the same time.
    pub seconds: f64,
    /// Sampling temperature; 0 is greedy.
    pub temperature: f64,
    /// Digest of the model's weights.
    pub model: String,
}

impl Table for Rollout {
    const NAME: &'static str = "rollouts";
    const VERSION: u32 = 1;
    const KEY: Option<&'static str> = Some("rollout_id");
    const OVERRIDES: &'static [(&'static str, Column)] = &[
        ("finish", Column::Name),
        ("segments.element.role", Column::Name),
        ("segments.element.arguments", Column::OptionalJson),
    ];
}
