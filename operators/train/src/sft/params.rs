//! What a user sets of supervised fine-tuning.

use std::num::NonZeroU32;

use operators::{Fraction, Positive};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::Start;
use crate::optimizer::{Method, Schedule};

/// The shape of a new model.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Width of the residual stream.
    pub hidden: NonZeroU32,
    /// Layers.
    pub layers: NonZeroU32,
    /// Query heads.
    pub heads: NonZeroU32,
    /// Key and value heads.
    pub kv_heads: NonZeroU32,
    /// Width of the feed-forward layers.
    pub intermediate: NonZeroU32,
    /// Base of the rotary frequencies.
    #[serde(default = "ten_thousand")]
    pub rope_theta: Positive,
    /// How its weights begin.
    #[serde(default = "normal")]
    pub start: Start,
}

/// Which weights become the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// Those of the last step.
    Last,
    /// Those with the least held-out loss.
    Best,
}

/// Parameters of `sft`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The shape of a model to train from nothing. Leave it out where `base` is bound.
    #[serde(default)]
    pub model: Option<Shape>,
    /// Optimizer steps.
    pub steps: NonZeroU32,
    /// Samples in a step.
    #[serde(default = "sixteen")]
    pub batch: NonZeroU32,
    /// Tokens that go through the model at once, at most: the samples of a step are packed, best fit first, and the
    /// gradients of the packs add up. A longer sample goes alone. Memory depends on it, and the last bits of the result.
    #[serde(default = "many")]
    pub pack: NonZeroU32,
    /// Keeps the input of each layer only and runs the layer once more on the way back: less memory, about a third more
    /// work, the same bits.
    #[serde(default)]
    pub activation_checkpointing: bool,
    /// Learning rate of AdamW.
    #[serde(default = "rate")]
    pub learning_rate: Positive,
    /// How weights are changed.
    #[serde(default = "adamw")]
    pub optimizer: Method,
    /// Learning rate of Muon, for the matrices it changes.
    #[serde(default = "muon_rate")]
    pub muon_learning_rate: Positive,
    /// How the learning rate goes after its warm-up.
    #[serde(default = "cosine")]
    pub schedule: Schedule,
    /// Steps over which the learning rate rises from 0.
    #[serde(default)]
    pub warm_up: u32,
    /// Decay rate of AdamW's first moment.
    #[serde(default = "beta1")]
    pub beta1: Fraction,
    /// Decay rate of AdamW's second moment.
    #[serde(default = "beta2")]
    pub beta2: Fraction,
    /// Decoupled weight decay of matrices.
    #[serde(default = "none")]
    pub weight_decay: Fraction,
    /// Gradients longer than this are scaled down to it.
    #[serde(default = "one")]
    pub clip: Positive,
    /// Share of the samples that is not trained on but measured, by a seeded hash of the id.
    #[serde(default = "few")]
    pub heldout: Fraction,
    /// The held-out loss is measured every so many steps, and at the end.
    #[serde(default = "hundred")]
    pub measure_every: NonZeroU32,
    /// Which weights are the model: the last ones, or those with the least held-out loss that was measured.
    #[serde(default = "last")]
    pub keep: Keep,
    /// Training ends early when the held-out loss has not fallen for so many measurements in a row; never where not
    /// given.
    #[serde(default)]
    pub patience: Option<NonZeroU32>,
    /// A checkpoint is saved every so many steps.
    #[serde(default = "hundred")]
    pub checkpoint_every: NonZeroU32,
    /// Processor threads; as many as there are processors where not given. Bits depend on it.
    #[serde(default)]
    pub threads: Option<NonZeroU32>,
}

fn ten_thousand() -> Positive {
    Positive::new(10_000.0)
}
fn normal() -> Start {
    Start::Normal
}
fn sixteen() -> NonZeroU32 {
    NonZeroU32::new(16).expect("not 0")
}
fn many() -> NonZeroU32 {
    NonZeroU32::new(8192).expect("not 0")
}
fn last() -> Keep {
    Keep::Last
}
fn hundred() -> NonZeroU32 {
    NonZeroU32::new(100).expect("not 0")
}
fn rate() -> Positive {
    Positive::new(1e-3)
}
fn muon_rate() -> Positive {
    Positive::new(0.02)
}
fn adamw() -> Method {
    Method::Adamw
}
fn cosine() -> Schedule {
    Schedule::Cosine
}
fn beta1() -> Fraction {
    Fraction::new(0.9)
}
fn beta2() -> Fraction {
    Fraction::new(0.999)
}
fn none() -> Fraction {
    Fraction::new(0.0)
}
fn one() -> Positive {
    Positive::new(1.0)
}
fn few() -> Fraction {
    Fraction::new(0.02)
}
