//! `\d`: which tables there are, with their rows as their logs tell them; `\d TABLE`: its columns and their docs.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::DataType;
use datafusion::catalog::TableProvider;
use datafusion::common::TableReference;
use schemas::TABLES;
use store::{StoredTable, versions};

use super::catalog::{Entry, Key, MAIN, Meaning, SHORT, key_of};
use super::engine::Engine;
use super::ports::PORTS;
use super::system::SYSTEM_TABLES;
use super::views::VIEWS;
use crate::error::CommandError;

/// Rows that tell of tables, and a text for a person below them.
pub(super) struct Description {
    pub(super) rows: RecordBatch,
    pub(super) below: String,
}

/// All tables.
pub(super) async fn tables(engine: &Engine) -> Result<Description, CommandError> {
    let (mut names, mut rows, mut versions, mut about) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (number, attached) in engine.catalog.stores.iter().enumerate() {
        let prefix = attached.name.as_ref().map(|name| format!("{name}.")).unwrap_or_default();
        for table in &engine.catalog.stored[number] {
            let (StoredTable { stage, port, table: holds, version }, look) = (table, engine.look(number, table).await);
            let (opened, says) = match look {
                Ok(Some(opened)) => (Some(opened), format!("{holds} v{version}")),
                Ok(None) => continue,
                Err(error) => (None, error.to_string()),
            };
            names.push(format!("{prefix}{stage}.{port}"));
            rows.push(opened.as_ref().and_then(|opened| opened.rows).map(|rows| rows as i64));
            versions.push(opened.map(|opened| opened.version as i64));
            about.push(says);
        }
        let system = SYSTEM_TABLES.iter().chain([&PORTS]).map(|name| (*name, "system table".to_owned()));
        let catalog = attached.name.as_deref().unwrap_or(MAIN);
        let views = VIEWS.iter().filter(|view| {
            let key = (catalog.to_owned(), SHORT.to_owned(), view.name.to_owned());
            engine.defined(&key, view).is_some()
        });
        for (name, says) in system.chain(views.map(|view| (view.name, format!("view: {}", view.about)))) {
            names.push(format!("{prefix}{name}"));
            rows.push(None);
            versions.push(None);
            about.push(says);
        }
    }
    let columns: [(&str, ArrayRef); 4] = [
        ("table", Arc::new(StringArray::from(names))),
        ("rows", Arc::new(Int64Array::from(rows))),
        ("version", Arc::new(Int64Array::from(versions))),
        ("holds", Arc::new(StringArray::from(about))),
    ];
    let below = "\\d TABLE shows its columns; TABLE@v0 is the table as it stood at version 0".to_owned();
    Ok(Description { rows: batch(columns), below })
}

/// The columns of one table.
pub(super) async fn columns(engine: &Engine, name: &str) -> Result<Description, CommandError> {
    let reference = TableReference::parse_str(name);
    let (key, version) = key_of(&reference);
    let provider = engine.open(&key, version.as_deref()).await?;
    let entry = engine.catalog.get(&key);
    let docs = entry.map(docs).unwrap_or_default();
    let schema = provider.schema();
    let fields = || schema.fields().iter();
    let doc = |name: &String| match name.as_str() {
        "partition" => Some("The part of the source that the row is from.".to_owned()),
        name => docs.get(name).cloned(),
    };
    let columns: [(&str, ArrayRef); 4] = [
        ("column", Arc::new(fields().map(|field| Some(field.name())).collect::<StringArray>())),
        ("type", Arc::new(fields().map(|field| Some(type_name(field.data_type()))).collect::<StringArray>())),
        ("nullable", Arc::new(fields().map(|field| Some(field.is_nullable())).collect::<BooleanArray>())),
        ("about", Arc::new(fields().map(|field| doc(field.name())).collect::<StringArray>())),
    ];
    let below = match entry {
        Some(entry) => below(engine, &key, entry, &provider).await?,
        None => String::new(),
    };
    Ok(Description { rows: batch(columns), below })
}

fn batch(columns: [(&str, ArrayRef); 4]) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true)))
        .expect("the columns have one length")
}

/// What is known of a table's columns, by name.
fn docs(entry: &Entry) -> HashMap<String, String> {
    match &entry.meaning {
        Meaning::Stored(stored) => {
            let known = TABLES.iter().find(|table| table.name == stored.table && table.version == stored.version);
            let schema = known.map(|table| table.schema());
            let fields = schema.iter().flat_map(|schema| schema.fields());
            fields.filter_map(|field| Some((field.name().clone(), field.metadata().get("doc")?.clone()))).collect()
        }
        Meaning::View(view) => {
            view.columns.iter().map(|(name, about)| ((*name).to_owned(), (*about).to_owned())).collect()
        }
        Meaning::System(_) | Meaning::Several(_) => HashMap::new(),
    }
}

async fn below(
    engine: &Engine,
    key: &Key,
    entry: &Entry,
    provider: &Arc<dyn TableProvider>,
) -> Result<String, CommandError> {
    let written = engine.catalog.written(key);
    Ok(match &entry.meaning {
        Meaning::Stored(table) => {
            let StoredTable { stage, port, table: holds, version } = table;
            let known = versions(&engine.catalog.stores[entry.store].store, table).await?;
            let range = match known[..] {
                [] => String::new(),
                [only] => format!("; version @v{only}"),
                [first, .., last] => format!("; versions @v{first} to @v{last}"),
            };
            format!("{stage}.{port} holds {holds} v{version}{range}")
        }
        Meaning::System(_) => format!("{written} is a system table"),
        Meaning::View(view) => {
            let definition = provider.get_table_definition().unwrap_or_default();
            format!("{written} is a view: {}\n\n{definition}", view.about)
        }
        Meaning::Several(_) => String::new(),
    })
}

/// A type as SQL writes it, as far as SQL has it.
fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "text".to_owned(),
        DataType::Boolean => "boolean".to_owned(),
        DataType::Int8 => "tinyint".to_owned(),
        DataType::Int16 => "smallint".to_owned(),
        DataType::Int32 => "integer".to_owned(),
        DataType::Int64 => "bigint".to_owned(),
        DataType::Float32 => "real".to_owned(),
        DataType::Float64 => "double".to_owned(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "bytes".to_owned(),
        DataType::Timestamp(_, Some(zone)) => format!("timestamp in {zone}"),
        DataType::Timestamp(_, None) => "timestamp".to_owned(),
        DataType::Dictionary(_, values) => type_name(values),
        DataType::List(item) | DataType::LargeList(item) => format!("list of {}", type_name(item.data_type())),
        DataType::Struct(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|field| format!("{} {}", field.name(), type_name(field.data_type()))).collect();
            format!("struct({})", fields.join(", "))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{Field, TimeUnit};

    use super::*;

    #[test]
    fn types_are_written_as_in_sql() {
        let text = Field::new("tool", DataType::Utf8View, true);
        let list =
            DataType::new_list(DataType::Struct(vec![text, Field::new("n", DataType::Int64, false)].into()), false);
        assert_eq!(type_name(&list), "list of struct(tool text, n bigint)");
        assert_eq!(type_name(&DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))), "timestamp in UTC");
        assert_eq!(type_name(&DataType::Date32), "Date32");
    }
}
