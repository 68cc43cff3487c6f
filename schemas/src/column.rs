//! Columns whose Arrow type is not the one traced from their Rust type.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A point in time: microseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(transparent)]
pub struct Micros(pub i64);

/// The Arrow type of an overridden column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// A field-less enum, stored as its name.
    Name,
    /// JSON text, marked as such with the `arrow.json` extension; null where there is none.
    OptionalJson,
    /// [`Micros`].
    Time,
    /// `Option<Micros>`.
    OptionalTime,
}

impl Column {
    /// The field definition of this column, as `serde_arrow` reads one; `path` is dotted, with `element` for list items.
    pub(crate) fn definition(self, path: &str) -> Value {
        let name = path.rsplit('.').next().unwrap_or(path);
        let (data_type, nullable) = match self {
            Self::Name => ("Utf8", false),
            Self::OptionalJson => ("Utf8", true),
            Self::Time => (UTC_MICROSECONDS, false),
            Self::OptionalTime => (UTC_MICROSECONDS, true),
        };
        let metadata = match self {
            Self::OptionalJson => json!({"ARROW:extension:name": "arrow.json", "ARROW:extension:metadata": ""}),
            _ => json!({}),
        };
        json!({"name": name, "data_type": data_type, "nullable": nullable, "metadata": metadata})
    }
}

const UTC_MICROSECONDS: &str = "Timestamp(Microsecond, Some(\"UTC\"))";
