//! Tokenised samples: what training reads.

use serde::{Deserialize, Serialize};

use crate::Table;

/// One trajectory as token ids.
///
/// The lists have one length. They are built together, run by run of one author, and nothing later recomputes them
/// from text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct TokenizedSample {
    /// The trajectory's id.
    pub sample_id: String,
    /// Token ids, prompt first.
    pub input_ids: Vec<i32>,
    /// True for tokens the model is trained to write. False for the prompt, observations and template glue.
    pub loss_mask: Vec<bool>,
    /// Role of each token: 0 prompt or glue, then in the order of `Role`: 1 think, 2 plan, 3 tool, 4 observation,
    /// 5 reflection, 6 suggested answer, 7 double check, 8 answer. A token that straddles two roles has the first.
    pub token_roles: Vec<i8>,
    /// How often the sample counts in training.
    pub weight: f64,
    /// Tokens with `loss_mask` true.
    pub trained_tokens: i64,
    /// Tokens of observations.
    pub observation_tokens: i64,
    /// True where the sample was cut at the length limit.
    pub truncated: bool,
    /// Digest of the `tokenizer.json` that made the ids.
    pub tokenizer: String,
    /// The task's id in the source.
    pub task_id: Option<String>,
}

impl Table for TokenizedSample {
    const NAME: &'static str = "tokens";
    const VERSION: u32 = 1;
    const KEY: Option<&'static str> = Some("sample_id");
}
