//! The operators of this crate, one line each, alphabetical.

use operators::{Factory, Of};

/// Operators that need libtorch.
pub static OPERATORS: &[&dyn Factory] = &[&Of::<crate::evaluate::Evaluate>::NEW, &Of::<crate::sft::Sft>::NEW];
