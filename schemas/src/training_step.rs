//! Training steps: what was measured at each optimizer step.

use serde::{Deserialize, Serialize};

use crate::Table;

/// One optimizer step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct TrainingStep {
    /// From 1.
    pub step: i64,
    /// Passes over the data finished before this step.
    pub epoch: i64,
    /// Mean cross-entropy over the trained tokens of the step, in nats.
    pub loss: f64,
    /// Mean cross-entropy over the held-out samples after the step; null where it was not measured.
    pub heldout_loss: Option<f64>,
    /// Learning rate of the step.
    pub learning_rate: f64,
    /// L2 norm of all gradients before clipping.
    pub gradient_norm: f64,
    /// Samples in the step.
    pub samples: i64,
    /// Tokens in the step, without padding.
    pub tokens: i64,
    /// Trained tokens in the step.
    pub trained_tokens: i64,
    /// True where the step was skipped because its loss or gradient was not finite, or nothing in it is trained.
    pub skipped: bool,
    /// Wall time of the step in seconds.
    pub seconds: f64,
}

impl Table for TrainingStep {
    const NAME: &'static str = "training_steps";
    const VERSION: u32 = 1;
    const KEY: Option<&'static str> = Some("step");
}
