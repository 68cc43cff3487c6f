//! Rows that an operator did not pass on, with the reason.

use serde::{Deserialize, Serialize};

use crate::Table;

/// One row that was not kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Rejected {
    /// The key of the row that was rejected.
    pub row_id: String,
    /// The task it belongs to, where known.
    pub task_id: Option<String>,
    /// Why, as a word for grouping.
    pub reason: String,
    /// Why, for a person.
    pub detail: String,
}

impl Table for Rejected {
    const NAME: &'static str = "rejected";
    const VERSION: u32 = 1;
    const KEY: Option<&'static str> = Some("row_id");
}
