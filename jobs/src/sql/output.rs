//! How rows are written: as a table to read, as JSON, CSV or Parquet; to a stream or into a new file.
//!
//! Not a number is `NaN` in tables and CSV. JSON knows no such number: there it is the text `"NaN"`, so that it is not
//! taken for null; infinities are `"Infinity"` and `"-Infinity"`.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrowPrimitiveType, AsArray, PrimitiveArray, RecordBatch};
use arrow::datatypes::{DataType, FieldRef, Float16Type, Float32Type, Float64Type};
use arrow::error::ArrowError;
use arrow::json::writer::{JsonArray, NullableEncoder, WriterBuilder as JsonBuilder};
use arrow::json::{Encoder, EncoderFactory, EncoderOptions};
use arrow::util::pretty::pretty_format_batches;
use clap::ValueEnum;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::arrow::arrow_writer::ArrowWriterOptions;
use datafusion::parquet::basic::{Compression, ZstdLevel};
use datafusion::parquet::errors::ParquetError;
use datafusion::parquet::file::properties::WriterProperties;

use super::Rows;
use crate::error::CommandError;

/// How rows are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For reading.
    Table,
    /// A list of objects.
    Json,
    /// With a header line.
    Csv,
}

/// Why writing ended early.
enum WriteError {
    /// Whoever reads it has had enough.
    Closed,
    /// It cannot be written.
    Failed(String),
    /// The query.
    Query(CommandError),
}

impl From<CommandError> for WriteError {
    fn from(error: CommandError) -> Self {
        Self::Query(error)
    }
}

impl From<std::io::Error> for WriteError {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe { Self::Closed } else { Self::Failed(error.to_string()) }
    }
}

impl From<ArrowError> for WriteError {
    fn from(error: ArrowError) -> Self {
        match error {
            ArrowError::IoError(_, error) => error.into(),
            // The writer of CSV keeps the words of an error and not its kind.
            ArrowError::CsvError(text) if text.contains("Broken pipe") => Self::Closed,
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<ParquetError> for WriteError {
    fn from(error: ParquetError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Writes rows to a stream, such as stdout.
pub(super) async fn write(rows: &mut Rows, format: Format, to: &mut (dyn Write + Send)) -> Result<(), CommandError> {
    told(match format {
        Format::Table => table(rows, to).await,
        Format::Json => json(rows, to).await,
        Format::Csv => csv(rows, to).await,
    })
}

/// Writes a line below rows.
pub(super) fn write_text(text: &str, to: &mut (dyn Write + Send)) -> Result<(), CommandError> {
    told(writeln!(to, "{text}").map_err(WriteError::from))
}

fn told(written: Result<(), WriteError>) -> Result<(), CommandError> {
    match written {
        Ok(()) | Err(WriteError::Closed) => Ok(()),
        Err(WriteError::Query(error)) => Err(error),
        Err(WriteError::Failed(why)) => Err(CommandError::Query(format!("cannot write the rows: {why}"))),
    }
}

async fn table(rows: &mut Rows, to: &mut (dyn Write + Send)) -> Result<(), WriteError> {
    let mut batches = rows.rest().await?;
    if batches.is_empty() {
        batches.push(RecordBatch::new_empty(Arc::clone(&rows.schema)));
    }
    writeln!(to, "{}", pretty_format_batches(&batches)?)?;
    Ok(to.flush()?)
}

async fn json(rows: &mut Rows, to: &mut (dyn Write + Send)) -> Result<(), WriteError> {
    let mut to = BufWriter::new(to);
    let builder = JsonBuilder::new().with_explicit_nulls(true).with_encoder_factory(Arc::new(Numbers));
    let mut writer = builder.build::<_, JsonArray>(&mut to);
    let mut any = false;
    while let Some(batch) = rows.next().await? {
        writer.write(&batch)?;
        any = true;
    }
    if any {
        writer.finish()?;
    }
    drop(writer);
    to.write_all(if any { b"\n" } else { b"[]\n" })?;
    Ok(to.flush()?)
}

async fn csv(rows: &mut Rows, to: &mut (dyn Write + Send)) -> Result<(), WriteError> {
    for field in rows.schema.fields() {
        if field.data_type().is_nested() {
            let what = format!("column `{}` holds lists or structs, and CSV has none", field.name());
            return Err(WriteError::Failed(format!("{what}: choose other columns, or another format")));
        }
    }
    let mut to = BufWriter::new(to);
    let mut writer = arrow::csv::WriterBuilder::new().with_header(true).build(&mut to);
    writer.write(&RecordBatch::new_empty(Arc::clone(&rows.schema)))?;
    while let Some(batch) = rows.next().await? {
        writer.write(&batch)?;
    }
    drop(writer);
    Ok(to.flush()?)
}

async fn parquet(rows: &mut Rows, to: impl Write + Send) -> Result<(), WriteError> {
    let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default())).build();
    // Other readers need not know how this engine held the values in memory.
    let options = ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true);
    let mut writer = ArrowWriter::try_new_with_options(to, Arc::clone(&rows.schema), options)?;
    while let Some(batch) = rows.next().await? {
        writer.write(&batch)?;
    }
    writer.close()?;
    Ok(())
}

/// A file to write rows into; it must not exist yet.
#[derive(Clone, Debug)]
pub struct OutputFile {
    path: PathBuf,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Parquet,
    Csv,
    Json,
}

impl OutputFile {
    /// Understands a path by its extension.
    pub fn new(path: PathBuf) -> Result<Self, CommandError> {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default().to_lowercase();
        let kind = match extension.as_str() {
            "parquet" => Kind::Parquet,
            "csv" => Kind::Csv,
            "json" => Kind::Json,
            _ => {
                let message = format!("`{}` does not say what to write", path.display());
                let hint = "give the file a name that ends in .parquet, .csv or .json".to_owned();
                return Err(CommandError::Usage { message, hint: Some(hint) });
            }
        };
        let file = Self { path, kind };
        if file.path.symlink_metadata().is_ok() { Err(file.exists()) } else { Ok(file) }
    }

    fn exists(&self) -> CommandError {
        let message = format!("`{}` exists, and files are not overwritten", self.path.display());
        CommandError::Usage { message, hint: Some("delete it first, or name another".to_owned()) }
    }

    /// Writes all rows: the file appears when they are complete, or not at all.
    pub(super) async fn write(&self, rows: &mut Rows) -> Result<(), CommandError> {
        let io = |source| CommandError::Io { what: format!("cannot write `{}`", self.path.display()), source };
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = new_file(folder).map_err(io)?;
        let written = match self.kind {
            Kind::Parquet => parquet(rows, file.as_file_mut()).await,
            Kind::Csv => csv(rows, file.as_file_mut()).await,
            Kind::Json => json(rows, file.as_file_mut()).await,
        };
        match written {
            Ok(()) => {}
            Err(WriteError::Query(error)) => return Err(error),
            Err(WriteError::Closed) => return Err(io(std::io::ErrorKind::BrokenPipe.into())),
            Err(WriteError::Failed(why)) => {
                return Err(CommandError::Query(format!("cannot write `{}`: {why}", self.path.display())));
            }
        }
        file.as_file().sync_all().map_err(io)?;
        file.persist_noclobber(&self.path).map_err(|error| match error.error.kind() {
            std::io::ErrorKind::AlreadyExists => self.exists(),
            _ => io(error.error),
        })?;
        Ok(())
    }
}

/// A file beside the one to be, with the rights that a new file has.
fn new_file(folder: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    use std::os::unix::fs::PermissionsExt;
    let rights = std::fs::Permissions::from_mode(0o666);
    tempfile::Builder::new().prefix(".coa-sql-").permissions(rights).tempfile_in(folder)
}

/// Writes what is no number in JSON as text.
#[derive(Debug)]
struct Numbers;

impl EncoderFactory for Numbers {
    fn make_default_encoder<'a>(
        &self,
        _field: &'a FieldRef,
        array: &'a dyn Array,
        _options: &'a EncoderOptions,
    ) -> Result<Option<NullableEncoder<'a>>, ArrowError> {
        let encoder: Box<dyn Encoder + 'a> = match array.data_type() {
            DataType::Float16 => Box::new(Floats(array.as_primitive::<Float16Type>())),
            DataType::Float32 => Box::new(Floats(array.as_primitive::<Float32Type>())),
            DataType::Float64 => Box::new(Floats(array.as_primitive::<Float64Type>())),
            _ => return Ok(None),
        };
        Ok(Some(NullableEncoder::new(encoder, array.nulls().cloned())))
    }
}

struct Floats<'a, T: ArrowPrimitiveType>(&'a PrimitiveArray<T>);

impl<T: ArrowPrimitiveType> Encoder for Floats<'_, T>
where
    T::Native: std::fmt::Debug + Into<f64>,
{
    fn encode(&mut self, at: usize, out: &mut Vec<u8>) {
        let value = self.0.value(at);
        let wide: f64 = value.into();
        let text = match wide {
            _ if wide.is_nan() => "\"NaN\"".to_owned(),
            f64::INFINITY => "\"Infinity\"".to_owned(),
            f64::NEG_INFINITY => "\"-Infinity\"".to_owned(),
            // The shortest number that reads back as this one.
            _ => format!("{value:?}"),
        };
        out.extend_from_slice(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_says_what_is_written() {
        let kind = |name: &str| OutputFile::new(PathBuf::from(name)).map(|file| file.kind);
        assert_eq!(kind("/nowhere/a.parquet").unwrap(), Kind::Parquet);
        assert_eq!(kind("/nowhere/a.b.CSV").unwrap(), Kind::Csv);
        assert_eq!(kind("a.json").unwrap(), Kind::Json);
        for name in ["a", "a.txt", "a.parquet.gz", "parquet"] {
            assert_eq!(kind(name).unwrap_err().exit_code(), 2, "{name}");
        }
    }
}
