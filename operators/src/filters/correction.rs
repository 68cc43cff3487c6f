//! Raises the weight of trajectories that first doubted a candidate answer and were right in the end.

use schemars::JsonSchema;
use schemas::Trajectory;
use serde::{Deserialize, Serialize};

use super::{RowFilter, Verdict};
use crate::coa::answer;
use crate::params::{ParamsError, Positive};

/// Parameters of `correction_upsample`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// What the weight of such a trajectory is multiplied by. Copies are made only where a data set is exported.
    #[serde(default = "two")]
    pub times: Positive,
    /// A first double check with at most this score (1 to 4) counts as low.
    #[serde(default = "low")]
    pub low_score: u8,
}

fn two() -> Positive {
    Positive::new(2.0)
}
fn low() -> u8 {
    2
}

/// The filter.
pub struct Correction {
    times: f64,
    low_score: u8,
}

impl RowFilter for Correction {
    const NAME: &'static str = "correction_upsample";
    const VERSION: u32 = 1;
    const ABOUT: &'static str =
        "Raises the weight of trajectories whose first double check was low and whose answer is right.";
    type Row = Trajectory;
    type Params = Params;

    fn new(params: Params) -> Result<Self, ParamsError> {
        if !(1..=4).contains(&params.low_score) {
            return Err(ParamsError::at("low_score", "out of range: a double check scores 1 to 4"));
        }
        Ok(Self { times: params.times.get(), low_score: params.low_score })
    }

    fn identify(row: &Trajectory) -> (String, Option<String>) {
        (row.trajectory_id.clone(), row.task_id.clone())
    }

    fn judge(&self, mut row: Trajectory, _seed: u64) -> Verdict<Trajectory> {
        let first = row.double_check_scores().next().flatten();
        let right = row.answer.as_deref().and_then(|given| answer::exact_match(&row.golden_answers, given));
        if first.is_some_and(|score| score <= self.low_score) && right.or(row.source_verdict) == Some(true) {
            row.weight *= self.times;
        }
        Verdict::Keep(row)
    }
}
