//! One attempt at a unit, as its operator sees storage.
//!
//! Inputs are read from the files that unit records name. Output is written to the attempt's scratch folder and put
//! into the store, under names only this attempt uses, when the operator has returned without error.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::Read;
use std::path::{Path as LocalPath, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::RecordBatch;
use object_store::path::Path;
use operators::{Checkpoint, Factory, InputFile, OperatorError, Origin, OriginUnit, Payload, SourceObject, UnitIo};
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
use parquet::errors::ParquetError;
use schemas::TableDef;
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;

use crate::checkpoints::Checkpoints;
use crate::parquet_io::{self, TableWriter};
use crate::paths;
use crate::record::{DataFile, FilesOutput, StoredFile, TableOutput, UnitRecord};
use crate::source::open_source;
use crate::store::Store;
use crate::transfer::{Checksum, Stored, fetch, hexadecimal, put_file};

/// An input port and the unit records that feed it.
#[derive(Clone)]
pub struct InputPort {
    /// The input port.
    pub port: String,
    /// What passes through it: the payload of the output that feeds it.
    pub payload: Payload,
    /// The stage that feeds it.
    pub stage: String,
    /// The output port of that stage.
    pub from: String,
    /// Its records, in order of partition.
    pub records: Vec<Arc<UnitRecord>>,
}

impl InputPort {
    fn origin(&self, table: TableDef) -> Origin {
        let units = self.records.iter().map(|record| OriginUnit {
            partition: record.partition.clone(),
            rows: record.rows(&self.from),
            digest: record.digest(&self.from),
        });
        Origin { table, stage: self.stage.clone(), output: self.from.clone(), units: units.collect() }
    }
}

/// Where a unit stands: what its outputs are named after.
#[derive(Clone, Debug)]
pub struct UnitPlace {
    /// The unit's key.
    pub unit: String,
    /// The stage.
    pub stage: String,
    /// The partition.
    pub partition: String,
    /// This attempt.
    pub attempt: String,
}

/// Storage of one attempt.
pub struct AttemptIo {
    store: Store,
    handle: Handle,
    place: UnitPlace,
    factory: &'static dyn Factory,
    objects: Vec<SourceObject>,
    scratch: PathBuf,
    inputs: HashMap<String, Mutex<Input>>,
    origins: HashMap<String, Origin>,
    input_files: HashMap<String, Vec<StoredFile>>,
    state: Mutex<State>,
    checkpoints: Checkpoints,
}

struct Input {
    waiting: VecDeque<Stored>,
    open: Option<ParquetRecordBatchReader>,
    rows: u64,
}

#[derive(Default)]
struct State {
    writers: BTreeMap<String, TableWriter>,
    files: BTreeMap<String, Vec<(String, PathBuf)>>,
    counts: BTreeMap<String, u64>,
}

impl AttemptIo {
    /// Storage for an attempt. `scratch` is a folder of its own.
    pub fn new(
        store: &Store,
        handle: &Handle,
        place: UnitPlace,
        factory: &'static dyn Factory,
        inputs: Vec<InputPort>,
        objects: Vec<SourceObject>,
        scratch: &LocalPath,
    ) -> Self {
        let mut tables = HashMap::new();
        let mut origins = HashMap::new();
        let mut input_files: HashMap<String, Vec<StoredFile>> = HashMap::new();
        for input in inputs {
            match input.payload {
                Payload::Table(table) => {
                    origins.insert(input.port.clone(), input.origin(table));
                    let folder = paths::table(&input.stage, &input.from, table);
                    let outputs = input.records.iter().flat_map(|record| &record.tables);
                    let waiting = outputs
                        .filter(|output| output.port == input.from)
                        .flat_map(|output| &output.files)
                        .map(|file| Stored {
                            path: Path::from(format!("{folder}/{}", file.path)),
                            bytes: file.bytes,
                            digest: Checksum::Xxh3(file.xxh3.clone()),
                        })
                        .collect();
                    tables.insert(input.port, Mutex::new(Input { waiting, open: None, rows: 0 }));
                }
                Payload::AnyTable => unreachable!("what is bound is a table"),
                Payload::Files(_) => {
                    let outputs = input.records.iter().flat_map(|record| &record.files);
                    let files =
                        outputs.filter(|output| output.port == input.from).flat_map(|output| output.files.clone());
                    input_files.insert(input.port, files.collect());
                }
            }
        }
        let checkpoints = Checkpoints::new(store, handle, &place.unit, &place.attempt, scratch);
        Self {
            store: store.clone(),
            handle: handle.clone(),
            place,
            factory,
            objects,
            scratch: scratch.to_owned(),
            inputs: tables,
            origins,
            input_files,
            state: Mutex::default(),
            checkpoints,
        }
    }

    /// Puts the attempt's output into the store: what its unit record will name. Nothing is visible yet.
    pub fn upload(&self) -> Result<(Vec<TableOutput>, Vec<FilesOutput>), OperatorError> {
        let state = std::mem::take(&mut *self.state());
        let mut writers = state.writers;
        let mut tables = Vec::new();
        let mut files = Vec::new();
        for port in self.factory.outputs() {
            match port.payload {
                Payload::Table(table) => {
                    let rows = writers.get(port.name).map_or(0, |writer| writer.rows);
                    let written = match writers.remove(port.name) {
                        Some(writer) => writer.finish().map_err(|error| parquet_error(error, port.name))?,
                        None => Vec::new(),
                    };
                    let folder = paths::table(&self.place.stage, port.name, table);
                    let mut data = Vec::new();
                    for (number, file) in written.into_iter().enumerate() {
                        let path = paths::data_file(&self.place.partition, &self.place.attempt, number);
                        self.put(&Path::from(format!("{folder}/{path}")), &file.path, file.bytes)?;
                        data.push(DataFile { path, bytes: file.bytes, rows: file.rows, xxh3: file.xxh3 });
                    }
                    tables.push(TableOutput {
                        port: port.name.to_owned(),
                        table: table.name.to_owned(),
                        table_version: table.version,
                        rows,
                        files: data,
                    });
                }
                Payload::AnyTable => unreachable!("an output is of one table"),
                Payload::Files(kind) => {
                    let mut stored = Vec::new();
                    for (name, local) in state.files.get(port.name).into_iter().flatten() {
                        let place = &self.place;
                        let path = paths::file(&place.stage, port.name, &place.partition, &place.attempt, name);
                        let (bytes, sha256) = sha256_of(local)?;
                        self.put(&path, local, bytes)?;
                        stored.push(StoredFile { name: name.clone(), path: path.to_string(), bytes, sha256 });
                    }
                    files.push(FilesOutput { port: port.name.to_owned(), kind: kind.to_owned(), files: stored });
                }
            }
        }
        *self.state() = State { counts: state.counts, ..State::default() };
        Ok((tables, files))
    }

    /// Whether the unit has saved or found checkpoints.
    pub fn has_checkpoints(&self) -> bool {
        self.checkpoints.used()
    }

    /// Rows read, by input port.
    pub fn rows_in(&self) -> BTreeMap<String, u64> {
        self.inputs.iter().map(|(port, input)| (port.clone(), lock(input).rows)).collect()
    }

    /// Named counts.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.state().counts.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn put(&self, path: &Path, local: &LocalPath, bytes: u64) -> Result<(), OperatorError> {
        put_file(&self.store, &self.handle, path, local, bytes)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sha256_of(path: &LocalPath) -> Result<(u64, String), OperatorError> {
    let mut file = std::fs::File::open(path)?;
    let mut hash = Sha256::new();
    let bytes = std::io::copy(&mut file, &mut hash)?;
    Ok((bytes, hexadecimal(&hash.finalize())))
}

fn parquet_error(error: ParquetError, what: &str) -> OperatorError {
    if let ParquetError::External(source) = &error
        && let Some(io) = source.downcast_ref::<std::io::Error>()
    {
        let converted =
            OperatorError::from(std::io::Error::new(io.kind(), format!("cannot write or read {what}: {io}")));
        return converted;
    }
    OperatorError::input(format!("cannot read or write `{what}` as Parquet")).because(error)
}

impl UnitIo for AttemptIo {
    fn next_batch(&self, port: &str) -> Result<Option<RecordBatch>, OperatorError> {
        let Some(input) = self.inputs.get(port) else { return Ok(None) };
        let mut input = lock(input);
        loop {
            if let Some(reader) = &mut input.open {
                match reader.next() {
                    Some(Ok(batch)) => {
                        input.rows += batch.num_rows() as u64;
                        return Ok(Some(batch));
                    }
                    Some(Err(error)) => {
                        return Err(OperatorError::input(format!("a file of input `{port}` is damaged")).because(error));
                    }
                    None => input.open = None,
                }
            }
            let Some(file) = input.waiting.pop_front() else { return Ok(None) };
            let local = fetch(&self.store, &self.handle, &file, &self.scratch)?;
            let reader = parquet_io::read(&local).map_err(|error| {
                OperatorError::input(format!("`{}` is not a readable Parquet file", self.store.uri(&file.path)))
                    .hint("restore it from a copy, or run its stage again with `--force`")
                    .because(error)
            })?;
            input.open = Some(reader);
        }
    }

    fn origin(&self, port: &str) -> Option<Origin> {
        self.origins.get(port).cloned()
    }

    fn append(&self, port: &str, table: TableDef, batch: RecordBatch) -> Result<(), OperatorError> {
        let mut state = self.state();
        let writer = state
            .writers
            .entry(port.to_owned())
            .or_insert_with(|| TableWriter::new(&self.scratch, &format!("out-{port}"), table.schema()));
        writer.write(&batch).map_err(|error| parquet_error(error, port))
    }

    fn is_bound(&self, port: &str) -> bool {
        self.inputs.contains_key(port) || self.input_files.contains_key(port)
    }

    fn input_files(&self, port: &str) -> Result<Vec<InputFile>, OperatorError> {
        let mut found = Vec::new();
        for file in self.input_files.get(port).into_iter().flatten() {
            let digest = Checksum::Sha256(file.sha256.clone());
            let stored = Stored { path: Path::from(file.path.as_str()), bytes: file.bytes, digest };
            let path = fetch(&self.store, &self.handle, &stored, &self.scratch)?;
            found.push(InputFile { name: file.name.clone(), path, digest: file.sha256.clone() });
        }
        Ok(found)
    }

    fn put_file(&self, port: &str, name: &str, path: &LocalPath) -> Result<(), OperatorError> {
        self.state().files.entry(port.to_owned()).or_default().push((name.to_owned(), path.to_owned()));
        Ok(())
    }

    fn objects(&self) -> &[SourceObject] {
        &self.objects
    }

    fn open(&self, object: &SourceObject) -> Result<Box<dyn Read + Send>, OperatorError> {
        Ok(open_source(object, &self.handle)?)
    }

    fn newest_checkpoint(&self) -> Result<Option<Checkpoint>, OperatorError> {
        self.checkpoints.newest()
    }

    fn save_checkpoint(&self, step: u64, folder: &LocalPath) -> Result<(), OperatorError> {
        self.checkpoints.save(step, folder)
    }

    fn count(&self, name: &str, by: u64) {
        *self.state().counts.entry(name.to_owned()).or_default() += by;
    }
}
