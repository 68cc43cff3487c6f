//! The manifest: where a data set comes from and what is in it, for programs.
//!
//! It says nothing of runs, attempts or times: the same rows, parameters and seed give the same manifest in any store.

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::columns::{ColumnDoc, Published};
use super::shards::hexadecimal;
use super::{Params, Publish, SplitShards};
use crate::context::{Origin, OriginUnit};
use crate::operator::Operator;

/// Version of this layout.
const VERSION: u32 = 1;

/// The contents of `manifest.json`.
#[derive(Serialize)]
pub(super) struct Manifest<'a> {
    manifest_version: u32,
    operator: &'static str,
    operator_version: u32,
    params: &'a Params,
    seed: u64,
    /// Which rows were read.
    input: Input<'a>,
    /// The columns that name a row's group: the first that has a value.
    grouped_by: &'a [String],
    rows: u64,
    splits: Vec<SplitRows>,
    columns: Vec<ColumnDoc>,
    /// Every file but this one.
    files: Vec<File>,
}

#[derive(Serialize)]
struct Input<'a> {
    stage: &'a str,
    output: &'a str,
    table: &'static str,
    table_version: u32,
    units: &'a [OriginUnit],
}

#[derive(Serialize)]
struct SplitRows {
    name: &'static str,
    rows: u64,
    shards: usize,
}

#[derive(Serialize)]
struct File {
    name: String,
    bytes: u64,
    rows: Option<u64>,
    sha256: String,
}

impl<'a> Manifest<'a> {
    pub(super) fn new(
        params: &'a Params,
        seed: u64,
        origin: &'a Origin,
        published: &Published,
        grouped_by: &'a [String],
        splits: &[SplitShards],
        card: &str,
    ) -> Self {
        let rows = |shards: &[super::Shard]| shards.iter().map(|shard| shard.rows).sum();
        let splits_rows: Vec<SplitRows> =
            splits.iter().map(|(name, shards)| SplitRows { name, rows: rows(shards), shards: shards.len() }).collect();
        let card = File {
            name: "README.md".to_owned(),
            bytes: card.len() as u64,
            rows: None,
            sha256: hexadecimal(&Sha256::digest(card)),
        };
        let shards = splits.iter().flat_map(|(_, shards)| shards).map(|shard| File {
            name: shard.name.clone(),
            bytes: shard.bytes,
            rows: Some(shard.rows),
            sha256: shard.sha256.clone(),
        });
        Self {
            manifest_version: VERSION,
            operator: Publish::NAME,
            operator_version: Publish::VERSION,
            params,
            seed,
            input: Input {
                stage: &origin.stage,
                output: &origin.output,
                table: origin.table.name,
                table_version: origin.table.version,
                units: &origin.units,
            },
            grouped_by,
            rows: splits_rows.iter().map(|split| split.rows).sum(),
            splits: splits_rows,
            columns: published.docs(),
            files: std::iter::once(card).chain(shards).collect(),
        }
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data") + "\n"
    }
}
