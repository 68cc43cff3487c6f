//! Delta tables: what people and SQL read.
//!
//! A table is brought in line with unit records by [`bring_in_line`]: the difference between the files that the records name and
//! the files that are live in the table becomes one log entry. An entry that is lost to another committer, or that
//! lands without our knowing, changes nothing: the next look at the table shows what is still missing.
//!
//! A merged file ([`crate::compact`]) stands for the files whose rows it has: where the records name all of them it
//! stays, and where they do not it goes, whatever they name is added.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use datafusion::catalog::TableProvider;
use deltalake_core::kernel::engine::arrow_conversion::TryIntoKernel;
use deltalake_core::kernel::transaction::{CommitBuilder, CommitProperties};
use deltalake_core::kernel::{Action, Add, DataType, MetadataExt, PrimitiveType, StructField, StructType};
use deltalake_core::logstore::{LogStoreRef, StorageConfig, default_logstore};
use deltalake_core::operations::create::CreateBuilder;
use deltalake_core::protocol::{DeltaOperation, SaveMode};
use deltalake_core::{DeltaTable, DeltaTableError};
use object_store::ObjectStore;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use schemas::TableDef;
use serde_json::json;

use crate::damage::damaged_log;
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
pub(crate) const TRIES: u32 = 8;

pub(crate) fn log_store(store: &Store, folder: &Path) -> LogStoreRef {
    let (root, prefix) = store.root();
    let path = prefix.parts().chain(folder.parts()).collect::<Path>();
    let inside: Arc<dyn ObjectStore> = Arc::new(PrefixStore::new(Arc::clone(root), path));
    let url = url::Url::parse(&format!("{}/", store.uri(folder))).expect("a store's address and a key make a URL");
    default_logstore(inside, Arc::clone(root), &url, &StorageConfig::default())
}

pub(crate) fn failed(store: &Store, folder: &Path, doing: &str, error: DeltaTableError) -> StoreError {
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
        if !shows(&path, &mut missing) && ours {
            actions.push(Action::Remove(file.remove_action(true)));
        }
    }
    actions.extend(missing.into_values().map(|(partition, file)| Action::Add(add(partition, file))));
    let columns = table.schema().as_ref().try_into_kernel().map_err(DeltaTableError::from)?;
    if let Some(schema) = widened(&snapshot.schema(), &columns)? {
        actions
            .push(Action::Metadata(snapshot.metadata().clone().with_schema(&schema).map_err(DeltaTableError::from)?));
    }
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

/// Whether a live file has rows that are still missing, and none besides: then they are not missing any more.
fn shows(file: &str, missing: &mut BTreeMap<String, (String, DataFile)>) -> bool {
    let originals = match paths::parse_data_file(file) {
        Some(name) if name.merged => name.originals(),
        _ => vec![file.to_owned()],
    };
    let all = originals.iter().all(|original| missing.contains_key(original));
    if all {
        originals.iter().for_each(|original| _ = missing.remove(original));
    }
    all
}

/// The schema of a stored table with the columns that were added since it was made, if any were: older files have null
/// there.
fn widened(stored: &StructType, columns: &StructType) -> Result<Option<StructType>, DeltaTableError> {
    let added: Vec<StructField> =
        columns.fields().filter(|column| stored.field(column.name()).is_none()).cloned().collect();
    if added.is_empty() {
        return Ok(None);
    }
    Ok(Some(StructType::try_new(stored.fields().cloned().chain(added))?))
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

pub(crate) fn add(partition: String, file: DataFile) -> Add {
    Add {
        path: file.path,
        partition_values: HashMap::from([(PARTITION_COLUMN.to_owned(), Some(partition))]),
        size: file.bytes as i64,
        modification_time: Utc::now().timestamp_millis(),
        data_change: true,
        stats: Some(json!({ "numRecords": file.rows }).to_string()),
        tags: None,
        deletion_vector: None,
        base_row_id: None,
        default_row_commit_version: None,
        clustering_provider: None,
    }
}

/// All tables of the store. A folder whose log has no entry yet is none: a run wrote files there and has not told.
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
    let logs: Vec<Path> = found.iter().map(log_folder).collect();
    let begun = store.have_something(logs).await?;
    Ok(found.into_iter().zip(begun).filter_map(|(table, begun)| begun.then_some(table)).collect())
}

/// The folder of a stored table, relative to the store.
pub(crate) fn table_folder(table: &StoredTable) -> Path {
    paths::table_folder(&table.stage, &table.port, &table.table, table.version)
}

/// The folder of its log.
pub(crate) fn log_folder(table: &StoredTable) -> Path {
    Path::from(format!("{}/_delta_log", table_folder(table)))
}

/// The version that an entry of a log makes.
pub(crate) fn commit_version(entry: &Path) -> Option<u64> {
    entry.filename()?.strip_suffix(".json")?.parse().ok()
}

/// The version that a checkpoint of a log holds.
pub(crate) fn checkpoint_version(entry: &Path) -> Option<u64> {
    let (version, rest) = entry.filename()?.split_once('.')?;
    rest.starts_with("checkpoint").then(|| version.parse().ok()).flatten()
}

/// A table opened for reading, as it stands or stood.
pub struct OpenTable {
    /// For the query engine.
    pub provider: Arc<dyn TableProvider>,
    /// The version of its log that is read.
    pub version: u64,
    /// Its rows at that version, from the log; none where the log does not say.
    pub rows: Option<u64>,
}

/// Opens a table at a version of its log, or as it stands now. `None` for a folder that is no table.
pub async fn open(store: &Store, table: &StoredTable, at: Option<u64>) -> Result<Option<OpenTable>, StoreError> {
    let Some(delta) = load(store, table, at).await? else { return Ok(None) };
    let unreadable = |error: DeltaTableError| failed(store, &table_folder(table), "read", error);
    let state = delta.snapshot().map_err(unreadable)?;
    let mut rows = Some(0);
    for file in state.log_data().iter() {
        rows = rows.zip(file.num_records()).map(|(sum, more)| sum + more as u64);
    }
    let version = state.version();
    if at.is_some() && versions(store, table).await?.last() != Some(&version) {
        require_files(store, table, version, state.log_data().iter().map(|file| file.path().into_owned())).await?;
    }
    let provider = delta.table_provider().await.map_err(|error| unreadable(error.into()))?;
    Ok(Some(OpenTable { provider, version, rows }))
}

pub(crate) async fn load(
    store: &Store,
    table: &StoredTable,
    at: Option<u64>,
) -> Result<Option<DeltaTable>, StoreError> {
    let folder = table_folder(table);
    let unreadable = |error: DeltaTableError| failed(store, &folder, "read", error);
    let log = log_store(store, &folder);
    if !log.is_delta_table_location().await.map_err(unreadable)? {
        return Ok(None);
    }
    // An entry without a byte reads as one that changes nothing: rows would be missing without a word.
    let entries = store.list(&log_folder(table)).await?;
    if entries.iter().any(|entry| entry.size == 0 && commit_version(&entry.location).is_some())
        && let Some(damage) = damaged_log(store, table).await?
    {
        return Err(damage);
    }
    let mut delta = DeltaTable::new(log);
    let loaded = match at {
        Some(version) => {
            let versions = versions(store, table).await?;
            if !versions.contains(&version) {
                return Err(no_version(table, version, &versions));
            }
            delta.load_version(version).await
        }
        None => delta.load().await,
    };
    if let Err(error) = loaded {
        return Err(match damaged_log(store, table).await? {
            Some(damage) => damage,
            None => unreadable(error),
        });
    }
    Ok(Some(delta))
}

/// The files of an older version may have been deleted: then none of its rows are shown.
async fn require_files(
    store: &Store,
    table: &StoredTable,
    version: u64,
    files: impl Iterator<Item = String>,
) -> Result<(), StoreError> {
    let folder = table_folder(table);
    let there: HashSet<Path> = store.list(&folder).await?.into_iter().map(|object| object.location).collect();
    let (here, gone): (Vec<String>, Vec<String>) =
        files.partition(|file| there.contains(&Path::from(format!("{folder}/{file}"))));
    if gone.is_empty() {
        return Ok(());
    }
    let StoredTable { stage, port, .. } = table;
    let (missing, all) = (gone.len(), here.len() + gone.len());
    let what =
        format!("`{stage}.{port}@v{version}` cannot be read any more: {missing} of its {all} data files are gone");
    let hint = "`coa gc` deletes what only versions older than its retention have; newer versions are whole";
    Err(StoreError::new(StoreErrorKind::NotFound, what).hint(hint))
}

fn no_version(table: &StoredTable, version: u64, versions: &[u64]) -> StoreError {
    let StoredTable { stage, port, .. } = table;
    let known = match versions {
        [] => "none".to_owned(),
        [only] => format!("@v{only} only"),
        // Entries of a log are numbered without gaps.
        [first, .., last] => format!("@v{first} to @v{last}"),
    };
    StoreError::new(StoreErrorKind::NotFound, format!("`{stage}.{port}` has no version {version}; it has {known}"))
}

/// The versions of its log that a table can be opened at, in order.
pub async fn versions(store: &Store, table: &StoredTable) -> Result<Vec<u64>, StoreError> {
    let entries = store.list(&log_folder(table)).await?;
    let mut versions: Vec<u64> = entries.iter().filter_map(|entry| commit_version(&entry.location)).collect();
    versions.sort_unstable();
    // Where old entries were cleared away, the log begins at a checkpoint.
    if versions.first() != Some(&0) {
        let checkpoints = entries.iter().filter_map(|entry| checkpoint_version(&entry.location));
        let first = checkpoints.min().unwrap_or(u64::MAX);
        versions.retain(|version| *version >= first);
    }
    Ok(versions)
}

/// The data files of a table at a version, relative to its folder, with their sizes.
pub(crate) async fn live_files(
    store: &Store,
    table: &StoredTable,
    version: u64,
) -> Result<Vec<(String, u64)>, StoreError> {
    let Some(delta) = load(store, table, Some(version)).await? else { return Ok(Vec::new()) };
    let state = delta.snapshot().map_err(|error| failed(store, &table_folder(table), "read", error))?;
    Ok(state.log_data().iter().map(|file| (file.path().into_owned(), file.size() as u64)).collect())
}

/// The data files of a table that its versions since a time have or had, relative to its folder: those that are live,
/// and those that an entry written since has removed.
pub(crate) async fn files_since(
    store: &Store,
    table: &StoredTable,
    since: DateTime<Utc>,
) -> Result<HashSet<String>, StoreError> {
    // The log first: what is removed after it was listed is live when the table is loaded, or was removed since.
    let entries = store.list(&log_folder(table)).await?;
    let Some(delta) = load(store, table, None).await? else { return Ok(HashSet::new()) };
    let state = delta.snapshot().map_err(|error| failed(store, &table_folder(table), "read", error))?;
    let mut files: HashSet<String> = state.log_data().iter().map(|file| file.path().into_owned()).collect();
    for entry in entries.iter().filter(|entry| entry.last_modified > since) {
        if commit_version(&entry.location).is_none() {
            continue;
        }
        let bytes = store.get_bytes(&entry.location).await?.unwrap_or_default();
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let action: serde_json::Value = serde_json::from_slice(line).map_err(|error| {
                StoreError::corrupt(format!("`{}` is damaged", store.uri(&entry.location))).because(error)
            })?;
            // Paths in a log are URLs; ours have nothing in them that is written otherwise there but `=`.
            if let Some(path) = action["remove"]["path"].as_str() {
                files.insert(path.replace("%3D", "="));
            }
        }
    }
    Ok(files)
}
