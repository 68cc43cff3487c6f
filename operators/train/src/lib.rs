//! Placeholder.
use operators::Factory;
/// x
pub static OPERATORS: &[&dyn Factory] = &[];
