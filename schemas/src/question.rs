//! Questions with known answers: what a teacher, a rollout or an evaluation is asked.

use serde::{Deserialize, Serialize};

use crate::Table;

/// One question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Question {
    /// Unique within the table.
    pub question_id: String,
    /// As asked.
    pub question: String,
    /// Accepted answers, at least one.
    pub golden_answers: Vec<String>,
    /// The kind of question, e.g. its template.
    pub kind: String,
    /// Facts that must be looked up or computed on the way to the answer.
    pub hops: i64,
    /// What the question is about; two sets of questions are disjoint when no two of their questions share all of it.
    pub entities: Vec<String>,
}

impl Table for Question {
    const NAME: &'static str = "questions";
    const VERSION: u32 = 1;
    const KEY: Option<&'static str> = Some("question_id");
}
