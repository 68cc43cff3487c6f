//! Prefers trajectories that criticise themselves: keeps a share of those without reflection.

use schemars::JsonSchema;
use schemas::{Domain, Role, Trajectory};
use serde::{Deserialize, Serialize};

use super::{RowFilter, Verdict};
use crate::context::{seed, share};
use crate::params::{Fraction, ParamsError};

/// Parameters of `reflection_filter`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Share of the trajectories without reflection that is kept, decided by a seeded hash of the trajectory's id.
    /// Trajectories of mathematics and code are dropped without one.
    #[serde(default = "third")]
    pub keep_without: Fraction,
}

fn third() -> Fraction {
    Fraction::new(0.3)
}

/// The filter.
pub struct Reflection {
    keep_without: f64,
}

impl RowFilter for Reflection {
    const NAME: &'static str = "reflection_filter";
    const VERSION: u32 = 1;
    const ABOUT: &'static str = "Down-samples trajectories without reflection; drops them for mathematics and code.";
    const SEEDED: bool = true;
    type Row = Trajectory;
    type Params = Params;

    fn new(params: Params) -> Result<Self, ParamsError> {
        Ok(Self { keep_without: params.keep_without.get() })
    }

    fn identify(row: &Trajectory) -> (String, Option<String>) {
        (row.trajectory_id.clone(), row.task_id.clone())
    }

    fn judge(&self, row: Trajectory, pipeline_seed: u64) -> Verdict<Trajectory> {
        if row.has(Role::Reflection) {
            return Verdict::Keep(row);
        }
        if row.domain != Domain::Qa {
            return Verdict::reject("no_reflection", "mathematics and code need a reflection");
        }
        let drawn = share(seed(pipeline_seed, &[Self::NAME]), &row.trajectory_id);
        if drawn < self.keep_without {
            return Verdict::Keep(row);
        }
        let detail = format!("no reflection, drew {drawn:.3} of a kept share of {}", self.keep_without);
        Verdict::reject("sampled_out", detail)
    }
}
