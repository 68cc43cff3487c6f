//! The product's side of `make bench-data`: one unit of `ingest_traces` over the files of a folder, written as the store
//! writes it.   bench-ingest INPUT_FOLDER OUTPUT_FOLDER ZSTD_LEVEL [CONDITION…]
//!
//! Operator, parameters and Parquet writer are the product's own; what is left out is the store around them: the copy of
//! the finished files and the records of the unit.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

use arrow::array::RecordBatch;
use operators::{
    Checkpoint, InputFile, NoProgress, OPERATORS, OperatorError, Origin, SourceObject, UnitContext, UnitIo,
};
use parquet::basic::ZstdLevel;
use schemas::TableDef;
use serde_json::json;

#[path = "../../jobs/store/src/parquet_io.rs"]
#[expect(dead_code, reason = "what reads files is not used here")]
mod parquet_io;

use parquet_io::TableWriter;

/// A folder of sources and a folder of tables.
struct Disk {
    objects: Vec<SourceObject>,
    folder: PathBuf,
    level: ZstdLevel,
    writers: Mutex<BTreeMap<String, TableWriter>>,
    counts: Mutex<BTreeMap<String, u64>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn not_here(what: &str) -> OperatorError {
    OperatorError::input(format!("{what} is no part of this benchmark"))
}

impl UnitIo for Disk {
    fn next_batch(&self, _port: &str) -> Result<Option<RecordBatch>, OperatorError> {
        Ok(None)
    }
    fn origin(&self, _port: &str) -> Option<Origin> {
        None
    }
    fn append(&self, port: &str, table: TableDef, batch: RecordBatch) -> Result<(), OperatorError> {
        let mut writers = lock(&self.writers);
        let writer = writers
            .entry(port.to_owned())
            .or_insert_with(|| TableWriter::with_level(&self.folder, port, table.schema(), self.level));
        writer.write(&batch).map_err(|error| OperatorError::input(format!("cannot write {port}")).because(error))
    }
    fn is_bound(&self, _port: &str) -> bool {
        false
    }
    fn input_files(&self, _port: &str) -> Result<Vec<InputFile>, OperatorError> {
        Ok(Vec::new())
    }
    fn put_file(&self, _port: &str, _name: &str, _path: &Path) -> Result<(), OperatorError> {
        Err(not_here("a file"))
    }
    fn objects(&self) -> &[SourceObject] {
        &self.objects
    }
    fn open(&self, object: &SourceObject) -> Result<Box<dyn Read + Send>, OperatorError> {
        Ok(Box::new(File::open(&object.uri)?))
    }
    fn newest_checkpoint(&self) -> Result<Option<Checkpoint>, OperatorError> {
        Ok(None)
    }
    fn save_checkpoint(&self, _step: u64, _folder: &Path) -> Result<(), OperatorError> {
        Err(not_here("a checkpoint"))
    }
    fn count(&self, name: &str, by: u64) {
        *lock(&self.counts).entry(name.to_owned()).or_default() += by;
    }
}

fn sources(folder: &str) -> Result<Vec<SourceObject>, Box<dyn Error>> {
    let mut objects = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if name.ends_with(".jsonl") {
            let uri = path.display().to_string();
            objects.push(SourceObject { uri, name, size: entry.metadata()?.len(), version: String::new() });
        }
    }
    objects.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(objects)
}

#[expect(clippy::print_stdout, reason = "the counts are this program's data")]
fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, output, level, conditions @ ..] = arguments.as_slice() else {
        return Err("bench-ingest INPUT_FOLDER OUTPUT_FOLDER ZSTD_LEVEL [CONDITION…]".into());
    };
    let disk = Disk {
        objects: sources(input)?,
        folder: PathBuf::from(output),
        level: ZstdLevel::try_new(level.parse()?)?,
        writers: Mutex::default(),
        counts: Mutex::default(),
    };
    let mut params = json!({ "format": "oagents", "source": format!("{input}/*.jsonl"), "domain": "qa" });
    if !conditions.is_empty() {
        params["where"] = json!(conditions);
    }
    let factory = OPERATORS.iter().find(|factory| factory.name() == "ingest_traces").ok_or("no ingest_traces")?;
    let operator = factory.rebuild(&params)?;
    let scratch = tempfile::tempdir()?;
    operator.run(&UnitContext {
        io: &disk,
        operator: factory.name(),
        partition: "all",
        number: 0,
        pipeline_seed: 0,
        scratch: scratch.path(),
        progress: &NoProgress,
        stop: &AtomicBool::new(false),
    })?;
    for (port, writer) in std::mem::take(&mut *lock(&disk.writers)) {
        let files = writer.finish()?;
        println!("{port}: {} rows in {} files", files.iter().map(|file| file.rows).sum::<u64>(), files.len());
    }
    for (name, count) in lock(&disk.counts).iter() {
        println!("{name}: {count}");
    }
    Ok(())
}
