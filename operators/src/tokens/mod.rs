//! Tokens: training a tokenizer, and turning trajectories into ids with a loss mask.
//!
//! Ids are made author run by author run (see [`crate::coa::render`]) and concatenated: no token ever spans what the
//! model wrote and what a tool returned, and masks are known when ids are made, never searched for afterwards. Rollouts
//! do the same, so the ids a model is trained on are the ids it will produce and see.

mod codec;
pub mod tokenize;
pub mod train_tokenizer;

pub use codec::{Codec, TOKENIZER_CONFIG, TOKENIZER_FILE};
