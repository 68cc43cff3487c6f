//! Training operators: the only crate that links libtorch.

pub mod backward;
pub mod batch;
mod device;
pub mod evaluate;
#[cfg(test)]
mod fixture;
pub mod loss;
pub mod model;
pub mod optimizer;
pub mod packing;
mod registry;
pub mod rollout;
pub mod sft;

pub use device::prove_libtorch;
pub use registry::OPERATORS;
