//! Parquet files on the local disk: written with a hash of their bytes, read in batches of bounded size.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::arrow::{ArrowSchemaConverter, ArrowWriter};
use parquet::basic::{Compression, Type, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use xxhash_rust::xxh3::Xxh3;

/// A row group is closed when its rows hold this many bytes in memory: larger ones are refused by some readers, and
/// until it is closed all of it is kept.
const ROW_GROUP_BYTES: usize = 128 << 20;
/// A file is closed when it is larger than this.
const FILE_BYTES: u64 = 256 << 20;
/// A batch read back holds about this many bytes.
const BATCH_BYTES: usize = 8 << 20;
/// A batch read back holds at most this many rows.
const BATCH_ROWS: usize = 8192;

/// A finished file on the local disk.
pub(crate) struct LocalParquet {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) rows: u64,
    pub(crate) xxh3: String,
}

/// Writes the rows of one table into one or more files.
///
/// Equal rows in equal batches give equal bytes: nothing about the attempt is written into a file.
pub(crate) struct TableWriter {
    folder: PathBuf,
    stem: String,
    schema: SchemaRef,
    level: ZstdLevel,
    open: Option<(ArrowWriter<HashingFile>, PathBuf, u64)>,
    in_group: usize,
    finished: Vec<LocalParquet>,
    pub(crate) rows: u64,
}

impl TableWriter {
    pub(crate) fn new(folder: &Path, stem: &str, schema: SchemaRef) -> Self {
        Self::with_level(folder, stem, schema, ZstdLevel::default())
    }

    /// As [`Self::new`], compressed less or more.
    pub(crate) fn with_level(folder: &Path, stem: &str, schema: SchemaRef, level: ZstdLevel) -> Self {
        let (folder, stem) = (folder.to_owned(), stem.to_owned());
        Self { folder, stem, schema, level, open: None, in_group: 0, finished: Vec::new(), rows: 0 }
    }

    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<(), ParquetError> {
        if self.open.is_none() {
            let path = self.folder.join(format!("{}-{}.parquet", self.stem, self.finished.len()));
            let file = HashingFile { file: File::create(&path)?, hash: Xxh3::new(), bytes: 0 };
            let writer =
                ArrowWriter::try_new(file, Arc::clone(&self.schema), Some(properties(self.level, &self.schema)?))?;
            self.open = Some((writer, path, 0));
        }
        let (writer, _, rows) = self.open.as_mut().expect("opened above");
        let columns = batch.columns().iter().map(|column| column.to_data().get_slice_memory_size());
        let bytes = columns.sum::<Result<usize, _>>()?;
        if self.in_group > 0 && self.in_group + bytes > ROW_GROUP_BYTES {
            writer.flush()?;
            self.in_group = 0;
        }
        self.in_group += bytes;
        writer.write(batch)?;
        *rows += batch.num_rows() as u64;
        self.rows += batch.num_rows() as u64;
        if writer.bytes_written() as u64 + writer.in_progress_size() as u64 > FILE_BYTES {
            self.close()?;
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), ParquetError> {
        let Some((writer, path, rows)) = self.open.take() else { return Ok(()) };
        self.in_group = 0;
        let mut file = writer.into_inner()?;
        file.flush()?;
        let xxh3 = format!("{:016x}", file.hash.digest());
        self.finished.push(LocalParquet { path, bytes: file.bytes, rows, xxh3 });
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<Vec<LocalParquet>, ParquetError> {
        self.close()?;
        Ok(self.finished)
    }
}

/// Least and greatest of a column of floats leave out what is no number. A reader that skips row groups by them would
/// miss such rows, so they are not written.
fn properties(level: ZstdLevel, schema: &Schema) -> Result<WriterProperties, ParquetError> {
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_max_row_group_bytes(Some(ROW_GROUP_BYTES))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_created_by("coa".to_owned());
    for column in ArrowSchemaConverter::new().convert(schema)?.columns() {
        if matches!(column.physical_type(), Type::FLOAT | Type::DOUBLE) {
            properties = properties.set_column_statistics_enabled(column.path().clone(), EnabledStatistics::None);
        }
    }
    Ok(properties.build())
}

/// Reads a file in batches.
pub(crate) fn read(path: &Path) -> Result<ParquetRecordBatchReader, ParquetError> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(path)?)?;
    let groups = builder.metadata().row_groups();
    let rows: i64 = groups.iter().map(|group| group.num_rows()).sum();
    // A value that stands a thousand times in a file is stored once, and read back a thousand times.
    let columns = groups.iter().flat_map(|group| group.columns());
    let size =
        |column: &ColumnChunkMetaData| column.unencoded_byte_array_data_bytes().max(Some(column.uncompressed_size()));
    let bytes: i64 = columns.filter_map(size).sum();
    let average = (bytes / rows.max(1)).max(1) as usize;
    builder.with_batch_size((BATCH_BYTES / average).clamp(1, BATCH_ROWS)).build()
}

/// A file that knows the hash of what was written to it.
struct HashingFile {
    file: File,
    hash: Xxh3,
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

#[cfg(test)]
mod tests {
    use super::*;
    use schemas::{Rejected, decode, encode};

    #[test]
    fn equal_rows_give_equal_bytes_and_are_read_back() {
        let rows: Vec<Rejected> = (0..20_000)
            .map(|i| {
                let task = (i % 3 == 0).then(|| format!("task-{i}"));
                Rejected::new(format!("row-{i}"), task, "why", "because ".repeat(i % 50))
            })
            .collect();
        let batch = encode(&rows).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut hashes = Vec::new();
        for stem in ["a", "b"] {
            let mut writer = TableWriter::new(folder.path(), stem, batch.schema());
            writer.write(&batch).unwrap();
            let files = writer.finish().unwrap();
            assert_eq!(files.len(), 1);
            assert_eq!(files[0].bytes, std::fs::metadata(&files[0].path).unwrap().len());
            hashes.push(files[0].xxh3.clone());
            let mut back: Vec<Rejected> = Vec::new();
            for batch in read(&files[0].path).unwrap() {
                back.extend(decode::<Rejected>(&batch.unwrap()).unwrap());
            }
            assert_eq!(back, rows);
        }
        assert_eq!(hashes[0], hashes[1]);
    }

    #[test]
    fn columns_that_may_hold_no_number_have_no_bounds() {
        let mut step = schemas::Step::new("t", "0", 0, schemas::StepKind::Critique);
        step.score = Some(f64::NAN);
        let batch = encode(&[step]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut writer = TableWriter::new(folder.path(), "x", batch.schema());
        writer.write(&batch).unwrap();
        let file = writer.finish().unwrap().remove(0);
        let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(&file.path).unwrap()).unwrap();
        let columns = builder.metadata().row_group(0).columns();
        let bounds =
            |name: &str| columns.iter().find(|column| column.column_path().string() == name).unwrap().statistics();
        assert!(bounds("position").is_some() && bounds("score").is_none());
    }

    #[test]
    fn row_groups_are_bounded_in_memory_not_on_disk() {
        let text = "much the same ".repeat(1 << 16);
        let row = |i: usize| {
            let detail = format!("{i} {text}");
            Rejected::new(i.to_string(), None, "", detail)
        };
        let batch = encode(&(0..8).map(row).collect::<Vec<_>>()).unwrap();
        let bytes =
            batch.columns().iter().map(|column| column.to_data().get_slice_memory_size().unwrap()).sum::<usize>();
        let folder = tempfile::tempdir().unwrap();
        let mut writer = TableWriter::new(folder.path(), "x", batch.schema());
        let batches = 2 * ROW_GROUP_BYTES / bytes + 2;
        (0..batches).for_each(|_| writer.write(&batch).unwrap());
        let file = writer.finish().unwrap().remove(0);
        assert!(file.bytes < 8 << 20, "{}", file.bytes);
        let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(&file.path).unwrap()).unwrap();
        let rows: Vec<i64> = builder.metadata().row_groups().iter().map(|group| group.num_rows()).collect();
        assert_eq!(rows.len(), 3, "{rows:?}");
        assert!(rows.iter().all(|rows| *rows as usize / batch.num_rows() * bytes <= ROW_GROUP_BYTES), "{rows:?}");
    }

    #[test]
    fn a_text_that_is_stored_once_is_read_back_in_bounded_batches() {
        let page = "page ".repeat(200_000);
        let row = |i: usize| Rejected::new(i.to_string(), None, "", page.clone());
        let folder = tempfile::tempdir().unwrap();
        let batch = encode(&(0..100).map(row).collect::<Vec<_>>()).unwrap();
        let mut writer = TableWriter::new(folder.path(), "x", batch.schema());
        writer.write(&batch).unwrap();
        let file = writer.finish().unwrap().remove(0);
        assert!(file.bytes < 3 << 20, "{}", file.bytes);
        for batch in read(&file.path).unwrap() {
            assert!(batch.unwrap().num_rows() <= 10);
        }
    }
}
