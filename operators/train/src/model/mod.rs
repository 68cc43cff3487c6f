//! A Qwen2 decoder over libtorch: RMSNorm, rotary positions, grouped-query attention with biased projections, SwiGLU,
//! tied or untied embeddings.
//!
//! Weights have the names and shapes of the Hugging Face files. The order of operations is that of `transformers`, so
//! float32 logits on a CPU are equal to its own, bit for bit.

mod cache;
mod config;
mod files;
mod forward;
mod init;

pub use cache::Cache;
pub use config::{Config, ConfigError};
pub use files::{CONFIG_FILE, GENERATION_FILE, WEIGHTS_FILE, generation_config, load, read_tensors, write_tensors};
pub use forward::{Qwen2, Sequences};
pub use init::Start;
