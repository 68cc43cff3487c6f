//! The system table `ports`: how many rows each finished unit read from and wrote to each of its ports.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray};
use operators::Payload;
use store::{Store, StoreError, UnitRecord};

use super::system::shown;
use crate::registry::registry;

/// Its name.
pub(super) const PORTS: &str = "ports";

/// What holds records that were read from a source, where an operator counts them.
const RECORDS: &str = "records";

struct Row<'a> {
    unit: &'a UnitRecord,
    direction: &'static str,
    port: Option<&'a str>,
    holds: Option<String>,
    rows: u64,
}

pub(super) async fn ports(store: &Store) -> Result<RecordBatch, StoreError> {
    let units = store.all_units().await?;
    let shown = shown(store).await?;
    let operators = registry();
    let mut rows: Vec<Row<'_>> = Vec::new();
    for unit in &units {
        let inputs =
            operators.iter().find(|operator| operator.name() == unit.operator).map(|operator| operator.inputs());
        if let Some(read) = unit.counts.get(RECORDS) {
            rows.push(Row { unit, direction: "in", port: None, holds: Some(RECORDS.to_owned()), rows: *read });
        }
        for (port, read) in &unit.rows_in {
            let known = inputs.and_then(|inputs| inputs.iter().find(|input| input.name == *port));
            let holds = known.and_then(|input| match input.payload {
                Payload::Table(table) => Some(table.name.to_owned()),
                Payload::AnyTable | Payload::Files(_) => None,
            });
            rows.push(Row { unit, direction: "in", port: Some(port), holds, rows: *read });
        }
        for table in &unit.tables {
            let holds = Some(table.table.clone());
            rows.push(Row { unit, direction: "out", port: Some(&table.port), holds, rows: table.rows });
        }
    }
    let text =
        |of: fn(&Row<'_>) -> Option<String>| -> ArrayRef { Arc::new(rows.iter().map(of).collect::<StringArray>()) };
    let current: BooleanArray = rows.iter().map(|row| Some(shown.contains(&row.unit.attempt))).collect();
    let counts: Int64Array = rows.iter().map(|row| Some(row.rows as i64)).collect();
    let columns: [(&str, ArrayRef); 9] = [
        ("stage", text(|row| Some(row.unit.stage.clone()))),
        ("partition", text(|row| Some(row.unit.partition.clone()))),
        ("unit", text(|row| Some(row.unit.unit.clone()))),
        ("current", Arc::new(current)),
        ("direction", text(|row| Some(row.direction.to_owned()))),
        ("port", text(|row| row.port.map(str::to_owned))),
        ("holds", text(|row| row.holds.clone())),
        ("rows", Arc::new(counts)),
        ("finished", text(|row| Some(row.unit.finished.clone()))),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true)));
    Ok(batch.expect("the columns have one length"))
}
