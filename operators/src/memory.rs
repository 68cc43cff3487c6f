//! Storage in memory, for trying an operator on rows at hand: in tests and examples.

use std::collections::HashMap;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use arrow::array::RecordBatch;
use schemas::{RowError, Table, TableDef, decode, encode};

use crate::context::{
    Checkpoint, InputFile, NoProgress, Origin, OriginUnit, ProgressSink, SourceObject, UnitContext, UnitIo,
};
use crate::error::OperatorError;
use crate::operator::Operator;

/// Inputs and outputs of one unit, in memory.
pub struct MemoryIo {
    inputs: HashMap<String, Vec<RecordBatch>>,
    origins: HashMap<String, Origin>,
    read: Mutex<HashMap<String, usize>>,
    files: HashMap<String, Vec<InputFile>>,
    objects: Vec<SourceObject>,
    contents: HashMap<String, Vec<u8>>,
    outputs: Mutex<HashMap<String, Vec<RecordBatch>>>,
    written: Mutex<HashMap<(String, String), Vec<u8>>>,
    counts: Mutex<HashMap<String, u64>>,
    checkpoints: Mutex<Vec<(u64, PathBuf)>>,
    scratch: tempfile::TempDir,
}

impl MemoryIo {
    /// No inputs.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            inputs: HashMap::new(),
            origins: HashMap::new(),
            read: Mutex::default(),
            files: HashMap::new(),
            objects: Vec::new(),
            contents: HashMap::new(),
            outputs: Mutex::default(),
            written: Mutex::default(),
            counts: Mutex::default(),
            checkpoints: Mutex::default(),
            scratch: tempfile::tempdir()?,
        })
    }

    /// Rows on an input port, as one batch and one unit of a stage `memory`.
    pub fn with_rows<T: Table>(mut self, port: &str, rows: &[T]) -> Result<Self, RowError> {
        let batch = encode(rows)?;
        let origin = self.origins.entry(port.to_owned()).or_insert_with(|| Origin {
            table: TableDef::of::<T>(),
            stage: "memory".to_owned(),
            output: port.to_owned(),
            units: Vec::new(),
        });
        origin.units.push(OriginUnit {
            partition: origin.units.len().to_string(),
            rows: rows.len() as u64,
            digest: format!(
                "{:016x}",
                xxhash_rust::xxh3::xxh3_64(&serde_json::to_vec(rows).expect("rows are plain data"))
            ),
        });
        self.inputs.entry(port.to_owned()).or_default().push(batch);
        Ok(self)
    }

    /// A file on an input port.
    pub fn with_file(mut self, port: &str, name: &str, bytes: &[u8]) -> std::io::Result<Self> {
        let path = self.scratch.path().join(format!("in-{port}-{}", name.replace('/', "_")));
        std::fs::write(&path, bytes)?;
        let digest = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(bytes));
        self.files.entry(port.to_owned()).or_default().push(InputFile { name: name.to_owned(), path, digest });
        Ok(self)
    }

    /// A source object.
    pub fn with_object(mut self, name: &str, bytes: &[u8]) -> Self {
        let uri = format!("memory://{name}");
        self.contents.insert(uri.clone(), bytes.to_vec());
        self.objects.push(SourceObject {
            uri,
            name: name.to_owned(),
            size: bytes.len() as u64,
            version: format!("{:016x}", xxhash_rust::xxh3::xxh3_64(bytes)),
        });
        self
    }

    /// Runs an operator as the partition `all`, from the beginning of its inputs. What an earlier run wrote is
    /// forgotten, its checkpoints are not: as for an attempt after another that failed.
    pub fn run<O: Operator>(&self, operator: &O, pipeline_seed: u64) -> Result<(), OperatorError> {
        self.run_watched(operator, pipeline_seed, &NoProgress, &AtomicBool::new(false))
    }

    /// As [`Self::run`], with a view on its progress and a way to stop it.
    pub fn run_watched<O: Operator>(
        &self,
        operator: &O,
        pipeline_seed: u64,
        progress: &dyn ProgressSink,
        stop: &AtomicBool,
    ) -> Result<(), OperatorError> {
        self.lock(&self.read).clear();
        self.lock(&self.outputs).clear();
        self.lock(&self.written).clear();
        self.lock(&self.counts).clear();
        let scratch = tempfile::tempdir()?;
        let cx = UnitContext {
            io: self,
            operator: O::NAME,
            partition: "all",
            number: 0,
            pipeline_seed,
            scratch: scratch.path(),
            progress,
            stop,
        };
        operator.run(&cx)
    }

    /// Rows written to an output port.
    pub fn rows<T: Table>(&self, port: &str) -> Result<Vec<T>, RowError> {
        let mut rows = Vec::new();
        for batch in self.lock(&self.outputs).get(port).into_iter().flatten() {
            rows.extend(decode(batch)?);
        }
        Ok(rows)
    }

    /// A file written to an output port.
    pub fn written(&self, port: &str, name: &str) -> Option<Vec<u8>> {
        self.lock(&self.written).get(&(port.to_owned(), name.to_owned())).cloned()
    }

    /// The names of the files written to an output port, in order of name.
    pub fn written_names(&self, port: &str) -> Vec<String> {
        let written = self.lock(&self.written);
        let mut names: Vec<String> =
            written.keys().filter(|(of, _)| of == port).map(|(_, name)| name.clone()).collect();
        names.sort();
        names
    }

    /// A named count.
    pub fn counted(&self, name: &str) -> u64 {
        self.lock(&self.counts).get(name).copied().unwrap_or_default()
    }

    fn lock<'a, T>(&self, mutex: &'a Mutex<T>) -> std::sync::MutexGuard<'a, T> {
        mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl UnitIo for MemoryIo {
    fn next_batch(&self, port: &str) -> Result<Option<RecordBatch>, OperatorError> {
        let mut read = self.lock(&self.read);
        let at = read.entry(port.to_owned()).or_default();
        let batch = self.inputs.get(port).and_then(|batches| batches.get(*at)).cloned();
        *at += 1;
        Ok(batch)
    }
    fn origin(&self, port: &str) -> Option<Origin> {
        self.origins.get(port).cloned()
    }
    fn append(&self, port: &str, _table: TableDef, batch: RecordBatch) -> Result<(), OperatorError> {
        self.lock(&self.outputs).entry(port.to_owned()).or_default().push(batch);
        Ok(())
    }
    fn is_bound(&self, port: &str) -> bool {
        self.inputs.contains_key(port) || self.files.contains_key(port)
    }
    fn input_files(&self, port: &str) -> Result<Vec<InputFile>, OperatorError> {
        Ok(self.files.get(port).cloned().unwrap_or_default())
    }
    fn put_file(&self, port: &str, name: &str, path: &Path) -> Result<(), OperatorError> {
        self.lock(&self.written).insert((port.to_owned(), name.to_owned()), std::fs::read(path)?);
        Ok(())
    }
    fn objects(&self) -> &[SourceObject] {
        &self.objects
    }
    fn open(&self, object: &SourceObject) -> Result<Box<dyn Read + Send>, OperatorError> {
        let bytes = self.contents.get(&object.uri).cloned();
        let bytes = bytes.ok_or_else(|| OperatorError::input(format!("no object `{}`", object.uri)))?;
        Ok(Box::new(Cursor::new(bytes)))
    }
    fn newest_checkpoint(&self) -> Result<Option<Checkpoint>, OperatorError> {
        let newest = self.lock(&self.checkpoints).last().cloned();
        Ok(newest.map(|(step, folder)| Checkpoint { step, folder }))
    }
    fn save_checkpoint(&self, step: u64, folder: &Path) -> Result<(), OperatorError> {
        let target = self.scratch.path().join(format!("checkpoint-{step}"));
        std::fs::create_dir_all(&target)?;
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            std::fs::copy(entry.path(), target.join(entry.file_name()))?;
        }
        self.lock(&self.checkpoints).push((step, target));
        Ok(())
    }
    fn count(&self, name: &str, by: u64) {
        *self.lock(&self.counts).entry(name.to_owned()).or_default() += by;
    }
}
