//! Records: small JSON objects that say what was asked for, what was tried and what is done.
//!
//! Every record carries a version; all past versions stay readable. Times are for people, no decision reads them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The current version of every record.
pub(crate) const RECORD_VERSION: u32 = 1;

/// A finished unit: which attempt won and what it wrote. Created once, never rewritten.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnitRecord {
    /// Version of this layout.
    pub version: u32,
    /// The unit's key.
    pub unit: String,
    /// The run that did it.
    pub run: u64,
    /// The stage.
    pub stage: String,
    /// The operator.
    pub operator: String,
    /// Its version.
    pub operator_version: u32,
    /// The operator's parameters with defaults filled in.
    pub params: Value,
    /// The pipeline's seed, where the operator draws.
    pub seed: Option<u64>,
    /// The stage's fingerprint.
    pub fingerprint: String,
    /// The partition.
    pub partition: String,
    /// Digest of everything it read.
    pub inputs: String,
    /// What it read; none in records that were written before this was noted.
    #[serde(default)]
    pub read: Option<UnitRead>,
    /// The attempt that won.
    pub attempt: String,
    /// The worker it ran on.
    pub worker: String,
    /// Output tables, by port; a port without rows has no files.
    pub tables: Vec<TableOutput>,
    /// Output files, by port.
    pub files: Vec<FilesOutput>,
    /// Rows read, by input port.
    pub rows_in: BTreeMap<String, u64>,
    /// Named counts, such as blank lines.
    pub counts: BTreeMap<String, u64>,
    /// When the attempt began.
    pub started: String,
    /// When it ended.
    pub finished: String,
    /// Seconds between.
    pub seconds: f64,
}

/// What a unit read: objects of its source, and what other units wrote.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UnitRead {
    /// Objects of its source.
    pub objects: Vec<ObjectRead>,
    /// By input port, in the order of the operator's ports.
    pub ports: Vec<PortRead>,
}

/// An object of a source, as it was when it was read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ObjectRead {
    /// Its address.
    pub uri: String,
    /// Its size.
    pub bytes: u64,
    /// What changes with its content: the entity tag of an object of S3; of a file its size, time of change and inode.
    pub version: String,
}

/// What a unit read from one input port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRead {
    /// The input port.
    pub port: String,
    /// The stage that feeds it.
    pub stage: String,
    /// The output port of that stage.
    pub from: String,
    /// The attempt that wrote each partition that was read.
    pub attempts: BTreeMap<String, String>,
}

/// What a unit wrote to one table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableOutput {
    /// The output port.
    pub port: String,
    /// The table.
    pub table: String,
    /// Its version.
    pub table_version: u32,
    /// Rows over all files.
    pub rows: u64,
    /// The files, relative to the table's folder.
    pub files: Vec<DataFile>,
}

/// A Parquet file of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataFile {
    /// Relative to the table's folder.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// Its rows.
    pub rows: u64,
    /// XXH3 of its bytes, 64 bits, hexadecimal.
    pub xxh3: String,
}

/// What a unit wrote to one files port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FilesOutput {
    /// The output port.
    pub port: String,
    /// The kind of files.
    pub kind: String,
    /// The files.
    pub files: Vec<StoredFile>,
}

/// A file of a files port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredFile {
    /// Its name within the port.
    pub name: String,
    /// Relative to the store.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of its bytes, hexadecimal.
    pub sha256: String,
}

impl UnitRecord {
    /// What this is the record of.
    pub fn want(&self) -> UnitWant {
        UnitWant {
            stage: self.stage.clone(),
            fingerprint: self.fingerprint.clone(),
            partition: self.partition.clone(),
            inputs: self.inputs.clone(),
        }
    }

    /// Digest of what the unit wrote to a port: equal bytes give equal digests, whichever attempt wrote them.
    pub fn digest(&self, port: &str) -> String {
        let mut text = String::new();
        for table in self.tables.iter().filter(|table| table.port == port) {
            for file in &table.files {
                text.push_str(&format!("{} {} {}\n", file.xxh3, file.bytes, file.rows));
            }
        }
        for files in self.files.iter().filter(|files| files.port == port) {
            for file in &files.files {
                text.push_str(&format!("{} {}\n", file.name, file.sha256));
            }
        }
        format!("{:032x}", xxhash_rust::xxh3::xxh3_128(text.as_bytes()))
    }

    /// Rows written to a port.
    pub fn rows(&self, port: &str) -> u64 {
        self.tables.iter().filter(|table| table.port == port).map(|table| table.rows).sum()
    }
}

/// A unit that a plan wants done: what its record's key is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UnitWant {
    /// The stage.
    pub stage: String,
    /// The stage's fingerprint.
    pub fingerprint: String,
    /// The partition.
    pub partition: String,
    /// Digest of everything the unit reads.
    pub inputs: String,
}

impl UnitWant {
    /// The unit's key: the same for the same work, whatever the stage is called.
    pub fn key(&self) -> String {
        let text = format!("{}/{}/{}", self.fingerprint, self.partition, self.inputs);
        format!("{:032x}", xxhash_rust::xxh3::xxh3_128(text.as_bytes()))
    }
}

/// A run: what was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Version of this layout.
    pub version: u32,
    /// The run's number. Numbers grow by one from run to run, whatever clocks say.
    pub run: u64,
    /// The pipeline's name.
    pub pipeline: String,
    /// Where its file was, for people.
    pub path: String,
    /// The folder that relative sources are looked for in.
    pub folder: String,
    /// Its text.
    pub text: String,
    /// The seed.
    pub seed: u64,
    /// Every setting with defaults filled in.
    pub resolved: Value,
    /// What was selected, as given on the command line; empty for everything.
    pub select: Vec<String>,
    /// The partitions it is about; none for all of them.
    pub partitions: Option<Vec<String>>,
    /// The time zone that their bounds are times of.
    pub time_zone: Option<String>,
    /// Whether finished units were to be done again.
    pub force: bool,
    /// The run this one goes on with.
    pub resumes: Option<u64>,
    /// The worker that began it.
    pub worker: String,
    /// When.
    pub started: String,
}

/// How a run ended; a run without this record was interrupted or is still going.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEnd {
    /// Version of this layout.
    pub version: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// Units done by this run.
    pub done: u64,
    /// Units that failed.
    pub failed: u64,
    /// Units that could not be tried because others failed.
    pub blocked: u64,
    /// How each stage that it was about stands.
    #[serde(default)]
    pub stages: BTreeMap<String, StageEnd>,
    /// When.
    pub finished: String,
    /// Seconds from start to end.
    pub seconds: f64,
}

impl RunEnd {
    /// The end of a run that failed before it did anything.
    pub fn not_begun(finished: String) -> Self {
        let (outcome, stages) = (Outcome::Failed, BTreeMap::new());
        Self { version: RECORD_VERSION, outcome, done: 0, failed: 0, blocked: 0, stages, finished, seconds: 0.0 }
    }
}

/// How a stage stands at the end of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageEnd {
    /// In a word.
    pub outcome: StageOutcome,
    /// Its units, of those the run was about.
    pub units: u64,
    /// Units that are done.
    pub done: u64,
    /// Units that failed.
    pub failed: u64,
    /// Records read by the units that are done.
    pub records: u64,
    /// Records of those that were quarantined.
    pub quarantined: u64,
}

/// How a stage stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StageOutcome {
    /// All its units are done.
    Complete,
    /// All its units are done, and some records are in quarantine.
    CompleteWithQuarantinedRows,
    /// A unit failed, or too many records are in quarantine.
    Failed,
    /// Units are not done and none failed.
    Unfinished,
}

impl StageOutcome {
    /// For people and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::CompleteWithQuarantinedRows => "complete with quarantined rows",
            Self::Failed => "failed",
            Self::Unfinished => "unfinished",
        }
    }
}

/// What a run changes of a stage's tables; written before it changes them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageRecord {
    /// Version of this layout.
    pub version: u32,
    /// The run.
    pub run: u64,
    /// The partitions it is about; none for all there are.
    pub about: Option<BTreeSet<String>>,
    /// The units it puts there: those that did not stand there before.
    pub units: Vec<UnitRecord>,
    /// Partitions that are gone.
    pub gone: Vec<String>,
}

/// How something ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// As it should.
    Complete,
    /// With an error.
    Failed,
    /// It was asked to stop.
    Interrupted,
    /// It was cancelled.
    Cancelled,
}

impl Outcome {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A try at a unit, written before its first byte of output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// Version of this layout.
    pub version: u32,
    /// The attempt's id: what its data is named after.
    pub attempt: String,
    /// Which try at the unit it is, from 1, over all runs. The highest number has the unit.
    pub number: u32,
    /// The unit.
    #[serde(flatten)]
    pub want: UnitWant,
    /// The run.
    pub run: u64,
    /// The worker.
    pub worker: String,
    /// When it began.
    pub started: String,
}

/// How a try ended that did not finish the unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptEnd {
    /// Version of this layout.
    pub version: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// Kind of the error.
    pub kind: String,
    /// The error with its causes.
    pub error: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// When.
    pub finished: String,
}
