//! The past of tables and stages: which attempt wrote each partition of a table at each version, and the records of all
//! units that ever stood in a stage's tables.
//!
//! The log of a table names files, files are named after attempts, and records tell of each attempt what it read and with
//! which settings. So a version of a table leads to all it was made from, also where its units were done again since.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::Value;

use crate::delta::{StoredTable, commit_version, live_files, log_folder, versions};
use crate::error::StoreError;
use crate::paths;
use crate::record::{StageRecord, UnitRecord};
use crate::stage::View;
use crate::store::Store;

/// The attempts that a table's versions show.
#[derive(Debug, Default)]
pub struct TableHistory {
    entries: Vec<Entry>,
}

/// What an entry of the log changed.
#[derive(Debug, Default)]
struct Entry {
    version: u64,
    /// The run that wrote it.
    run: Option<u64>,
    added: Vec<String>,
    removed: Vec<String>,
}

impl TableHistory {
    /// The newest version.
    pub fn newest(&self) -> Option<u64> {
        self.entries.last().map(|entry| entry.version)
    }

    /// The run that wrote a version; none where its entry does not say.
    pub fn run(&self, version: u64) -> Option<u64> {
        self.entries.iter().find(|entry| entry.version == version)?.run
    }

    /// The highest number of a run that wrote this version or one before it.
    pub fn last_run(&self, version: u64) -> Option<u64> {
        self.entries.iter().filter(|entry| entry.version <= version).filter_map(|entry| entry.run).max()
    }

    /// The attempt that wrote each partition that has rows at a version.
    pub fn at(&self, version: u64) -> BTreeMap<String, String> {
        let mut files: BTreeMap<&str, ()> = BTreeMap::new();
        for entry in self.entries.iter().take_while(|entry| entry.version <= version) {
            for file in &entry.removed {
                files.remove(file.as_str());
            }
            files.extend(entry.added.iter().map(|file| (file.as_str(), ())));
        }
        let wrote = |file: &str| Some((paths::partition_of(file)?.to_owned(), paths::attempt_of(file)?.to_owned()));
        files.into_keys().filter_map(wrote).collect()
    }

    /// The first versions in a row that show what all of these attempts wrote: from the one to the other. None where
    /// there is no such version, or nothing to show.
    pub fn showing(&self, attempts: &BTreeMap<String, String>) -> Option<(u64, u64)> {
        let mut shown: Option<(u64, u64)> = None;
        let mut live: BTreeMap<&str, usize> = BTreeMap::new();
        for entry in &self.entries {
            for file in &entry.removed {
                if let Some(files) = paths::attempt_of(file).and_then(|attempt| live.get_mut(attempt)) {
                    *files = files.saturating_sub(1);
                }
            }
            for attempt in entry.added.iter().filter_map(|file| paths::attempt_of(file)) {
                *live.entry(attempt).or_default() += 1;
            }
            let all = attempts.values().all(|attempt| live.get(attempt.as_str()).is_some_and(|files| *files > 0));
            match (&mut shown, all && !attempts.is_empty()) {
                (Some((_, until)), true) => *until = entry.version,
                (None, true) => shown = Some((entry.version, entry.version)),
                (Some(_), false) => break,
                (None, false) => {}
            }
        }
        shown
    }
}

/// Reads the log of a table, from its first entry that is there.
pub async fn table_history(store: &Store, table: &StoredTable) -> Result<TableHistory, StoreError> {
    let mut history = TableHistory::default();
    let Some(first) = versions(store, table).await?.first().copied() else { return Ok(history) };
    if first > 0 {
        // What stood before is in a checkpoint.
        let added = live_files(store, table, first).await?.into_iter().map(|(file, _)| file).collect();
        history.entries.push(Entry { version: first, added, ..Entry::default() });
    }
    for object in store.list(&log_folder(table)).await? {
        let Some(version) = commit_version(&object.location).filter(|version| first == 0 || *version > first) else {
            continue;
        };
        let bytes = store.get_bytes(&object.location).await?.unwrap_or_default();
        history.entries.push(Entry::read(version, &bytes));
    }
    Ok(history)
}

impl Entry {
    fn read(version: u64, bytes: &[u8]) -> Self {
        let mut entry = Self { version, ..Self::default() };
        for line in bytes.split(|byte| *byte == b'\n') {
            let Ok(action) = serde_json::from_slice::<Value>(line) else { continue };
            let path = |kind: &str| action[kind]["path"].as_str().map(str::to_owned);
            entry.added.extend(path("add"));
            entry.removed.extend(path("remove"));
            entry.run = entry.run.or(action["commitInfo"]["run"].as_u64());
        }
        entry
    }
}

/// All that the store knows of a stage's past.
pub struct StagePast {
    records: Vec<StageRecord>,
    by_attempt: HashMap<String, Arc<UnitRecord>>,
}

impl StagePast {
    /// The unit that an attempt finished.
    pub fn unit(&self, attempt: &str) -> Option<&Arc<UnitRecord>> {
        self.by_attempt.get(attempt)
    }

    /// The units that made up the stage's tables after all runs up to this one, by partition; after all there were
    /// without a run.
    pub fn units_at(&self, run: Option<u64>) -> BTreeMap<String, Arc<UnitRecord>> {
        let until = run.unwrap_or(u64::MAX);
        View::of(self.records.iter().filter(|record| record.run <= until).cloned().collect()).units
    }
}

impl Store {
    /// The past of a stage: the units its tables showed at any time, and others that are done.
    pub async fn stage_past(&self, stage: &str) -> Result<StagePast, StoreError> {
        let records = self.stage_records(stage).await?;
        let mut by_attempt = HashMap::new();
        let listed = self.list(&paths::units(stage)).await?;
        let done: Vec<UnitRecord> = self.get_all(listed.into_iter().map(|object| object.location).collect()).await?;
        for unit in records.iter().flat_map(|record| &record.units).chain(&done) {
            by_attempt.entry(unit.attempt.clone()).or_insert_with(|| Arc::new(unit.clone()));
        }
        Ok(StagePast { records, by_attempt })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(version: u64, lines: &str) -> Entry {
        Entry::read(version, lines.as_bytes())
    }

    #[test]
    fn versions_lead_to_attempts_and_back() {
        let history = TableHistory {
            entries: vec![
                entry(0, r#"{"metaData":{}}"#),
                entry(
                    1,
                    "{\"add\":{\"path\":\"partition=a/1A-00000.parquet\"}}\n{\"add\":{\"path\":\"partition=a/1A-00001.parquet\"}}\n\
                     {\"add\":{\"path\":\"partition=b/1B-00000.parquet\"}}\n{\"commitInfo\":{\"run\":1}}",
                ),
                entry(
                    2,
                    "{\"remove\":{\"path\":\"partition=a/1A-00000.parquet\"}}\n{\"remove\":{\"path\":\"partition=a/1A-00001.parquet\"}}\n\
                     {\"add\":{\"path\":\"partition=a/2A-00000.parquet\"}}\n{\"commitInfo\":{\"run\":2}}",
                ),
                entry(3, r#"{"add":{"path":"partition=c/3C-00000.parquet"}}"#),
            ],
        };
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
        };
        assert_eq!(history.at(0), map(&[]));
        assert_eq!(history.at(1), map(&[("a", "1A"), ("b", "1B")]));
        assert_eq!(history.at(2), map(&[("a", "2A"), ("b", "1B")]));
        assert_eq!(history.showing(&map(&[("a", "1A")])), Some((1, 1)));
        assert_eq!(history.showing(&map(&[("b", "1B")])), Some((1, 3)));
        assert_eq!(history.showing(&map(&[("a", "2A"), ("b", "1B")])), Some((2, 3)));
        assert_eq!(history.showing(&map(&[("a", "1A"), ("c", "3C")])), None);
        assert_eq!(history.showing(&map(&[])), None);
        assert_eq!((history.run(2), history.run(3), history.last_run(3)), (Some(2), None, Some(2)));
        assert_eq!(history.newest(), Some(3));
    }
}
