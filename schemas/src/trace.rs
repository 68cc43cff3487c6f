//! Traces: one recorded run of a teacher (or student) agent, without its steps.

use serde::{Deserialize, Serialize};

use crate::{Column, Micros, Table};

/// How a recorded run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TraceStatus {
    /// With an answer.
    Completed,
    /// At the step limit.
    IterationLimit,
    /// With output that could not be parsed.
    ParsingError,
    /// With an exception.
    AgentError,
}

/// What kind of task a trace or trajectory solves; the filters treat them differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Domain {
    /// Question answering by search.
    Qa,
    /// Mathematics.
    Math,
    /// Programming.
    Code,
}

/// One recorded run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Trace {
    /// Derived from the source's address, the byte offset and the record's bytes.
    pub trace_id: String,
    /// The source's address.
    pub source: String,
    /// Physical line on which the record starts, from 1.
    pub line: i64,
    /// Offset of its first byte in the source, after decompression.
    pub byte_offset: i64,
    /// The layout it was read as.
    pub format: String,
    /// The task's id in the source, as text; null where the source has none.
    pub task_id: Option<String>,
    /// The raw question.
    pub question: String,
    /// Accepted answers; empty where the source has none.
    pub golden_answers: Vec<String>,
    /// The run's answer as recorded; it may have been rewritten after the run.
    pub prediction: Option<String>,
    /// The agent's own last answer, where the steps have one.
    pub agent_answer: Option<String>,
    /// The source's own word on whether the answer is right; null where it says nothing.
    pub source_verdict: Option<bool>,
    /// What kind of task it is.
    pub domain: Domain,
    /// How the run ended.
    pub status: TraceStatus,
    /// The error it ended with.
    pub error: Option<String>,
    /// The model or agent that ran.
    pub agent_name: Option<String>,
    /// When it started; null where the source has no time that can be read without guessing.
    pub started_at: Option<Micros>,
    /// When it ended.
    pub ended_at: Option<Micros>,
    /// Rows it has in `steps`.
    pub steps: i64,
    /// Repairs made while reading, each a word; empty for a record read as it stands.
    pub repaired: Vec<String>,
    /// Values that could not be read and are null here, each with its field and the reason; null where there is none.
    pub unread: Option<Vec<String>>,
}

impl Table for Trace {
    const NAME: &'static str = "traces";
    const VERSION: u32 = 1;
    const KEY: Option<&'static str> = Some("trace_id");
    const OVERRIDES: &'static [(&'static str, Column)] = &[
        ("domain", Column::Name),
        ("status", Column::Name),
        ("started_at", Column::OptionalTime),
        ("ended_at", Column::OptionalTime),
    ];
}
