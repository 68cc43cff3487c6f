//! Drops trajectories that are wrong, repeat themselves or break the grammar.

use std::collections::HashSet;

use schemars::JsonSchema;
use schemas::{Role, Trajectory};
use serde::{Deserialize, Serialize};

use super::{RowFilter, Verdict};
use crate::coa::answer;
use crate::coa::grammar::{self, Grammar};
use crate::context::{seed, share};
use crate::params::{Fraction, ParamsError};

/// When an answer counts as right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerRule {
    /// It equals an accepted answer after normalisation. Where there is none, the source's own verdict decides.
    Exact,
    /// It contains an accepted answer as whole words. Where there is none, the source's own verdict decides.
    Contains,
    /// The answer is not looked at.
    Any,
}

/// Parameters of `quality_filter`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// When an answer counts as right. A trajectory whose answer cannot be judged is rejected, never guessed.
    #[serde(default = "exact")]
    pub answer: AnswerRule,
    /// Share of the trajectories with a wrong answer that is kept all the same, by a seeded hash of the trajectory's
    /// id. For studies of what a later stage repairs; 0 for a model that is to be good.
    #[serde(default = "none")]
    pub keep_wrong: Fraction,
    /// Rules on which segment may follow which.
    #[serde(default = "web")]
    pub grammar: Grammar,
    /// Whether every role must be preceded by a thought. Turn it off for teachers that do not record their reasoning.
    #[serde(default = "yes")]
    pub require_think: bool,
}

fn exact() -> AnswerRule {
    AnswerRule::Exact
}
fn none() -> Fraction {
    Fraction::new(0.0)
}
fn web() -> Grammar {
    Grammar::Web
}
fn yes() -> bool {
    true
}

/// The filter.
pub struct Quality {
    params: Params,
}

impl RowFilter for Quality {
    const NAME: &'static str = "quality_filter";
    const VERSION: u32 = 1;
    const ABOUT: &'static str =
        "Drops trajectories with a wrong answer, with the same tool input twice, or that break the grammar.";
    const SEEDED: bool = true;
    type Row = Trajectory;
    type Params = Params;

    fn new(params: Params) -> Result<Self, ParamsError> {
        Ok(Self { params })
    }

    fn identify(row: &Trajectory) -> (String, Option<String>) {
        (row.trajectory_id.clone(), row.task_id.clone())
    }

    fn judge(&self, row: Trajectory, pipeline_seed: u64) -> Verdict<Trajectory> {
        if let Some(rejection) = self.judge_answer(&row, seed(pipeline_seed, &[Self::NAME])) {
            return rejection;
        }
        let mut seen = HashSet::new();
        for segment in row.segments.iter().filter(|segment| segment.role == Role::Tool) {
            if !seen.insert((&segment.tool, segment.text.trim())) {
                let tool = segment.tool.as_deref().unwrap_or("tool");
                return Verdict::reject("redundant_call", format!("`{tool}` twice with {:?}", segment.text.trim()));
            }
        }
        let broken = grammar::check(&row.segments, self.params.grammar, self.params.require_think);
        if let Some(first) = broken.first() {
            let all: Vec<String> = broken.iter().map(|v| format!("segment {}: {}", v.segment, v.rule)).collect();
            return Verdict::reject(first.rule, all.join("; "));
        }
        Verdict::Keep(row)
    }
}

impl Quality {
    fn judge_answer(&self, row: &Trajectory, seed: u64) -> Option<Verdict<Trajectory>> {
        let compare = match self.params.answer {
            AnswerRule::Any => return None,
            AnswerRule::Exact => answer::exact_match,
            AnswerRule::Contains => answer::contains,
        };
        let Some(given) = &row.answer else {
            return Some(Verdict::reject("no_answer", "the trajectory has no answer segment"));
        };
        match compare(&row.golden_answers, given).or(row.source_verdict) {
            Some(true) => None,
            Some(false) if share(seed, &row.trajectory_id) < self.params.keep_wrong.get() => None,
            Some(false) => {
                let accepted = row.golden_answers.join(" | ");
                Some(Verdict::reject("wrong_answer", format!("answered {given:?}, accepted {accepted:?}")))
            }
            None => Some(Verdict::reject("unknown_answer", "no accepted answer and no verdict in the source")),
        }
    }
}
