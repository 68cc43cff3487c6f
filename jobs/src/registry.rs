//! The operators of this build.

use operators::Factory;

/// All operators of this build, alphabetical.
pub fn registry() -> Vec<&'static dyn Factory> {
    let mut all: Vec<&'static dyn Factory> = operators::OPERATORS.to_vec();
    #[cfg(feature = "train")]
    all.extend(operators_train::OPERATORS);
    all.sort_by_key(|factory| factory.name());
    all
}
