//! Steps: what happened within a trace, one row each, flat, as a tree by `parent_step_id`.

use serde::{Deserialize, Serialize};

use crate::{Column, Micros, Table};

/// What a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// The task as the agent was given it.
    Task,
    /// A plan: `text` holds it.
    Plan,
    /// One turn of an agent: `text` holds what the model wrote. Its calls are its children.
    Turn,
    /// One tool call: `tool`, `arguments`, `observation`.
    Call,
    /// A judgement of the turn it belongs to, by a critic or verifier: `text`, `score`.
    Critique,
    /// An answer: `text` holds it.
    Answer,
}

/// One step of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Step {
    /// The trace it belongs to.
    pub trace_id: String,
    /// Unique within the trace.
    pub step_id: String,
    /// The step it is part of; null at the top.
    pub parent_step_id: Option<String>,
    /// Place in the trace, from 0, depth first.
    pub position: i64,
    /// The agent that acted, where recorded.
    pub agent: Option<String>,
    /// What the step is.
    pub kind: StepKind,
    /// What was written: the model's text, a plan, a judgement, an answer.
    pub text: Option<String>,
    /// Tool name, for calls.
    pub tool: Option<String>,
    /// The call's id in the source.
    pub call_id: Option<String>,
    /// The call's arguments as a JSON object.
    pub arguments: Option<String>,
    /// What the tool returned; null where nothing was recorded, empty where it returned nothing.
    pub observation: Option<String>,
    /// A critic's score, on the source's own scale.
    pub score: Option<f64>,
    /// The kind of error the step ended with.
    pub error_type: Option<String>,
    /// The error's message.
    pub error: Option<String>,
    /// When it started.
    pub started_at: Option<Micros>,
    /// When it ended.
    pub ended_at: Option<Micros>,
    /// Tokens read by the model; null where not recorded.
    pub input_tokens: Option<i64>,
    /// Tokens written by the model; null where not recorded.
    pub output_tokens: Option<i64>,
    /// Calls that the source lists for a turn, answers included; null where it has no list.
    pub calls: Option<i64>,
}

impl Step {
    /// A step of `kind` with everything else unknown.
    pub fn new(trace_id: &str, step_id: impl Into<String>, position: usize, kind: StepKind) -> Self {
        Self {
            trace_id: trace_id.to_owned(),
            step_id: step_id.into(),
            parent_step_id: None,
            position: position as i64,
            agent: None,
            kind,
            text: None,
            tool: None,
            call_id: None,
            arguments: None,
            observation: None,
            score: None,
            error_type: None,
            error: None,
            started_at: None,
            ended_at: None,
            input_tokens: None,
            output_tokens: None,
            calls: None,
        }
    }
}

impl Table for Step {
    const NAME: &'static str = "steps";
    const VERSION: u32 = 1;
    const OVERRIDES: &'static [(&'static str, Column)] = &[
        ("kind", Column::Name),
        ("arguments", Column::OptionalJson),
        ("started_at", Column::OptionalTime),
        ("ended_at", Column::OptionalTime),
    ];
}
