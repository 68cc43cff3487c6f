//! Drops trajectories with too few agent-tool interactions to teach collaboration.

use std::num::NonZeroU32;

use schemars::JsonSchema;
use schemas::Trajectory;
use serde::{Deserialize, Serialize};

use super::{RowFilter, Verdict};
use crate::params::ParamsError;

/// Parameters of `complexity_filter`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Trajectories with fewer interactions than this are rejected. An interaction is a call together with what it
    /// returned; a call without result does not count, an answer is not a call.
    #[serde(default = "five")]
    pub min_interactions: NonZeroU32,
}

fn five() -> NonZeroU32 {
    NonZeroU32::new(5).expect("5 is not 0")
}

/// The filter.
pub struct Complexity {
    min_interactions: i64,
}

impl RowFilter for Complexity {
    const NAME: &'static str = "complexity_filter";
    const VERSION: u32 = 1;
    const ABOUT: &'static str = "Drops trajectories with too few agent-tool interactions to teach collaboration.";
    type Row = Trajectory;
    type Params = Params;

    fn new(params: Params) -> Result<Self, ParamsError> {
        Ok(Self { min_interactions: params.min_interactions.get().into() })
    }

    fn identify(row: &Trajectory) -> (String, Option<String>) {
        (row.trajectory_id.clone(), row.task_id.clone())
    }

    fn judge(&self, row: Trajectory, _seed: u64) -> Verdict<Trajectory> {
        if row.interactions < self.min_interactions {
            let detail = format!("{} interactions, at least {} wanted", row.interactions, self.min_interactions);
            return Verdict::reject("too_few_interactions", detail);
        }
        Verdict::Keep(row)
    }
}
