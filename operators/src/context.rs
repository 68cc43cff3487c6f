//! What an operator sees of the world while it does one unit: ports, files, checkpoints, a seed, progress, stopping.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::RecordBatch;
use schemas::{Columns, Table, TableDef, complete, decode, encode};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::OperatorError;
use crate::port::{AnyIn, FilesIn, FilesOut, In, Out, Payload};

/// An object of a source that a unit reads: a line-oriented file, say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceObject {
    /// Its address, for messages and lineage.
    pub uri: String,
    /// Its address within the source pattern's fixed part: stays the same when the whole source moves.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// Changes when its content does.
    pub version: String,
}

/// A file of an input port, present on the local disk.
#[derive(Clone, Debug)]
pub struct InputFile {
    /// Its name within the port.
    pub name: String,
    /// Where it lies; not to be written to.
    pub path: PathBuf,
    /// Hash of its bytes.
    pub digest: String,
}

/// Where the rows of an input come from. Equal inputs have equal origins, in any store and run.
#[derive(Clone, Debug, PartialEq)]
pub struct Origin {
    /// The table they are rows of.
    pub table: TableDef,
    /// The stage that made them.
    pub stage: String,
    /// The output port of that stage.
    pub output: String,
    /// The units that made them, in the order they are read in.
    pub units: Vec<OriginUnit>,
}

/// A unit whose rows an input reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OriginUnit {
    /// Its partition.
    pub partition: String,
    /// The rows it gave.
    pub rows: u64,
    /// Digest of them: equal rows in equal files give equal digests.
    pub digest: String,
}

/// A saved state of a long unit.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// How far the unit was.
    pub step: u64,
    /// The folder its files lie in.
    pub folder: PathBuf,
}

/// Storage as a unit sees it. The job system implements it over objects, tests in memory.
///
/// Reading a port goes on where the last call stopped. What is written becomes visible to others only when the unit
/// commits.
pub trait UnitIo: Send + Sync {
    /// The next batch of an input table; `None` at its end.
    fn next_batch(&self, port: &str) -> Result<Option<RecordBatch>, OperatorError>;
    /// Where the rows of an input table come from; `None` where the port is no bound table.
    fn origin(&self, port: &str) -> Option<Origin>;
    /// Adds rows to an output table.
    fn append(&self, port: &str, table: TableDef, batch: RecordBatch) -> Result<(), OperatorError>;
    /// Whether an optional input is bound.
    fn is_bound(&self, port: &str) -> bool;
    /// The files of an input port.
    fn input_files(&self, port: &str) -> Result<Vec<InputFile>, OperatorError>;
    /// Adds a file to an output port.
    fn put_file(&self, port: &str, name: &str, path: &Path) -> Result<(), OperatorError>;
    /// The source objects of the unit, for operators that are split by object.
    fn objects(&self) -> &[SourceObject];
    /// Opens a source object.
    fn open(&self, object: &SourceObject) -> Result<Box<dyn Read + Send>, OperatorError>;
    /// The newest checkpoint of this unit, whichever attempt saved it.
    fn newest_checkpoint(&self) -> Result<Option<Checkpoint>, OperatorError>;
    /// Saves the files of `folder` as the checkpoint at `step`; visible only as a whole.
    fn save_checkpoint(&self, step: u64, folder: &Path) -> Result<(), OperatorError>;
    /// Adds to a named count in the unit's record, such as blank lines.
    fn count(&self, name: &str, by: u64);
}

/// Where progress goes.
pub trait ProgressSink: Send + Sync {
    /// A long piece of work begins; `total` in `unit`s ("rows", "steps") where known.
    fn begin(&self, total: Option<u64>, unit: &'static str);
    /// It has come this far; `note` is a word on how it goes, such as the loss.
    fn at(&self, done: u64, note: &str);
}

/// Progress that nobody watches.
pub struct NoProgress;

impl ProgressSink for NoProgress {
    fn begin(&self, _total: Option<u64>, _unit: &'static str) {}
    fn at(&self, _done: u64, _note: &str) {}
}

/// One unit, as its operator sees it.
pub struct UnitContext<'a> {
    /// Storage.
    pub io: &'a dyn UnitIo,
    /// The operator's name.
    pub operator: &'a str,
    /// The partition's name.
    pub partition: &'a str,
    /// Which of the units of a [`Split::Numbered`](crate::Split::Numbered) stage this is; 0 elsewhere.
    pub number: u32,
    /// The pipeline's seed.
    pub pipeline_seed: u64,
    /// A folder for temporary files, gone after the attempt.
    pub scratch: &'a Path,
    /// Where progress goes.
    pub progress: &'a dyn ProgressSink,
    /// Set when the unit should stop at the next safe place.
    pub stop: &'a AtomicBool,
}

impl UnitContext<'_> {
    /// The next rows of an input; `None` at its end.
    pub fn next<T: Table>(&self, port: &In<T>) -> Result<Option<Vec<T>>, OperatorError> {
        match self.io.next_batch(port.port().name)? {
            Some(batch) => Ok(Some(decode(&batch)?)),
            None => Ok(None),
        }
    }

    /// All rows of an input that are still unread.
    pub fn all<T: Table>(&self, port: &In<T>) -> Result<Vec<T>, OperatorError> {
        let mut all = Vec::new();
        while let Some(rows) = self.next(port)? {
            all.extend(rows);
        }
        Ok(all)
    }

    /// The next rows of an input as Arrow arrays.
    pub fn next_batch<T: Table>(&self, port: &In<T>) -> Result<Option<RecordBatch>, OperatorError> {
        self.io.next_batch(port.port().name)
    }

    /// Where the rows of an input of any table come from, and what table they are rows of.
    pub fn origin(&self, port: &AnyIn) -> Result<Origin, OperatorError> {
        let name = port.port().name;
        self.io.origin(name).ok_or_else(|| OperatorError::internal(format!("input `{name}` is not bound to a table")))
    }

    /// The next rows of an input of any table, with exactly the columns of `table`; `None` at its end.
    pub fn next_of(&self, port: &AnyIn, table: &TableDef) -> Result<Option<RecordBatch>, OperatorError> {
        let batch = self.io.next_batch(port.port().name)?;
        Ok(batch.map(|batch| complete(&batch, &table.schema())))
    }

    /// Adds rows to an output.
    pub fn append<T: Table>(&self, port: &Out<T>, rows: &[T]) -> Result<(), OperatorError> {
        if rows.is_empty() {
            return Ok(());
        }
        self.io.append(port.port().name, TableDef::of::<T>(), encode(rows)?)
    }

    /// Adds the rows that wait in `columns` to an output.
    pub fn append_columns<T: Table>(&self, port: &Out<T>, columns: &mut Columns<T>) -> Result<(), OperatorError> {
        match columns.take()? {
            Some(batch) => self.io.append(port.port().name, TableDef::of::<T>(), batch),
            None => Ok(()),
        }
    }

    /// The files of an input.
    pub fn files(&self, port: &FilesIn) -> Result<Vec<InputFile>, OperatorError> {
        self.io.input_files(port.port().name)
    }

    /// The file of an input with this name.
    pub fn file(&self, port: &FilesIn, name: &str) -> Result<InputFile, OperatorError> {
        let Payload::Files(kind) = port.port().payload else { unreachable!("a files port holds files") };
        self.files(port)?.into_iter().find(|file| file.name == name).ok_or_else(|| {
            OperatorError::input(format!("the {kind} has no file `{name}`"))
                .hint(format!("bind `{}` to a stage that makes a {kind}", port.port().name))
        })
    }

    /// Adds a file to an output.
    pub fn put_file(&self, port: &FilesOut, name: &str, path: &Path) -> Result<(), OperatorError> {
        self.io.put_file(port.port().name, name, path)
    }

    /// Adds a file with these bytes to an output.
    pub fn put_bytes(&self, port: &FilesOut, name: &str, bytes: &[u8]) -> Result<(), OperatorError> {
        let path = self.scratch.join(name.replace('/', "_"));
        std::fs::write(&path, bytes)?;
        self.put_file(port, name, &path)
    }

    /// A seed for this unit and purpose: the same for every attempt, another for every other partition and purpose.
    ///
    /// Only operators that say `SEEDED` may draw: the pipeline's seed is part of their unit key.
    pub fn seed(&self, purpose: &str) -> u64 {
        seed(self.pipeline_seed, &[self.operator, self.partition, purpose])
    }

    /// Whether the unit should stop at the next safe place.
    pub fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// An error if the unit should stop now.
    pub fn check_stop(&self) -> Result<(), OperatorError> {
        if self.stopping() { Err(OperatorError::interrupted()) } else { Ok(()) }
    }
}

/// A 64-bit seed from a seed and a path of names; every draw of the product comes from one.
pub fn seed(from: u64, path: &[&str]) -> u64 {
    let mut bytes = from.to_le_bytes().to_vec();
    for name in path {
        bytes.extend((name.len() as u64).to_le_bytes());
        bytes.extend(name.as_bytes());
    }
    xxh3_64(&bytes)
}

/// A number in [0, 1) that depends on the seed and the row's key alone: keep a row when it is below the wanted share,
/// and reruns, partitions and workers all keep the same rows.
pub fn share(seed: u64, key: &str) -> f64 {
    let hash = self::seed(seed, &[key]);
    (hash >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_tell_their_path_apart() {
        assert_ne!(seed(1, &["ab", "c"]), seed(1, &["a", "bc"]));
        assert_ne!(seed(1, &["a"]), seed(2, &["a"]));
        assert_eq!(seed(1, &["a"]), seed(1, &["a"]));
    }

    #[test]
    fn shares_are_uniform() {
        let below = (0..10_000).filter(|i| share(7, &format!("row-{i}")) < 0.3).count();
        assert!((2_850..3_150).contains(&below), "{below} of 10,000 below 0.3");
    }
}
