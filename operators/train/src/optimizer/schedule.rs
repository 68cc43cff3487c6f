//! The learning rate over a training.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the learning rate goes after its warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// Half a cosine down to 0.
    Cosine,
    /// A straight line down to 0.
    Linear,
    /// It stays.
    Constant,
    /// It stays until 60 % of the steps and then falls in a straight line to 5 %.
    Trapezoid,
}

impl Schedule {
    /// The factor of the learning rate at a step, counted from 0. The warm-up is a straight line from 0, so the first
    /// step of a training with warm-up changes nothing but the moments.
    pub fn factor(self, step: u64, warm_up: u64, steps: u64) -> f64 {
        if step < warm_up {
            return step as f64 / warm_up as f64;
        }
        let after = steps.saturating_sub(warm_up).max(1) as f64;
        let progress = (step - warm_up) as f64 / after;
        match self {
            Self::Cosine => (0.5 * (1.0 + (std::f64::consts::PI * progress).cos())).max(0.0),
            Self::Linear => (1.0 - progress).max(0.0),
            Self::Constant => 1.0,
            Self::Trapezoid => {
                let begin = 0.6 * steps as f64;
                let down = ((step as f64 - begin) / (steps as f64 - begin).max(1.0)).clamp(0.0, 1.0);
                1.0 - 0.95 * down
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_then_down() {
        let at = |schedule: Schedule, step| schedule.factor(step, 10, 110);
        for schedule in [Schedule::Cosine, Schedule::Linear, Schedule::Constant, Schedule::Trapezoid] {
            assert_eq!(at(schedule, 0), 0.0);
            assert_eq!(at(schedule, 5), 0.5);
            assert_eq!(at(schedule, 10), 1.0);
        }
        assert!((at(Schedule::Cosine, 60) - 0.5).abs() < 1e-12);
        assert!(at(Schedule::Cosine, 110).abs() < 1e-12);
        assert!((at(Schedule::Linear, 35) - 0.75).abs() < 1e-12);
        assert_eq!(at(Schedule::Trapezoid, 66), 1.0);
        assert!((at(Schedule::Trapezoid, 110) - 0.05).abs() < 1e-12);
        assert_eq!(Schedule::Cosine.factor(0, 0, 10), 1.0);
    }
}
