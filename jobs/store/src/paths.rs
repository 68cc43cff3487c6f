//! Every key of the store, formatted and parsed in this file only.
//!
//! ```text
//! store.json                                                     which pipeline the store belongs to
//! runs/<run>.json, .end.json, .cancel.json                       what was asked for, how it ended, that it should end
//! attempts/<stage>/<fingerprint>/<partition>.<inputs>.<n>[.end].json   tries at units: begun, failed
//! units/<stage>/<fingerprint>/<partition>.<inputs>.json          unit records: done
//! stages/<stage>/<run>.json                                      stage records: the units that make up its tables
//! tables/<stage>/<port>/<table>.v<version>/_delta_log/…          written by the fold
//! tables/<stage>/<port>/<table>.v<version>/partition=<p>/<attempt>-<n>.parquet
//! tables/<stage>/<port>/<table>.v<version>/partition=<p>/<attempt>-<first>-<last>-<id>.parquet   merged from those
//! files/<stage>/<port>/<partition>/<attempt>/<name>              files of output ports
//! checkpoints/<unit>/<step>.json, checkpoints/<unit>/<step>/<attempt>/<name>
//! ```

use object_store::path::Path;
use schemas::TableDef;

use crate::record::UnitWant;

/// What a store is laid out in.
pub(crate) const STORE: &str = "store.json";

pub(crate) fn runs() -> Path {
    Path::from("runs")
}

pub(crate) fn run(run: u64) -> Path {
    Path::from(format!("runs/{run:09}.json"))
}

pub(crate) fn run_end(run: u64) -> Path {
    Path::from(format!("runs/{run:09}.end.json"))
}

pub(crate) fn run_cancel(run: u64) -> Path {
    Path::from(format!("runs/{run:09}.cancel.json"))
}

/// The number of a run's first record.
pub(crate) fn parse_run(path: &Path) -> Option<u64> {
    path.filename()?.strip_suffix(".json")?.parse().ok()
}

pub(crate) fn attempts() -> Path {
    Path::from("attempts")
}

pub(crate) fn attempts_of(stage: &str, fingerprint: &str) -> Path {
    Path::from(format!("attempts/{stage}/{fingerprint}"))
}

pub(crate) fn attempt(want: &UnitWant, number: u32) -> Path {
    let UnitWant { stage, fingerprint, partition, inputs } = want;
    Path::from(format!("attempts/{stage}/{fingerprint}/{partition}.{inputs}.{number:04}.json"))
}

pub(crate) fn attempt_end(want: &UnitWant, number: u32) -> Path {
    let UnitWant { stage, fingerprint, partition, inputs } = want;
    Path::from(format!("attempts/{stage}/{fingerprint}/{partition}.{inputs}.{number:04}.end.json"))
}

/// Unit, number, and whether it is the attempt's end.
pub(crate) fn parse_attempt(path: &Path) -> Option<(UnitWant, u32, bool)> {
    let (stage, fingerprint, name) = three(path, "attempts")?;
    let (name, end) = match name.strip_suffix(".end.json") {
        Some(name) => (name, true),
        None => (name.strip_suffix(".json")?, false),
    };
    let (unit, number) = name.rsplit_once('.')?;
    let (partition, inputs) = unit.rsplit_once('.')?;
    let (partition, inputs) = (partition.to_owned(), inputs.to_owned());
    Some((
        UnitWant { stage: stage.to_owned(), fingerprint: fingerprint.to_owned(), partition, inputs },
        number.parse().ok()?,
        end,
    ))
}

/// The last three parts of a path whose first is `root`.
fn three<'a>(path: &'a Path, root: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let mut parts = path.as_ref().split('/');
    (parts.next()? == root).then_some(())?;
    let found = (parts.next()?, parts.next()?, parts.next()?);
    parts.next().is_none().then_some(found)
}

pub(crate) fn all_stage_records() -> Path {
    Path::from("stages")
}

pub(crate) fn stage_records(stage: &str) -> Path {
    Path::from(format!("stages/{stage}"))
}

pub(crate) fn stage_record(stage: &str, run: u64) -> Path {
    Path::from(format!("stages/{stage}/{run:09}.json"))
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

pub(crate) fn unit(want: &UnitWant) -> Path {
    let UnitWant { stage, fingerprint, partition, inputs } = want;
    Path::from(format!("units/{stage}/{fingerprint}/{partition}.{inputs}.json"))
}

/// The unit of a record.
pub(crate) fn parse_unit(path: &Path) -> Option<UnitWant> {
    let (stage, fingerprint, name) = three(path, "units")?;
    let (partition, inputs) = name.strip_suffix(".json")?.rsplit_once('.')?;
    let (partition, inputs) = (partition.to_owned(), inputs.to_owned());
    Some(UnitWant { stage: stage.to_owned(), fingerprint: fingerprint.to_owned(), partition, inputs })
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

/// A data file with the rows of those of an attempt from `first` to `last`, relative to its table's folder. `id` keeps
/// what several compactions make apart.
pub(crate) fn merged_file(partition: &str, attempt: &str, (first, last): (usize, usize), id: &str) -> String {
    format!("{PARTITION_COLUMN}={partition}/{attempt}-{first:05}-{last:05}-{id}.parquet")
}

/// Whose rows a data file has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DataName {
    pub(crate) partition: String,
    pub(crate) attempt: String,
    /// The numbers of the attempt's files whose rows it has.
    pub(crate) first: usize,
    pub(crate) last: usize,
    /// Whether it was merged from them.
    pub(crate) merged: bool,
}

impl DataName {
    /// The attempt's own files whose rows it has.
    pub(crate) fn originals(&self) -> Vec<String> {
        (self.first..=self.last).map(|number| data_file(&self.partition, &self.attempt, number)).collect()
    }
}

/// What the name of a data file says, relative to its table's folder.
pub(crate) fn parse_data_file(file: &str) -> Option<DataName> {
    let partition = partition_of(file)?.to_owned();
    let (_, name) = file.split_once('/')?;
    let parts: Vec<&str> = name.strip_suffix(".parquet")?.split('-').collect();
    let (attempt, first, last, merged) = match parts[..] {
        [attempt, number] => (attempt, number, number, false),
        [attempt, first, last, _] => (attempt, first, last, true),
        _ => return None,
    };
    Some(DataName {
        partition,
        attempt: attempt.to_owned(),
        first: first.parse().ok()?,
        last: last.parse().ok()?,
        merged,
    })
}

/// The partition of a data file.
pub(crate) fn partition_of(file: &str) -> Option<&str> {
    let (folder, _) = file.split_once('/')?;
    folder.strip_prefix(PARTITION_COLUMN)?.strip_prefix('=')
}

/// The attempt that wrote a data file, or whose files a merged one was made of.
pub(crate) fn attempt_of(file: &str) -> Option<&str> {
    let (_, name) = file.split_once('/')?;
    Some(name.split_once('-')?.0)
}

/// The column every table is partitioned by.
pub(crate) const PARTITION_COLUMN: &str = "partition";

pub(crate) fn file(stage: &str, port: &str, partition: &str, attempt: &str, name: &str) -> Path {
    Path::from(format!("files/{stage}/{port}/{partition}/{attempt}/{name}"))
}

pub(crate) fn all_files() -> Path {
    Path::from("files")
}

/// The attempt that a file of an output port belongs to.
pub(crate) fn attempt_of_file(path: &Path) -> Option<String> {
    path.parts().nth(4).map(|part| part.as_ref().to_owned())
}

/// A data file's table folder and its name relative to that; none for what is no data file, such as a log's entry.
pub(crate) fn split_data_file(path: &Path) -> Option<(Path, String)> {
    let parts: Vec<_> = path.parts().collect();
    let folder: Path = parts.get(..4)?.iter().cloned().collect();
    parse_table(&folder)?;
    let file = path.as_ref().strip_prefix(folder.as_ref())?.strip_prefix('/')?.to_owned();
    partition_of(&file).is_some().then_some((folder, file))
}

/// What the names of objects begin with that only try out what the store can do.
pub(crate) const PROBE: &str = "probe-";

pub(crate) fn all_checkpoints() -> Path {
    Path::from("checkpoints")
}

/// The unit that a checkpoint's object belongs to.
pub(crate) fn unit_of_checkpoint(path: &Path) -> Option<String> {
    path.parts().nth(1).map(|part| part.as_ref().to_owned())
}

/// The step of a checkpoint's file.
pub(crate) fn step_of_checkpoint_file(path: &Path) -> Option<u64> {
    path.parts().nth(2)?.as_ref().parse().ok()
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
    fn units_and_attempts_are_read_back() {
        let part = |text: &str| text.to_owned();
        let want = UnitWant {
            stage: part("ingest"),
            fingerprint: part("f0"),
            partition: part("2026-01-01.a.jsonl"),
            inputs: part("0123456789ab"),
        };
        assert_eq!(parse_unit(&unit(&want)), Some(want.clone()));
        assert_eq!(parse_attempt(&attempt(&want, 3)), Some((want.clone(), 3, false)));
        assert_eq!(parse_attempt(&attempt_end(&want, 12)), Some((want, 12, true)));
        assert_eq!(parse_run(&run(17)), Some(17));
        assert_eq!(parse_run(&run_end(17)), None);
    }

    #[test]
    fn data_files_are_read_back() {
        let one = parse_data_file(&data_file("2026-01-01.a", "01K", 7)).unwrap();
        assert_eq!((one.partition.as_str(), one.attempt.as_str(), one.first, one.last), ("2026-01-01.a", "01K", 7, 7));
        let merged = parse_data_file(&merged_file("a-b", "01K", (2, 4), "01M")).unwrap();
        assert!(merged.merged && !one.merged);
        assert_eq!(merged.originals(), [2, 3, 4].map(|number| data_file("a-b", "01K", number)));
        let folder = table("quality", "kept", TableDef::of::<schemas::Trajectory>());
        let file = data_file("p", "01K", 0);
        assert_eq!(split_data_file(&Path::from(format!("{folder}/{file}"))), Some((folder.clone(), file)));
        assert_eq!(split_data_file(&Path::from(format!("{folder}/_delta_log/0.json"))), None);
    }

    #[test]
    fn table_folders_are_read_back() {
        let folder = table("quality", "kept", TableDef::of::<schemas::Trajectory>());
        assert_eq!(parse_table(&folder), Some(("quality".into(), "kept".into(), "trajectories".into(), 1)));
        assert_eq!(parse_table(&Path::from("tables/a/b")), None);
    }
}
