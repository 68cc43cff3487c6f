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
    /// The address of the source that the row's record was read from, where it was rejected while it was read.
    pub source: Option<String>,
    /// Physical line on which that record starts, from 1.
    pub line: Option<i64>,
    /// Offset of its first byte in the source, after decompression.
    pub byte_offset: Option<i64>,
}

impl Rejected {
    /// A row of a table that was not passed on.
    pub fn new(
        row_id: impl Into<String>,
        task_id: Option<String>,
        reason: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        let (row_id, reason, detail) = (row_id.into(), reason.into(), detail.into());
        Self { row_id, task_id, reason, detail, source: None, line: None, byte_offset: None }
    }
}

impl Table for Rejected {
    const NAME: &'static str = "rejected";
    const VERSION: u32 = 1;
    const KEY: Option<&'static str> = Some("row_id");
}
