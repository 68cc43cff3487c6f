//! Every key of the store, formatted and parsed in this file only.
//!
//! ```text
//! store.json                                                     which pipeline the store belongs to
//! runs/<run>.json, runs/<run>.end.json                           what was asked for, how it ended
//! attempts/<run>/<stage>/<partition>.<attempt>[.end].json        tries at units: begun, failed
//! units/<stage>/<fingerprint>/<partition>.<inputs>.json          unit records: done
//! tables/<stage>/<port>/<table>.v<version>/_delta_log/…          written by the fold
//! tables/<stage>/<port>/<table>.v<version>/partition=<p>/<attempt>-<n>.parquet
//! files/<stage>/<port>/<partition>/<attempt>/<name>              files of output ports
//! checkpoints/<unit>/<step>.json, checkpoints/<unit>/<step>/<attempt>/<name>
//! ```

use object_store::path::Path;
use schemas::TableDef;

/// What a store is laid out in.
pub(crate) const STORE: &str = "store.json";

pub(crate) fn runs() -> Path {
    Path::from("runs")
}

pub(crate) fn run(run: &str) -> Path {
    Path::from(format!("runs/{run}.json"))
}

pub(crate) fn run_end(run: &str) -> Path {
    Path::from(format!("runs/{run}.end.json"))
}

pub(crate) fn attempts() -> Path {
    Path::from("attempts")
}

pub(crate) fn attempts_of(run: &str) -> Path {
    Path::from(format!("attempts/{run}"))
}

pub(crate) fn attempt(run: &str, stage: &str, partition: &str, attempt: &str) -> Path {
    Path::from(format!("attempts/{run}/{stage}/{partition}.{attempt}.json"))
}

pub(crate) fn attempt_end(run: &str, stage: &str, partition: &str, attempt: &str) -> Path {
    Path::from(format!("attempts/{run}/{stage}/{partition}.{attempt}.end.json"))
}

pub(crate) fn units(stage: &str) -> Path {
    Path::from(format!("units/{stage}"))
}

pub(crate) fn units_of(stage: &str, fingerprint: &str) -> Path {
    Path::from(format!("units/{stage}/{fingerprint}"))
}

pub(crate) fn all_units() -> Path {
    Path::from("units")
}

pub(crate) fn unit(stage: &str, fingerprint: &str, partition: &str, inputs: &str) -> Path {
    Path::from(format!("units/{stage}/{fingerprint}/{partition}.{inputs}.json"))
}

/// The folder of a table, relative to the store.
pub(crate) fn table(stage: &str, port: &str, table: TableDef) -> Path {
    table_folder(stage, port, table.name, table.version)
}

pub(crate) fn table_folder(stage: &str, port: &str, table: &str, version: u32) -> Path {
    Path::from(format!("tables/{stage}/{port}/{table}.v{version}"))
}

pub(crate) fn all_tables() -> Path {
    Path::from("tables")
}

/// Stage, port, table name and version of a table's folder.
pub(crate) fn parse_table(folder: &Path) -> Option<(String, String, String, u32)> {
    let parts: Vec<String> = folder.parts().map(|part| part.as_ref().to_owned()).collect();
    let [root, stage, port, table] = &parts[..] else { return None };
    let (name, version) = table.rsplit_once(".v")?;
    (root == "tables").then_some(())?;
    Some((stage.clone(), port.clone(), name.to_owned(), version.parse().ok()?))
}

/// A data file, relative to its table's folder. The `partition=` part is compulsory: some readers of Delta tables take
/// the value of a partition column from the path.
pub(crate) fn data_file(partition: &str, attempt: &str, number: usize) -> String {
    format!("{PARTITION_COLUMN}={partition}/{attempt}-{number:05}.parquet")
}

/// The column every table is partitioned by.
pub(crate) const PARTITION_COLUMN: &str = "partition";

pub(crate) fn file(stage: &str, port: &str, partition: &str, attempt: &str, name: &str) -> Path {
    Path::from(format!("files/{stage}/{port}/{partition}/{attempt}/{name}"))
}

pub(crate) fn checkpoints(unit: &str) -> Path {
    Path::from(format!("checkpoints/{unit}"))
}

pub(crate) fn checkpoint(unit: &str, step: u64) -> Path {
    Path::from(format!("checkpoints/{unit}/{step:012}.json"))
}

pub(crate) fn checkpoint_file(unit: &str, step: u64, attempt: &str, name: &str) -> Path {
    Path::from(format!("checkpoints/{unit}/{step:012}/{attempt}/{name}"))
}

/// The step of a checkpoint's manifest.
pub(crate) fn parse_checkpoint(path: &Path) -> Option<u64> {
    path.filename()?.strip_suffix(".json")?.parse().ok()
}

/// A partition name made of letters, digits, `.`, `_` and `-`, for any text: others become `_`, and where that changed
/// something a hash keeps different texts apart.
pub(crate) fn partition_name(text: &str) -> String {
    let plain: String =
        text.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '_' }).collect();
    if plain == text && !plain.is_empty() && plain.len() <= 120 {
        return plain;
    }
    let short: String = plain.chars().rev().take(100).collect::<Vec<_>>().into_iter().rev().collect();
    format!("{short}-{:08x}", xxhash_rust::xxh3::xxh3_64(text.as_bytes()) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partition_names_are_plain_and_distinct() {
        assert_eq!(partition_name("part-1.jsonl"), "part-1.jsonl");
        let (a, b) = (partition_name("a/b.jsonl"), partition_name("a_b.jsonl"));
        assert_ne!(a, b);
        assert!(a.starts_with("a_b.jsonl-"), "{a}");
        assert!(!partition_name("").is_empty());
    }

    #[test]
    fn table_folders_are_read_back() {
        let folder = table("quality", "kept", TableDef::of::<schemas::Trajectory>());
        assert_eq!(parse_table(&folder), Some(("quality".into(), "kept".into(), "trajectories".into(), 1)));
        assert_eq!(parse_table(&Path::from("tables/a/b")), None);
    }
}
