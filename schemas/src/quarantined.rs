//! Quarantine: the lines of a source that could not be read, with their bytes.

use serde::{Deserialize, Serialize};

use crate::Table;

/// One record of a source that was not accepted. Nothing else is lost with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Quarantined {
    /// The source's address.
    pub source: String,
    /// Physical line on which the record starts, from 1.
    pub line: i64,
    /// Offset of its first byte in the source, after decompression; of a `not_gzip`, in the source as it is stored.
    pub byte_offset: i64,
    /// Its length in bytes, without the line end.
    pub byte_length: i64,
    /// Why, from a closed list: `invalid_utf8`, `lone_surrogate`, `truncated`, `not_json`, `nan_or_infinity`,
    /// `duplicate_key`, `number_out_of_range`, `missing_field`, `wrong_type`, `row_too_large`,
    /// `not_gzip` (what follows the last member of a gzip source).
    pub code: String,
    /// Why, for a person.
    pub reason: String,
    /// The bytes as they stand in the source; of a `row_too_large`, its first 128 MiB.
    #[serde(with = "serde_bytes")]
    #[schemars(with = "Vec<u8>")]
    pub raw: Vec<u8>,
}

impl Table for Quarantined {
    const NAME: &'static str = "quarantine";
    const VERSION: u32 = 1;
}
