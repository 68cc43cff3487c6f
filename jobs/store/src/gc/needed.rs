//! What of a store is needed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use chrono::{DateTime, Utc};
use object_store::ObjectMeta;
use object_store::path::Path;

use super::Rules;
use crate::delta::{files_since, table_folder, tables};
use crate::error::StoreError;
use crate::paths;
use crate::record::{StageOutcome, UnitRecord, UnitWant};
use crate::stage::View;
use crate::store::Store;

/// What is needed, as it stands when it is looked at.
pub(super) struct Needed {
    /// Objects that a record or a table version names.
    named: HashSet<Path>,
    /// Units that are done and superseded, with the places of their records.
    pub(super) superseded: Vec<(UnitWant, ObjectMeta)>,
    /// What they name and nothing else does.
    pub(super) superseded_files: HashSet<Path>,
    /// Keys of units that were tried and are not done.
    pub(super) unfinished: HashSet<String>,
    /// While a run may be at work: the attempts that have ended without finishing their unit.
    failed: Option<HashSet<String>>,
}

impl Needed {
    pub(super) async fn find(store: &Store, rules: Rules, before: DateTime<Utc>) -> Result<Self, StoreError> {
        let mut needed = Self {
            named: HashSet::new(),
            superseded: Vec::new(),
            superseded_files: HashSet::new(),
            unfinished: HashSet::new(),
            failed: None,
        };
        needed.attempts(store, rules).await?;
        needed.units(store, rules, before).await?;
        for table in tables(store).await? {
            let folder = table_folder(&table);
            let files = files_since(store, &table, before).await?;
            needed.named.extend(files.into_iter().map(|file| Path::from(format!("{folder}/{file}"))));
        }
        let named = &needed.named;
        needed.superseded_files.retain(|file| !named.contains(file));
        Ok(needed)
    }

    /// Whether something needed names an object.
    pub(super) fn names(&self, path: &Path) -> bool {
        self.named.contains(path)
    }

    /// Whether an attempt can write no more, and no run relies on what it wrote.
    pub(super) fn is_over(&self, attempt: Option<&str>) -> bool {
        match &self.failed {
            None => true,
            Some(failed) => attempt.is_some_and(|attempt| failed.contains(attempt)),
        }
    }

    async fn attempts(&mut self, store: &Store, rules: Rules) -> Result<(), StoreError> {
        let listed = store.list(&paths::attempts()).await?;
        let wants = listed.iter().filter_map(|object| Some(paths::parse_attempt(&object.location)?.0));
        self.unfinished = wants.map(|want| want.key()).collect();
        if rules.at_work {
            let ended = store.attempts().await?.into_iter().filter(|(_, end)| end.is_some());
            self.failed = Some(ended.map(|(attempt, _)| attempt.attempt).collect());
        }
        Ok(())
    }

    async fn units(&mut self, store: &Store, rules: Rules, before: DateTime<Utc>) -> Result<(), StoreError> {
        let listed: HashMap<Path, ObjectMeta> = store
            .list(&paths::all_units())
            .await?
            .into_iter()
            .map(|object| (object.location.clone(), object))
            .collect();
        let records: Vec<UnitRecord> = store.get_all(listed.keys().cloned().collect()).await?;
        let shown = store.stages().await?;
        let stages: BTreeSet<String> = shown.into_iter().chain(records.iter().map(|unit| unit.stage.clone())).collect();
        let mut views: BTreeMap<String, View> = BTreeMap::new();
        for stage in stages {
            let view = store.view(&stage).await?;
            views.insert(stage, view);
        }
        let complete = complete_since(store).await?;
        for record in views.values().flat_map(|view| view.units.values()) {
            self.named.extend(files_of(record));
        }
        for record in &records {
            let want = record.want();
            self.unfinished.remove(&want.key());
            let view = &views[&record.stage];
            let shown = view.units.get(&record.partition).is_some_and(|unit| unit.attempt == record.attempt);
            let about = view.newest_about(&record.partition).max(complete.get(&record.stage).copied());
            let object = listed.get(&paths::unit(&want)).filter(|object| object.last_modified <= before);
            match object {
                Some(object) if !shown && about > Some(record.run) && !rules.at_work => {
                    self.superseded.push((want, object.clone()));
                    self.superseded_files.extend(files_of(record));
                }
                _ => self.named.extend(files_of(record)),
            }
        }
        Ok(())
    }
}

/// What the tables of a stage show is what its last complete run wanted: that run's number, by stage.
async fn complete_since(store: &Store) -> Result<HashMap<String, u64>, StoreError> {
    let mut complete = HashMap::new();
    for (run, end) in store.runs().await? {
        let stages = end.filter(|_| run.partitions.is_none()).map(|end| end.stages).unwrap_or_default();
        for (stage, end) in stages {
            if matches!(end.outcome, StageOutcome::Complete | StageOutcome::CompleteWithQuarantinedRows) {
                complete.insert(stage, run.run);
            }
        }
    }
    Ok(complete)
}

/// The objects that a unit's record names.
fn files_of(record: &UnitRecord) -> Vec<Path> {
    let mut found = Vec::new();
    for output in &record.tables {
        let folder = paths::table_folder(&record.stage, &output.port, &output.table, output.table_version);
        found.extend(output.files.iter().map(|file| Path::from(format!("{folder}/{}", file.path))));
    }
    let files = record.files.iter().flat_map(|output| &output.files);
    found.extend(files.map(|file| Path::from(file.path.as_str())));
    found
}
