//! Compaction: many small files of a table become fewer, in one log entry that changes no row.
//!
//! A *merged file* has the rows of consecutive files of one attempt, in their order, and says which ones in its name
//! ([`paths::merged_file`]). All files of a partition are of the attempt that did its unit, so a fold sees by names
//! alone that a merged file stands for files that the unit's record names, and takes it away when another attempt's
//! files have taken their place. Nothing else is written down about it.
//!
//! Files of different partitions are never merged: a file of a Delta table has one value of the partition column.
//!
//! Stages go on reading the files that records name, of which there are digests; so these stay in the store as long as
//! their records do, and a compaction costs the space of what it merged. Reading them, and not what an earlier
//! compaction made of them, also means that no damage is copied.
//!
//! The entry is made for the version that was looked at. Where somebody else's came first, the table is looked at again,
//! and what was merged already is used if its files still stand there.

use std::collections::{BTreeMap, HashSet};
use std::path::Path as LocalPath;
use std::sync::Arc;
use std::time::{Duration, Instant};

use deltalake_core::kernel::Action;
use deltalake_core::kernel::transaction::{CommitBuilder, CommitProperties};
use deltalake_core::protocol::DeltaOperation;
use object_store::path::Path;
use operators::{ErrorKind, OperatorError};
use parquet::errors::ParquetError;
use tokio::runtime::Handle;
use ulid::Ulid;

use crate::delta::{self, StoredTable, TRIES, add, log_store, table_folder};
use crate::error::{StoreError, StoreErrorKind};
use crate::parquet_io::{self, TableWriter};
use crate::paths::{self, DataName};
use crate::record::DataFile;
use crate::store::Store;
use crate::transfer::{Checksum, Stored, fetch, put_file};

/// Files are merged up to this size.
const TARGET: u64 = 128 << 20;
/// Files that were merged longer ago are made anew: until they stand in the table nothing says that they are wanted,
/// and `gc` spares only what is younger than an hour.
const STALE: Duration = Duration::from_secs(40 * 60);
/// An entry is made at the latest when the first of its files is this old; further files come in the next one.
const ENTRY_AFTER: Duration = Duration::from_secs(20 * 60);

/// What a compaction did to a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Files that were merged.
    pub merged: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Files that stand in their place.
    pub into: usize,
    /// The bytes of these.
    pub into_bytes: u64,
}

/// Live files that follow each other and become one.
#[derive(Clone, Debug, PartialEq)]
struct Group {
    name: DataName,
    /// The live files, by name.
    live: Vec<String>,
    /// Their bytes.
    bytes: u64,
    /// The attempt's files with the same rows.
    originals: Vec<DataFile>,
}

/// A file that was merged and lies in the store.
struct Merged {
    file: DataFile,
    group: Group,
    made: Instant,
}

/// Merges small files of a table. `scratch` is a folder for temporary files.
pub async fn compact(store: &Store, table: &StoredTable, scratch: &LocalPath) -> Result<Compacted, StoreError> {
    let mut made: BTreeMap<Vec<String>, Merged> = BTreeMap::new();
    let mut done = Compacted::default();
    let mut tries = 0;
    loop {
        let Some(table_now) = delta::load(store, table, None).await? else { return Ok(done) };
        let unreadable = |error| delta::failed(store, &table_folder(table), "read", error);
        let snapshot = table_now.snapshot().map_err(unreadable)?;
        let live: Vec<(String, u64)> =
            snapshot.log_data().iter().map(|file| (file.path().into_owned(), file.size() as u64)).collect();
        let names: HashSet<&str> = live.iter().map(|(file, _)| file.as_str()).collect();
        // What stands in the table now was merged by an entry of ours, whether we were told or not.
        made.retain(|_, merged| {
            let landed = names.contains(merged.file.path.as_str());
            if landed {
                done.merged += merged.group.live.len();
                done.bytes += merged.group.bytes;
                done.into += 1;
                done.into_bytes += merged.file.bytes;
                tries = 0;
            }
            !landed && merged.made.elapsed() < STALE
        });
        let groups = groups(live.clone(), &wanted(store, table).await?);
        let mut entry = Vec::new();
        for group in &groups {
            let first = entry.first().and_then(|live: &Vec<String>| made.get(live));
            if first.is_some_and(|first| first.made.elapsed() > ENTRY_AFTER) {
                break;
            }
            if !made.contains_key(&group.live) {
                let Some(file) = merge(store, table, group, scratch).await? else { continue };
                made.insert(group.live.clone(), Merged { file, group: group.clone(), made: Instant::now() });
            }
            entry.push(group.live.clone());
        }
        if entry.is_empty() {
            return Ok(done);
        }
        if tries == TRIES {
            let what = format!("`{}.{}` is written by others all the time", table.stage, table.port);
            let hint = "run `coa compact` again when no run is at work; nothing was changed";
            return Err(StoreError::new(StoreErrorKind::Unreachable, what).hint(hint));
        }
        tries += 1;
        let replaced: HashSet<&str> = entry.iter().flatten().map(String::as_str).collect();
        let removes = snapshot.log_data().into_iter().filter(|file| replaced.contains(file.path().as_ref()));
        let mut actions: Vec<Action> = removes.map(|file| Action::Remove(file.remove_action(false))).collect();
        for merged in entry.iter().filter_map(|live| made.get(live)) {
            let mut add = add(merged.group.name.partition.clone(), merged.file.clone());
            add.data_change = false;
            actions.push(Action::Add(add));
        }
        let properties = CommitProperties::default().with_max_retries(0).with_cleanup_expired_logs(Some(false));
        let operation = DeltaOperation::Optimize { predicate: None, target_size: TARGET as i64 };
        let log = log_store(store, &table_folder(table));
        let entry = CommitBuilder::from(properties).with_actions(actions).build(Some(snapshot), log, operation);
        // Lost to another committer, or landed without our knowing: the next look at the table tells which.
        if let Err(error) = entry.await {
            let failed = delta::failed(store, &table_folder(table), "write", error);
            if failed.kind != StoreErrorKind::Unreachable {
                return Err(failed);
            }
            tracing::debug!(stage = table.stage, port = table.port, error = failed.chain(), tries, "looking again");
            tokio::time::sleep(Duration::from_millis(20 << tries)).await;
        }
    }
}

/// The files that the records of the units that make up a table name.
async fn wanted(store: &Store, table: &StoredTable) -> Result<BTreeMap<String, DataFile>, StoreError> {
    let units = store.current_units(&table.stage).await?;
    let outputs = units.iter().flat_map(|unit| &unit.tables);
    let ours = outputs.filter(|output| {
        (&output.port, &output.table, output.table_version) == (&table.port, &table.table, table.version)
    });
    Ok(ours.flat_map(|output| output.files.clone()).map(|file| (file.path.clone(), file)).collect())
}

/// What to merge: runs of live files of one attempt that follow each other and are small together.
fn groups(live: Vec<(String, u64)>, wanted: &BTreeMap<String, DataFile>) -> Vec<Group> {
    let mut named: Vec<Group> = Vec::new();
    for (file, bytes) in live {
        let Some(name) = paths::parse_data_file(&file) else { continue };
        // Files that no record names are about to go.
        let originals: Option<Vec<DataFile>> =
            name.originals().iter().map(|original| wanted.get(original).cloned()).collect();
        if let Some(originals) = originals {
            named.push(Group { name, live: vec![file], bytes, originals });
        }
    }
    named.sort_by(|a, b| a.name.cmp(&b.name));
    let mut groups: Vec<Group> = Vec::new();
    for next in named {
        if let Some(open) = groups.last_mut()
            && (&open.name.partition, &open.name.attempt) == (&next.name.partition, &next.name.attempt)
            && open.name.last + 1 == next.name.first
            && open.bytes + next.bytes <= TARGET
        {
            open.name.last = next.name.last;
            open.live.extend(next.live);
            open.bytes += next.bytes;
            open.originals.extend(next.originals);
        } else {
            groups.push(next);
        }
    }
    groups.retain(|group| group.live.len() > 1);
    groups
}

/// Makes one file of a group's and puts it into the store; none where its rows do not fit into one.
async fn merge(
    store: &Store,
    table: &StoredTable,
    group: &Group,
    scratch: &LocalPath,
) -> Result<Option<DataFile>, StoreError> {
    let (store, folder, group) = (store.clone(), table_folder(table), group.clone());
    let (handle, scratch) = (Handle::current(), scratch.to_owned());
    let work = tokio::task::spawn_blocking(move || merge_here(&store, &handle, &folder, &group, &scratch));
    let merged = work
        .await
        .map_err(|error| StoreError::new(StoreErrorKind::Corrupt, "merging files was cut off").because(error))?;
    merged.map_err(|error| {
        let kind = if error.kind == ErrorKind::Storage { StoreErrorKind::Unreachable } else { StoreErrorKind::Corrupt };
        let mut converted = StoreError::new(kind, error.chain());
        converted.hint = error.hint.clone();
        converted
    })
}

fn merge_here(
    store: &Store,
    handle: &Handle,
    folder: &Path,
    group: &Group,
    scratch: &LocalPath,
) -> Result<Option<DataFile>, OperatorError> {
    let scratch = tempfile::tempdir_in(scratch)?;
    let mut writer: Option<TableWriter> = None;
    let mut expected = 0;
    for original in &group.originals {
        let path = Path::from(format!("{folder}/{}", original.path));
        let unreadable = |error: ParquetError| {
            OperatorError::input(format!("cannot merge `{}` with others", store.uri(&path))).because(error)
        };
        let digest = Checksum::Xxh3(original.xxh3.clone());
        let stored = Stored { path: path.clone(), bytes: original.bytes, digest };
        let local = fetch(store, handle, &stored, scratch.path())?;
        let reader = parquet_io::read(&local).map_err(unreadable)?;
        let schema = arrow::record_batch::RecordBatchReader::schema(&reader);
        let writer = writer.get_or_insert_with(|| TableWriter::new(scratch.path(), "merged", Arc::clone(&schema)));
        for batch in reader {
            writer.write(&batch.map_err(ParquetError::from).map_err(unreadable)?).map_err(unreadable)?;
        }
        expected += original.rows;
        if store.local().is_none() {
            std::fs::remove_file(&local)?;
        }
    }
    let Some(writer) = writer else { return Ok(None) };
    let finished = writer.finish();
    let files = finished.map_err(|error| OperatorError::internal("cannot write a merged file").because(error))?;
    let [file] = &files[..] else { return Ok(None) };
    if file.rows != expected {
        let message = format!("files with {expected} rows became one with {}", file.rows);
        return Err(OperatorError::internal(message));
    }
    let DataName { partition, attempt, first, last, .. } = &group.name;
    let path = paths::merged_file(partition, attempt, (*first, *last), &Ulid::new().to_string());
    put_file(store, handle, &Path::from(format!("{folder}/{path}")), &file.path, file.bytes)?;
    Ok(Some(DataFile { path, bytes: file.bytes, rows: file.rows, xxh3: file.xxh3.clone() }))
}
