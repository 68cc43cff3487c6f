//! What is asked for: names of outputs first, then rows, then places in sources.

use operators::params::closest;
use schemas::{Quarantined, Question, Rejected, Rollout, Table, TokenizedSample, Trace, Trajectory};
use serde_json::{Map, Value};
use store::StoredTable;

use super::past::{Past, literal, place};
use crate::error::CommandError;

/// What is asked for.
pub(super) enum What {
    /// A table or files of a stage, or all its outputs.
    Output { stage: String, port: Option<String>, version: Option<u64> },
    /// A training at a step.
    Step { stage: String, step: u64 },
    /// A row, by its full id.
    Row { id: String },
    /// A record that was quarantined.
    Quarantined { place: Quarantine },
}

/// Where a quarantined record stands.
pub(super) struct Quarantine {
    pub(super) table: StoredTable,
    pub(super) row: Map<String, Value>,
}

/// Columns that identify rows: a question's id stands in rollouts too.
pub(super) fn id_columns(table: &str) -> &'static [&'static str] {
    let known: [(&str, &[&str]); 6] = [
        (Trace::NAME, &["trace_id"]),
        (Trajectory::NAME, &["trajectory_id"]),
        (TokenizedSample::NAME, &["sample_id"]),
        (Rollout::NAME, &["rollout_id", "question_id"]),
        (Question::NAME, &["question_id"]),
        (Rejected::NAME, &["row_id"]),
    ];
    known.iter().find(|(name, _)| *name == table).map_or(&[], |(_, columns)| columns)
}

/// Ids that an error names.
const NAMED: usize = 5;

/// Finds what is meant.
pub(super) async fn find(past: &mut Past<'_>, asked: &str) -> Result<What, CommandError> {
    if let Some(output) = output(past, asked).await? {
        return Ok(output);
    }
    let mut ids = ids(past, asked).await?;
    if ids.iter().any(|id| id == asked) {
        ids = vec![asked.to_owned()];
    }
    match &ids[..] {
        [] => {}
        [id] => return Ok(What::Row { id: id.clone() }),
        several => {
            let named: Vec<&str> = several.iter().take(NAMED).map(String::as_str).collect();
            let more = if several.len() > NAMED { " …" } else { "" };
            let message = format!("{} ids begin with `{asked}`: {}{more}", several.len(), named.join(", "));
            return Err(CommandError::Usage { message, hint: Some("write more of the id".to_owned()) });
        }
    }
    if let Some(found) = place_in_source(past, asked).await? {
        return Ok(found);
    }
    Err(unknown(past, asked).await)
}

/// `stage.port`, `stage.port@v3`, `stage/port`, `stage`, `stage@STEP`.
async fn output(past: &mut Past<'_>, asked: &str) -> Result<Option<What>, CommandError> {
    let (name, at) = asked.rsplit_once('@').map_or((asked, None), |(name, at)| (name, Some(at)));
    let (stage, port) = name.split_once(['.', '/']).map_or((name, None), |(stage, port)| (stage, Some(port)));
    if past.order.iter().any(|known| known == stage) {
        let stage = stage.to_owned();
        let version = at.and_then(|at| at.strip_prefix('v')).and_then(|version| version.parse::<u64>().ok());
        match (port, at) {
            (None, None) => return Ok(Some(What::Output { stage, port: None, version: None })),
            (Some(port), _) if past.table(&stage, port).is_some() => {
                if at.is_some() && version.is_none() {
                    return Err(CommandError::usage(format!("`{asked}` names no version: write it as `{name}@v3`")));
                }
                if let (Some(version), Some(table)) = (version, past.table(&stage, port).cloned()) {
                    has_version(past, &table, version).await?;
                }
                return Ok(Some(What::Output { stage, port: Some(port.to_owned()), version }));
            }
            (Some(port), None) if past.file_ports(&stage).await?.iter().any(|known| known == port) => {
                return Ok(Some(What::Output { stage, port: Some(port.to_owned()), version: None }));
            }
            (None, Some(at)) => {
                if let Ok(step) = at.parse() {
                    return Ok(Some(What::Step { stage, step }));
                }
            }
            _ => {}
        }
    } else if let (None, Some(step)) = (port, at.and_then(|at| at.parse().ok())) {
        // A stage whose first unit is not done yet has no records, and may have checkpoints.
        return Ok(Some(What::Step { stage: stage.to_owned(), step }));
    }
    Ok(None)
}

async fn has_version(past: &mut Past<'_>, table: &StoredTable, version: u64) -> Result<(), CommandError> {
    let known = store::versions(past.store, table).await?;
    if known.contains(&version) {
        return Ok(());
    }
    let range = match &known[..] {
        [] => "none".to_owned(),
        [only] => format!("@v{only} only"),
        [first, .., last] => format!("@v{first} to @v{last}"),
    };
    let StoredTable { stage, port, .. } = table;
    Err(CommandError::usage(format!("`{stage}.{port}` has no version {version}; it has {range}")))
}

/// The ids that begin with a text.
async fn ids(past: &Past<'_>, beginning: &str) -> Result<Vec<String>, CommandError> {
    let mut ids = Vec::new();
    let beginning = literal(beginning);
    for table in &past.tables {
        for column in id_columns(&table.table) {
            let sql = format!(
                "select distinct {column} as id from {} where starts_with({column}, {beginning}) order by id limit 100",
                place(table)
            );
            let rows = past.rows(&sql).await?;
            ids.extend(rows.iter().filter_map(|row| row["id"].as_str().map(str::to_owned)));
        }
    }
    ids.sort();
    ids.dedup();
    Ok(ids)
}

/// `SOURCE:LINE`, where the source's address ends like this.
async fn place_in_source(past: &Past<'_>, asked: &str) -> Result<Option<What>, CommandError> {
    let Some((source, line)) = asked.rsplit_once(':') else { return Ok(None) };
    let (Ok(line), false) = (line.parse::<u64>(), source.is_empty()) else { return Ok(None) };
    let at = format!(
        "line = {line} and (source = {0} or ends_with(source, {1}))",
        literal(source),
        literal(&format!("/{source}"))
    );
    let mut found: Vec<(String, What)> = Vec::new();
    for table in &past.tables {
        let column = match table.table.as_str() {
            Trace::NAME => "trace_id",
            Rejected::NAME if has_places(past, table).await? => "row_id",
            Quarantined::NAME => "null",
            _ => continue,
        };
        let more = if column == "null" { ", partition, line, byte_offset, byte_length, code, reason" } else { "" };
        let sql = format!("select {column} as id, source{more} from {} where {at} limit 20", place(table));
        for row in past.rows(&sql).await? {
            let source = row["source"].as_str().unwrap_or_default().to_owned();
            let what = match row.get("id").and_then(Value::as_str) {
                Some(id) => What::Row { id: id.to_owned() },
                None => What::Quarantined { place: Quarantine { table: table.clone(), row } },
            };
            found.push((source, what));
        }
    }
    let mut sources: Vec<&str> = found.iter().map(|(source, _)| source.as_str()).collect();
    sources.dedup();
    if found.len() > 1 {
        let message = format!("{} records were read at `{asked}`: of {}", found.len(), sources.join(", "));
        return Err(CommandError::Usage {
            message,
            hint: Some("write more of the address, or the row's id".to_owned()),
        });
    }
    Ok(found.pop().map(|(_, what)| what))
}

/// Whether a table of rejected rows has the columns that tell places: older ones have not.
pub(super) async fn has_places(past: &Past<'_>, table: &StoredTable) -> Result<bool, CommandError> {
    let answer = crate::sql::query(past.store, &format!("select * from {} limit 0", place(table))).await?;
    Ok(answer.schema.index_of("byte_offset").is_ok())
}

async fn unknown(past: &mut Past<'_>, asked: &str) -> CommandError {
    let mut names: Vec<String> = past.order.clone();
    names.extend(past.tables.iter().map(|table| format!("{}.{}", table.stage, table.port)));
    for stage in past.order.clone() {
        let ports = past.file_ports(&stage).await.unwrap_or_default();
        names.extend(ports.into_iter().map(|port| format!("{stage}.{port}")));
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let name = asked.rsplit_once('@').map_or(asked, |(name, _)| name);
    let hint = match closest(name, &names) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!(
            "the outputs are {}",
            names.iter().filter(|n| n.contains('.')).copied().collect::<Vec<_>>().join(", ")
        ),
    };
    let message = format!("`{asked}` is no stage, no table or files of a stage, and no id of a row begins with it");
    CommandError::Usage { message, hint: Some(hint) }
}
