//! Shards: the Parquet files of a split, each of bounded size, written to the scratch folder.
//!
//! Equal rows in equal batches give equal bytes: nothing about the attempt is written into a file.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use parquet::arrow::{ArrowSchemaConverter, ArrowWriter};
use parquet::basic::{Compression, Type, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use sha2::{Digest, Sha256};

use crate::error::OperatorError;

/// A row group is closed before its rows would hold more bytes in memory than this: until then all of it is kept.
const ROW_GROUP_BYTES: u64 = 128 << 20;
/// Level of zstd.
const LEVEL: i32 = 3;

/// A finished shard.
pub(super) struct Shard {
    /// Its name in the data set.
    pub(super) name: String,
    /// Where it lies now.
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    pub(super) rows: u64,
    /// Bytes of its rows as Arrow arrays.
    pub(super) in_memory: u64,
    /// SHA-256 of its bytes, hexadecimal.
    pub(super) sha256: String,
}

/// Writes the rows of a split.
pub(super) struct ShardWriter {
    folder: PathBuf,
    split: &'static str,
    schema: SchemaRef,
    max_bytes: u64,
    open: Option<Open>,
    finished: Vec<Shard>,
}

struct Open {
    writer: ArrowWriter<HashingFile>,
    path: PathBuf,
    in_group: u64,
    in_memory: u64,
}

impl Open {
    /// What the file would take if it were closed now, without what it says about itself.
    fn bytes(&self) -> u64 {
        (self.writer.bytes_written() + self.writer.in_progress_size()) as u64
    }
}

impl ShardWriter {
    pub(super) fn new(folder: &Path, split: &'static str, schema: SchemaRef, max_bytes: u64) -> Self {
        Self { folder: folder.to_owned(), split, schema, max_bytes, open: None, finished: Vec::new() }
    }

    /// Adds rows to the open shard or, where they would make it too large, to a new one.
    pub(super) fn write(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        let rows = batch.num_rows();
        if rows == 0 {
            return Ok(());
        }
        let columns = batch.columns().iter().map(|column| column.to_data().get_slice_memory_size());
        let bytes = columns.sum::<Result<usize, _>>().map_err(failed)? as u64;
        if bytes > self.max_bytes.min(ROW_GROUP_BYTES) && rows > 1 {
            self.write(&batch.slice(0, rows / 2))?;
            return self.write(&batch.slice(rows / 2, rows - rows / 2));
        }
        if self.open.as_ref().is_some_and(|open| open.bytes() + bytes > self.max_bytes) {
            self.close()?;
        }
        let open = self.open()?;
        if open.in_group > 0 && open.in_group + bytes > ROW_GROUP_BYTES {
            open.writer.flush().map_err(unwritten)?;
            open.in_group = 0;
        }
        open.in_group += bytes;
        open.in_memory += bytes;
        open.writer.write(batch).map_err(unwritten)
    }

    /// Begins a shard whether or not rows will come.
    pub(super) fn begin(&mut self) -> Result<(), OperatorError> {
        self.open().map(|_| ())
    }

    /// The shards, with names that tell how many there are; none where there are no rows.
    pub(super) fn finish(mut self) -> Result<Vec<Shard>, OperatorError> {
        self.close()?;
        let (split, of) = (self.split, self.finished.len());
        for (number, shard) in self.finished.iter_mut().enumerate() {
            shard.name = format!("data/{split}-{number:05}-of-{of:05}.parquet");
        }
        Ok(self.finished)
    }

    fn open(&mut self) -> Result<&mut Open, OperatorError> {
        let open = match self.open.take() {
            Some(open) => open,
            None => {
                let path = self.folder.join(format!("{}-{}.parquet", self.split, self.finished.len()));
                let file = HashingFile { file: BufWriter::new(File::create(&path)?), hash: Sha256::new(), bytes: 0 };
                let properties = properties(&self.schema).map_err(unwritten)?;
                let writer =
                    ArrowWriter::try_new(file, Arc::clone(&self.schema), Some(properties)).map_err(unwritten)?;
                Open { writer, path, in_group: 0, in_memory: 0 }
            }
        };
        Ok(self.open.insert(open))
    }

    fn close(&mut self) -> Result<(), OperatorError> {
        let Some(Open { mut writer, path, in_memory, .. }) = self.open.take() else { return Ok(()) };
        // What the file itself says: the rows that a reader will find.
        let rows = writer.finish().map_err(unwritten)?.file_metadata().num_rows() as u64;
        let file = writer.inner_mut();
        file.flush()?;
        let sha256 = hexadecimal(&file.hash.finalize_reset());
        let bytes = file.bytes;
        self.finished.push(Shard { name: String::new(), path, bytes, rows, in_memory, sha256 });
        Ok(())
    }
}

/// Least and greatest of a column of floats leave out what is no number. A reader that skips row groups by them would
/// miss such rows, so they are not written.
fn properties(schema: &Schema) -> Result<WriterProperties, ParquetError> {
    use parquet::file::properties::EnabledStatistics::{Chunk, None};
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(LEVEL)?))
        .set_max_row_group_bytes(Some(ROW_GROUP_BYTES as usize))
        .set_statistics_enabled(Chunk)
        .set_created_by("coa".to_owned());
    for column in ArrowSchemaConverter::new().convert(schema)?.columns() {
        if matches!(column.physical_type(), Type::FLOAT | Type::DOUBLE) {
            properties = properties.set_column_statistics_enabled(column.path().clone(), None);
        }
    }
    Ok(properties.build())
}

/// SHA-256 in hexadecimal digits.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Rows that are not in the shape their table promises.
pub(super) fn failed(error: arrow::error::ArrowError) -> OperatorError {
    OperatorError::input("rows of the input do not fit their table").because(error)
}

fn unwritten(error: ParquetError) -> OperatorError {
    match error {
        ParquetError::External(source) => match source.downcast::<std::io::Error>() {
            Ok(error) => OperatorError::from(*error),
            Err(source) => OperatorError::internal("a shard was not written").because(source),
        },
        error => OperatorError::internal("a shard was not written").because(error),
    }
}

/// A file that knows the hash of what was written to it.
struct HashingFile {
    file: BufWriter<File>,
    hash: Sha256,
    bytes: u64,
}

impl Write for HashingFile {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(buffer)?;
        self.hash.update(&buffer[..written]);
        self.bytes += written as u64;
        Ok(written)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}
