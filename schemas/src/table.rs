//! The table trait, its erased twin, and the way between rows and record batches.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;

use arrow::array::{RecordBatch, new_null_array};
use arrow::datatypes::{Field, FieldRef, Schema, SchemaRef};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_arrow::ArrayBuilder;
use serde_arrow::schema::{SchemaLike, TracingOptions};

use crate::Column;

/// A named, versioned table. The row struct is the schema.
pub trait Table: Serialize + DeserializeOwned + schemars::JsonSchema + Send + Sync + 'static {
    /// The name of the table in messages and docs, in the plural.
    const NAME: &'static str;
    /// Goes up when a column is renamed, removed or changes its type; not for a nullable column added at the end.
    const VERSION: u32;
    /// Columns whose Arrow type is not the one traced from the Rust type, by dotted path.
    const OVERRIDES: &'static [(&'static str, Column)] = &[];
    /// The column that identifies a row within the table, if one does.
    const KEY: Option<&'static str> = None;
}

/// What can be said of a table without its row type: the erased twin of [`Table`].
#[derive(Clone, Copy)]
pub struct TableDef {
    /// [`Table::NAME`].
    pub name: &'static str,
    /// [`Table::VERSION`].
    pub version: u32,
    /// [`Table::KEY`].
    pub key: Option<&'static str>,
    schema: fn() -> SchemaRef,
}

impl TableDef {
    /// The erased twin of `T`.
    pub const fn of<T: Table>() -> Self {
        Self { name: T::NAME, version: T::VERSION, key: T::KEY, schema: trace::<T> }
    }

    /// The Arrow schema: columns with their docs, and the table's name and version as metadata.
    pub fn schema(&self) -> SchemaRef {
        (self.schema)()
    }
}

impl PartialEq for TableDef {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.version == other.version
    }
}

impl std::fmt::Debug for TableDef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} v{}", self.name, self.version)
    }
}

/// A batch that does not hold rows of the table it is read as, or rows that do not fit its schema.
#[derive(Debug, thiserror::Error)]
#[error("rows of `{table}` do not fit their schema")]
pub struct RowError {
    /// The table's name.
    pub table: &'static str,
    /// What does not fit.
    #[source]
    pub source: serde_arrow::Error,
}

/// Rows on their way into a record batch: each is copied into its columns as it comes, and need not be kept.
pub struct Columns<T> {
    builder: ArrayBuilder,
    schema: SchemaRef,
    rows: usize,
    row: PhantomData<fn(T)>,
}

impl<T: Table> Columns<T> {
    /// No rows.
    pub fn new() -> Result<Self, RowError> {
        let schema = trace::<T>();
        let builder =
            ArrayBuilder::from_arrow(schema.fields()).map_err(|source| RowError { table: T::NAME, source })?;
        Ok(Self { builder, schema, rows: 0, row: PhantomData })
    }

    /// Adds a row.
    pub fn push(&mut self, row: &T) -> Result<(), RowError> {
        self.rows += 1;
        self.builder.push(row).map_err(|source| RowError { table: T::NAME, source })
    }

    /// The rows since the last call, with exactly the table's schema; nothing if there are none.
    pub fn take(&mut self) -> Result<Option<RecordBatch>, RowError> {
        if std::mem::take(&mut self.rows) == 0 {
            return Ok(None);
        }
        let batch = self.builder.to_record_batch().map_err(|source| RowError { table: T::NAME, source })?;
        Ok(Some(batch.with_schema(Arc::clone(&self.schema)).expect("the batch was built from this schema's fields")))
    }
}

/// Rows to a record batch with exactly the table's schema.
pub fn encode<T: Table>(rows: &[T]) -> Result<RecordBatch, RowError> {
    let schema = trace::<T>();
    let batch =
        serde_arrow::to_record_batch(schema.fields(), &rows).map_err(|source| RowError { table: T::NAME, source })?;
    Ok(batch.with_schema(schema).expect("the batch was built from this schema's fields"))
}

/// A record batch to rows. Columns added after the batch was written read as null.
pub fn decode<T: Table>(batch: &RecordBatch) -> Result<Vec<T>, RowError> {
    let batch = complete(batch, &trace::<T>());
    serde_arrow::from_record_batch(&batch).map_err(|source| RowError { table: T::NAME, source })
}

/// The batch with exactly the columns of `schema`: those it lacks are null, those unknown to it are left out.
///
/// A column that is present keeps its own type; one of another type is noticed when the rows are decoded.
pub fn complete(batch: &RecordBatch, schema: &SchemaRef) -> RecordBatch {
    if batch.schema_ref().fields() == schema.fields() {
        return batch.clone();
    }
    let mut fields: Vec<FieldRef> = Vec::new();
    let mut columns = Vec::new();
    for field in schema.fields() {
        match batch.schema_ref().index_of(field.name()) {
            Ok(index) => {
                fields.push(Arc::clone(&batch.schema_ref().fields()[index]));
                columns.push(Arc::clone(batch.column(index)));
            }
            Err(_) => {
                fields.push(Arc::new(field.as_ref().clone().with_nullable(true)));
                columns.push(new_null_array(field.data_type(), batch.num_rows()));
            }
        }
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).expect("columns of one batch have one length")
}

fn trace<T: Table>() -> SchemaRef {
    let mut options = TracingOptions::default()
        .strings_as_large_utf8(false)
        .sequence_as_large_list(false)
        .bytes_as_large_binary(false)
        .enums_without_data_as_strings(true)
        .from_type_budget(1000);
    for (path, column) in T::OVERRIDES {
        options = options.overwrite(*path, column.definition(path)).expect("a definition is JSON");
    }
    let fields = Vec::<FieldRef>::from_type::<T>(options)
        .unwrap_or_else(|error| panic!("the row struct of `{}` has no Arrow schema: {error}", T::NAME));
    let docs = column_docs::<T>();
    let fields: Vec<Field> = fields
        .iter()
        .map(|field| {
            let mut metadata = field.metadata().clone();
            if let Some(doc) = docs.get(field.name()) {
                metadata.insert("doc".to_owned(), doc.clone());
            }
            field.as_ref().clone().with_metadata(metadata)
        })
        .collect();
    let metadata = HashMap::from([
        ("coa.table".to_owned(), T::NAME.to_owned()),
        ("coa.table_version".to_owned(), T::VERSION.to_string()),
    ]);
    Arc::new(Schema::new_with_metadata(fields, metadata))
}

/// The doc comments of the row struct's fields.
fn column_docs<T: Table>() -> HashMap<String, String> {
    let schema = schemars::schema_for!(T);
    let Some(properties) = schema.get("properties").and_then(|value| value.as_object()) else {
        return HashMap::new();
    };
    properties
        .iter()
        .filter_map(|(name, property)| {
            let doc = property.get("description")?.as_str()?;
            Some((name.clone(), doc.replace('\n', " ")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::Path;

    use arrow::datatypes::{DataType, TimeUnit};

    use super::*;
    use crate::*;

    /// The schema as text: what a reviewer sees in a diff.
    fn golden(table: &TableDef) -> String {
        let mut text = format!("{} v{}\n", table.name, table.version);
        for field in table.schema().fields() {
            let null = if field.is_nullable() { " null" } else { "" };
            let extension = field.extension_type_name().map(|name| format!(" {name}")).unwrap_or_default();
            let doc = field.metadata().get("doc").cloned().unwrap_or_default();
            let _ = writeln!(text, "{}: {}{null}{extension}\n    {doc}", field.name(), field.data_type());
        }
        text
    }

    /// `UPDATE_GOLDEN=1 cargo test -p schemas` rewrites the files; the diff says whether a new version is due.
    #[test]
    fn schemas_are_as_reviewed() {
        for table in TABLES {
            let name = format!("{}.v{}.txt", table.name, table.version);
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(&name);
            let found = golden(table);
            if std::env::var_os("UPDATE_GOLDEN").is_some() {
                std::fs::write(&path, &found).unwrap();
            }
            let expected = std::fs::read_to_string(&path).unwrap_or_default();
            assert_eq!(found, expected, "{name}: a nullable column at the end, or a new version");
        }
    }

    #[test]
    fn every_column_fits_a_delta_table_and_is_documented() {
        fn fits(data_type: &DataType) -> bool {
            match data_type {
                DataType::Boolean | DataType::Int8 | DataType::Int32 | DataType::Int64 => true,
                DataType::Float32 | DataType::Float64 | DataType::Utf8 | DataType::Binary => true,
                DataType::Timestamp(TimeUnit::Microsecond, Some(zone)) => zone.as_ref() == "UTC",
                DataType::List(field) => fits(field.data_type()),
                DataType::Struct(fields) => fields.iter().all(|field| fits(field.data_type())),
                _ => false,
            }
        }
        for table in TABLES {
            for field in table.schema().fields() {
                assert!(fits(field.data_type()), "{} {}: {}", table.name, field.name(), field.data_type());
                assert!(field.metadata().contains_key("doc"), "{} {} has no documentation", table.name, field.name());
            }
        }
    }

    fn back<T: Table + Clone + PartialEq + std::fmt::Debug>(rows: &[T]) {
        let batch = encode(rows).unwrap();
        assert_eq!(batch.schema(), TableDef::of::<T>().schema());
        assert_eq!(decode::<T>(&batch).unwrap(), rows);
        assert_eq!(encode::<T>(&[]).unwrap().num_rows(), 0);
        let mut columns = Columns::<T>::new().unwrap();
        for _ in 0..2 {
            rows.iter().for_each(|row| columns.push(row).unwrap());
            assert_eq!(columns.take().unwrap().unwrap(), batch);
            assert!(columns.take().unwrap().is_none());
        }
    }

    #[test]
    fn rows_are_read_back() {
        let mut step = Step::new("t", "1", 0, StepKind::Call);
        let bare = step.clone();
        step.parent_step_id = Some("0".into());
        step.arguments = Some(r#"{"query": "你好"}"#.into());
        step.observation = Some(String::new());
        step.started_at = Some(Micros(-1));
        step.score = Some(f64::MAX);
        step.input_tokens = Some(i64::MAX);
        back(&[step, bare]);
        let mut segment = Segment::new(Role::Tool, "Laos");
        segment.tool = Some("web_search".into());
        segment.arguments = Some("{}".into());
        let trajectory = Trajectory {
            trajectory_id: "t".into(),
            task_id: None,
            question: "q".into(),
            golden_answers: vec![],
            answer: Some("a\0b".into()),
            source_verdict: Some(false),
            domain: Domain::Math,
            segments: vec![segment, Segment::new(Role::Answer, "")],
            interactions: 1,
            tool_calls: 2,
            notes: vec!["x".into(), "y".into()],
            weight: 0.5,
        };
        let empty = Trajectory { segments: vec![], golden_answers: vec!["g".into()], ..trajectory.clone() };
        back(&[trajectory, empty]);
        back(&[Quarantined {
            source: "s".into(),
            line: 1,
            byte_offset: 0,
            byte_length: 3,
            code: "invalid_utf8".into(),
            reason: "r".into(),
            raw: vec![0xff, 0, b'"'],
        }]);
        back(&[TokenizedSample {
            sample_id: "s".into(),
            input_ids: vec![1, 151_936],
            loss_mask: vec![false, true],
            token_roles: vec![0, 8],
            weight: 1.0,
            trained_tokens: 1,
            observation_tokens: 0,
            truncated: false,
            tokenizer: "d".into(),
            task_id: Some("k".into()),
        }]);
    }

    #[test]
    fn a_column_that_was_added_later_reads_as_null() {
        let rows = [Rejected::new("r", Some("t".into()), "x", "y")];
        let batch = encode(&rows).unwrap();
        let old = batch.project(&[0, 2, 3, 4, 5, 6]).unwrap();
        let read: Vec<Rejected> = decode(&old).unwrap();
        assert_eq!(read, [Rejected { task_id: None, ..rows[0].clone() }]);
    }
}
