//! The table trait, its erased twin, and the way between rows and record batches.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{RecordBatch, new_null_array};
use arrow::datatypes::{Field, FieldRef, Schema, SchemaRef};
use serde::Serialize;
use serde::de::DeserializeOwned;
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

/// Rows to a record batch with exactly the table's schema.
pub fn encode<T: Table>(rows: &[T]) -> Result<RecordBatch, RowError> {
    let schema = trace::<T>();
    let batch = serde_arrow::to_record_batch(schema.fields(), &rows)
        .map_err(|source| RowError { table: T::NAME, source })?;
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
