//! Trajectories: a run rewritten as one Chain-of-Agents sequence of typed segments.

use serde::{Deserialize, Serialize};

use crate::{Column, Domain, Table};

/// Who speaks in a segment. Switching role is emitting another tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reasoning before another role speaks.
    Think,
    /// Sub-questions and their order.
    Plan,
    /// A tool call; the segment's `tool` is the tag.
    Tool,
    /// What the tool returned. Never written by the model.
    Observation,
    /// Self-criticism of what was found so far.
    Reflection,
    /// A candidate answer.
    SuggestedAnswer,
    /// The check of a candidate answer, with a score from 1 to 4.
    DoubleCheck,
    /// The final answer.
    Answer,
}

/// One piece of a trajectory, of one author and one role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Segment {
    /// Who speaks.
    pub role: Role,
    /// What stands between the tags, unescaped.
    pub text: String,
    /// The tool called or answering; null for other roles.
    pub tool: Option<String>,
    /// The arguments of a call as a JSON object.
    pub arguments: Option<String>,
    /// The step of the trace it was made from; null where a rollout wrote it.
    pub source_step: Option<String>,
}

/// One Chain-of-Agents sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Trajectory {
    /// The id of the trace it was made from.
    pub trajectory_id: String,
    /// The task's id in the source.
    pub task_id: Option<String>,
    /// The question as asked.
    pub question: String,
    /// Accepted answers; empty where unknown.
    pub golden_answers: Vec<String>,
    /// The text of the last answer segment; null where there is none.
    pub answer: Option<String>,
    /// The source's own word on whether the answer is right.
    pub source_verdict: Option<bool>,
    /// What kind of task it is.
    pub domain: Domain,
    /// The sequence.
    pub segments: Vec<Segment>,
    /// Agent-tool interactions: calls that are followed by what they returned.
    pub interactions: i64,
    /// Calls, whether or not anything was returned.
    pub tool_calls: i64,
    /// What conversion had to leave out or could not settle, each a word.
    pub notes: Vec<String>,
    /// How often the trajectory counts in training.
    pub weight: f64,
}

impl Segment {
    /// A segment of `role` that no step of a trace stands behind.
    pub fn new(role: Role, text: impl Into<String>) -> Self {
        Self { role, text: text.into(), tool: None, arguments: None, source_step: None }
    }

    /// The score, 1 to 4, that a double check states in prose ("The score is 4").
    ///
    /// The number after the last "score" counts ("score: 3", "score is 3/4", "scored 3"). Where the text has no such
    /// word it must hold exactly one number from 1 to 4. Anything else, 0 or 5 say, is no score.
    pub fn double_check_score(&self) -> Option<u8> {
        if self.role == Role::DoubleCheck { stated_score(&self.text) } else { None }
    }
}

impl Trajectory {
    /// The score of every double check, in order; `None` where a check states none or several.
    pub fn double_check_scores(&self) -> impl Iterator<Item = Option<u8>> {
        self.segments.iter().filter(|segment| segment.role == Role::DoubleCheck).map(Segment::double_check_score)
    }

    /// Whether any segment has this role.
    pub fn has(&self, role: Role) -> bool {
        self.segments.iter().any(|segment| segment.role == role)
    }
}

fn stated_score(text: &str) -> Option<u8> {
    let lower = text.to_lowercase();
    let numbers = |text: &str| -> Vec<u32> {
        text.split(|c: char| !c.is_ascii_digit())
            .filter(|digits| !digits.is_empty())
            .filter_map(|digits| digits.parse().ok())
            .collect()
    };
    let stated = match lower.rfind("score") {
        Some(at) => numbers(&lower[at..]).first().copied(),
        None => match numbers(&lower)[..] {
            [only] => Some(only),
            _ => None,
        },
    };
    stated.and_then(|score| u8::try_from(score).ok()).filter(|score| (1..=4).contains(score))
}

impl Table for Trajectory {
    const NAME: &'static str = "trajectories";
    const VERSION: u32 = 1;
    const KEY: Option<&'static str> = Some("trajectory_id");
    const OVERRIDES: &'static [(&'static str, Column)] = &[
        ("domain", Column::Name),
        ("segments.element.role", Column::Name),
        ("segments.element.arguments", Column::OptionalJson),
    ];
}

#[cfg(test)]
mod tests {
    use super::stated_score;

    #[test]
    fn a_double_check_states_one_score_or_none() {
        for (text, score) in [
            ("The score is 4.", Some(4)),
            ("Score: 2 of 4", Some(2)),
            ("2 sources agree. The score is 3/4", Some(3)),
            ("3", Some(3)),
            ("first score 1, then corrected: score 4", Some(4)),
            ("between 2 and 3", None),
            ("The score is 5", None),
            ("The score is 0", None),
            ("looks right", None),
            ("The score is 40", None),
        ] {
            assert_eq!(stated_score(text), score, "{text}");
        }
    }
}
