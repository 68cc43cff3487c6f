//! The columns of a published table: the table's own, with JSON as plain text.
//!
//! Within a store a column of JSON is marked with the extension `arrow.json`. Readers differ in what they make of the
//! mark: some parse the text, some keep it, some versions refuse the column. Without the mark it is text to all of them.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit};
use schemas::TableDef;
use serde::Serialize;
use serde_json::{Value, json};

use super::shards::failed;
use crate::error::OperatorError;

/// What the mark of a column of JSON begins with.
const MARK: &str = "ARROW:extension:";

/// A published column, for people.
#[derive(Serialize)]
pub(super) struct ColumnDoc {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) data_type: String,
    pub(super) nullable: bool,
    pub(super) doc: String,
}

/// A table as it is published.
pub(super) struct Published {
    schema: SchemaRef,
}

impl Published {
    pub(super) fn of(table: &TableDef) -> Self {
        let schema = table.schema();
        let fields: Vec<FieldRef> = schema.fields().iter().map(unmarked).collect();
        Self { schema: Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone())) }
    }

    pub(super) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// Rows of the table with exactly the published columns.
    pub(super) fn convert(&self, batch: &RecordBatch) -> Result<RecordBatch, OperatorError> {
        let columns = batch.columns().iter().zip(self.schema.fields());
        let columns: Result<Vec<_>, _> = columns.map(|(column, field)| cast(column, field.data_type())).collect();
        RecordBatch::try_new(self.schema(), columns.map_err(failed)?).map_err(failed)
    }

    /// The columns as the card's header lists them: `features` of `dataset_info`.
    pub(super) fn features(&self) -> Value {
        self.schema.fields().iter().map(feature).collect()
    }

    /// The columns with their documentation.
    pub(super) fn docs(&self) -> Vec<ColumnDoc> {
        let doc = |field: &FieldRef| ColumnDoc {
            name: field.name().clone(),
            data_type: plain(field.data_type()),
            nullable: field.is_nullable(),
            doc: field.metadata().get("doc").cloned().unwrap_or_default(),
        };
        self.schema.fields().iter().map(doc).collect()
    }
}

/// The field without marks, inside as well.
fn unmarked(field: &FieldRef) -> FieldRef {
    let data_type = match field.data_type() {
        DataType::List(item) => DataType::List(unmarked(item)),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(unmarked).collect()),
        other => other.clone(),
    };
    let mut metadata = field.metadata().clone();
    metadata.retain(|key, _| !key.starts_with(MARK));
    Arc::new(Field::clone(field).with_data_type(data_type).with_metadata(metadata))
}

/// A type as the card's header spells it.
fn plain(data_type: &DataType) -> String {
    match data_type {
        DataType::Utf8 => "string".to_owned(),
        DataType::Boolean => "bool".to_owned(),
        DataType::Timestamp(TimeUnit::Microsecond, Some(zone)) => format!("timestamp[us, tz={zone}]"),
        DataType::List(item) => format!("list of {}", plain(item.data_type())),
        DataType::Struct(fields) => {
            let fields = fields.iter().map(|field| format!("{}: {}", field.name(), plain(field.data_type())));
            format!("({})", fields.collect::<Vec<_>>().join(", "))
        }
        // Numbers and `binary` are spelt alike.
        other => other.to_string().to_lowercase(),
    }
}

fn feature(field: &FieldRef) -> Value {
    let mut feature = json!({"name": field.name()});
    let (key, value) = kind(field.data_type());
    feature[key] = value;
    feature
}

/// What a column holds: the key that says so, and its value.
fn kind(data_type: &DataType) -> (&'static str, Value) {
    match data_type {
        DataType::List(item) => match kind(item.data_type()) {
            ("dtype" | "struct", inner) => ("list", inner),
            (key, inner) => ("list", json!({key: inner})),
        },
        DataType::Struct(fields) => ("struct", fields.iter().map(feature).collect()),
        simple => ("dtype", plain(simple).into()),
    }
}
