//! Delta tables: what people and SQL read.
//!
//! A table is brought in line with unit records by [`bring_in_line`]: the difference between the files that the records name and
//! the files that are live in the table becomes one log entry. An entry that is lost to another committer, or that
//! lands without our knowing, changes nothing: the next look at the table shows what is still missing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use datafusion::catalog::TableProvider;
use deltalake_core::kernel::engine::arrow_conversion::TryIntoKernel;
use deltalake_core::kernel::transaction::{CommitBuilder, CommitProperties};
use deltalake_core::kernel::{Action, Add, DataType, PrimitiveType, StructField, StructType};
use deltalake_core::logstore::{LogStoreRef, StorageConfig, default_logstore};
use deltalake_core::operations::create::CreateBuilder;
use deltalake_core::protocol::{DeltaOperation, SaveMode};
use deltalake_core::{DeltaTable, DeltaTableError};
use object_store::ObjectStore;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use schemas::TableDef;
use serde_json::json;

use crate::error::{StoreError, StoreErrorKind};
use crate::paths::{self, PARTITION_COLUMN};
use crate::record::DataFile;
use crate::stage::{Share, StageFold};
use crate::store::Store;

/// A table of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTable {
    /// The stage that writes it.
    pub stage: String,
    /// The output port.
    pub port: String,
    /// The table's name.
    pub table: String,
    /// The table's version.
    pub version: u32,
}

/// Looks at a table before an error is reported: each finds less to do, so few are enough.
const TRIES: u32 = 8;

fn log_store(store: &Store, folder: &Path) -> LogStoreRef {
    let (root, prefix) = store.root();
    let path = prefix.parts().chain(folder.parts()).collect::<Path>();
    let inside: Arc<dyn ObjectStore> = Arc::new(PrefixStore::new(Arc::clone(root), path));
    let url = url::Url::parse(&format!("{}/", store.uri(folder))).expect("a store's address and a key make a URL");
    default_logstore(inside, Arc::clone(root), &url, &StorageConfig::default())
}

fn failed(store: &Store, folder: &Path, doing: &str, error: DeltaTableError) -> StoreError {
    let what = format!("{doing} the table");
    match error {
        DeltaTableError::ObjectStore { source } => StoreError::object(&what, &store.uri(folder), source),
        other => StoreError::new(StoreErrorKind::Unreachable, format!("cannot {what} `{}`", store.uri(folder)))
            .because(other),
    }
}

/// How a look at a table ended.
enum Look {
    /// It is in line, or has been brought in line.
    InLine,
    /// A newer run has said what it is about: what this one may change has to be worked out anew.
    Overtaken,
}

/// Brings a table in line with the units of a run, in at most one log entry. False where a newer run appeared meanwhile.
pub(crate) async fn bring_in_line(
    store: &Store,
    fold: &StageFold<'_>,
    port: &str,
    table: TableDef,
    share: &Share<'_>,
) -> Result<bool, StoreError> {
    let folder = paths::table(fold.stage, port, table);
    let log = log_store(store, &folder);
    let mut wanted: BTreeMap<String, (String, DataFile)> = BTreeMap::new();
    for record in &share.units {
        for output in record.tables.iter().filter(|output| output.port == port) {
            for file in &output.files {
                wanted.insert(file.path.clone(), (record.partition.clone(), file.clone()));
            }
        }
    }

    let mut tries = 0;
    loop {
        let error = match look(store, &log, fold, table, share, &wanted).await {
            Ok(Look::InLine) => return Ok(true),
            Ok(Look::Overtaken) => return Ok(false),
            Err(error) => error,
        };
        // Lost to another committer, or landed without our knowing: the next look at the table tells which. A refusal
        // is looked at once more and no oftener: it will not pass by itself.
        tries += 1;
        let failed = match error {
            LookError::Store(error) => error,
            LookError::Table(error) => failed(store, &folder, "write", error),
        };
        if tries == TRIES || (tries > 1 && failed.kind != StoreErrorKind::Unreachable) {
            return Err(failed);
        }
        tracing::debug!(stage = fold.stage, port, error = failed.chain(), tries, "looking at the table again");
        tokio::time::sleep(Duration::from_millis(20 << tries)).await;
    }
}

/// Why a look failed.
#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Table(#[from] DeltaTableError),
}

async fn look(
    store: &Store,
    log: &LogStoreRef,
    fold: &StageFold<'_>,
    table: TableDef,
    share: &Share<'_>,
    wanted: &BTreeMap<String, (String, DataFile)>,
) -> Result<Look, LookError> {
    if !log.is_delta_table_location().await? {
        create(log, table).await?;
    }
    let mut delta = DeltaTable::new(Arc::clone(log));
    delta.load().await?;
    // After the load: a newer run that is not seen here can only write a later entry, and then ours fails.
    if store.is_overtaken(fold.stage, fold.run, share).await? {
        return Ok(Look::Overtaken);
    }
    let snapshot = delta.snapshot()?;
    let mut missing = wanted.clone();
    let mut actions: Vec<Action> = Vec::new();
    for file in snapshot.log_data().iter() {
        let path = file.path();
        let ours = paths::partition_of(&path).is_none_or(|partition| share.owns(partition));
        if missing.remove(path.as_ref()).is_none() && ours {
            actions.push(Action::Remove(file.remove_action(true)));
        }
    }
    actions.extend(missing.into_values().map(|(partition, file)| Action::Add(add(partition, file))));
    if actions.is_empty() {
        return Ok(Look::InLine);
    }
    let metadata = [("stage".to_owned(), json!(fold.stage)), ("run".to_owned(), json!(fold.run))];
    let properties =
        CommitProperties::default().with_max_retries(0).with_cleanup_expired_logs(Some(false)).with_metadata(metadata);
    let operation = DeltaOperation::Write {
        mode: SaveMode::Append,
        partition_by: Some(vec![PARTITION_COLUMN.to_owned()]),
        predicate: None,
    };
    let entry = CommitBuilder::from(properties).with_actions(actions).build(Some(snapshot), Arc::clone(log), operation);
    entry.await?;
    Ok(Look::InLine)
}

async fn create(log: &LogStoreRef, table: TableDef) -> Result<(), DeltaTableError> {
    let schema: StructType = table.schema().as_ref().try_into_kernel()?;
    let mut columns: Vec<StructField> = schema.fields().cloned().collect();
    let partition = StructField::new(PARTITION_COLUMN, DataType::Primitive(PrimitiveType::String), true);
    columns.push(partition);
    CreateBuilder::new()
        .with_log_store(Arc::clone(log))
        .with_table_name(table.name)
        .with_columns(columns)
        .with_partition_columns([PARTITION_COLUMN])
        .with_save_mode(SaveMode::Ignore)
        .with_configuration([("coa.table_version", Some(table.version.to_string()))])
        .with_raise_if_key_not_exists(false)
        .await?;
    Ok(())
}

fn add(partition: String, file: DataFile) -> Add {
    Add {
        path: file.path,
        partition_values: HashMap::from([(PARTITION_COLUMN.to_owned(), Some(partition))]),
        size: file.bytes as i64,
        modification_time: chrono::Utc::now().timestamp_millis(),
        data_change: true,
        stats: Some(json!({ "numRecords": file.rows }).to_string()),
        tags: None,
        deletion_vector: None,
        base_row_id: None,
        default_row_commit_version: None,
        clustering_provider: None,
    }
}

/// All tables of the store.
pub async fn tables(store: &Store) -> Result<Vec<StoredTable>, StoreError> {
    let mut found = Vec::new();
    for stage in store.folders(&paths::all_tables()).await? {
        for port in store.folders(&stage).await? {
            for table in store.folders(&port).await? {
                if let Some((stage, port, table, version)) = paths::parse_table(&table) {
                    found.push(StoredTable { stage, port, table, version });
                }
            }
        }
    }
    Ok(found)
}

/// A table for the query engine, as it stands now. `None` for a folder that is no table.
pub async fn provider(store: &Store, table: &StoredTable) -> Result<Option<Arc<dyn TableProvider>>, StoreError> {
    let folder = paths::table_folder(&table.stage, &table.port, &table.table, table.version);
    let log = log_store(store, &folder);
    let is_table = log.is_delta_table_location().await.map_err(|error| failed(store, &folder, "read", error))?;
    if !is_table {
        return Ok(None);
    }
    let mut delta = DeltaTable::new(log);
    delta.load().await.map_err(|error| failed(store, &folder, "read", error))?;
    let provider = delta.table_provider().await.map_err(|error| failed(store, &folder, "read", error.into()))?;
    Ok(Some(provider))
}
