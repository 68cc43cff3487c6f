//! Which units make up a stage, as far as its tables show it.
//!
//! A run that changes a stage says so first, in a stage record: the partitions it is about, the units it puts there and
//! the partitions that are gone. What a stage is made of is the sum of its stage records in the order of their runs. So a
//! partition belongs to the newest run about it: an older run that ends later, or wakes after it was taken for dead, finds
//! that run's stage record and leaves the partition alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use schemas::TableDef;

use crate::delta;
use crate::error::{StoreError, StoreErrorKind};
use crate::paths;
use crate::record::{RECORD_VERSION, StageRecord, UnitRecord, UnitWant};
use crate::store::{Created, Store};

/// The units of a stage that are done, of every fingerprint, by name; and the contents of those that were read.
#[derive(Debug, Default)]
pub struct StageUnits {
    done: HashMap<UnitWant, DateTime<Utc>>,
    newest: HashMap<String, UnitWant>,
    read: HashMap<UnitWant, Arc<UnitRecord>>,
}

impl StageUnits {
    /// Whether a unit is done.
    pub fn is_done(&self, want: &UnitWant) -> bool {
        self.done.contains_key(want)
    }

    /// The unit of a partition that was done last, whatever its fingerprint.
    pub fn newest(&self, partition: &str) -> Option<&UnitWant> {
        self.newest.get(partition)
    }

    /// The record of a unit, if it was read.
    pub fn record(&self, want: &UnitWant) -> Option<&Arc<UnitRecord>> {
        self.read.get(want)
    }

    /// Takes in a record.
    pub fn add(&mut self, record: Arc<UnitRecord>) {
        self.read.insert(record.want(), record);
    }
}

/// The partitions that a run is about, in one stage.
#[derive(Clone, Debug)]
pub enum Scope {
    /// All there are: what is not among the run's units is gone.
    Whole,
    /// These; others stand beside them.
    Partitions(BTreeSet<String>),
}

/// A stage whose tables are to be brought in line with what a run found or made.
pub struct StageFold<'a> {
    /// The stage.
    pub stage: &'a str,
    /// The run.
    pub run: u64,
    /// What the run is about.
    pub scope: Scope,
    /// Its finished units in that scope.
    pub units: &'a [Arc<UnitRecord>],
    /// The stage's tables, by output port.
    pub tables: &'a [(&'static str, TableDef)],
    /// Whether an older run may still be at work: then this one says what it is about even if it changes nothing.
    pub contended: bool,
}

/// The sum of a stage's records.
#[derive(Default)]
pub(crate) struct View {
    pub(crate) units: BTreeMap<String, Arc<UnitRecord>>,
    /// The run of each record and what it is about; `None` for all partitions.
    about: BTreeMap<u64, Option<BTreeSet<String>>>,
}

impl View {
    pub(crate) fn of(records: Vec<StageRecord>) -> Self {
        let mut view = Self::default();
        for record in records {
            for partition in &record.gone {
                view.units.remove(partition);
            }
            for unit in record.units {
                view.units.insert(unit.partition.clone(), Arc::new(unit));
            }
            view.about.insert(record.run, record.about);
        }
        view
    }

    /// The newest run that is about the partition.
    pub(crate) fn newest_about(&self, partition: &str) -> Option<u64> {
        let mut newest = self.about.iter().rev();
        newest.find(|(_, about)| about.as_ref().is_none_or(|about| about.contains(partition))).map(|(run, _)| *run)
    }

    /// Whether a run newer than `run` is about the partition.
    fn is_taken(&self, run: u64, partition: &str) -> bool {
        let newer = self.about.range(run + 1..);
        newer.into_iter().any(|(_, about)| about.as_ref().is_none_or(|about| about.contains(partition)))
    }
}

/// What of a stage a run may change, and what it should be.
pub(crate) struct Share<'a> {
    /// The units it puts there.
    pub(crate) units: Vec<&'a Arc<UnitRecord>>,
    /// Partitions that are left to newer runs.
    taken: BTreeSet<String>,
    scope: &'a Scope,
    /// The runs that have said what they are about.
    runs: BTreeSet<u64>,
}

impl Share<'_> {
    /// Whether what the table shows of a partition is this run's business.
    pub(crate) fn owns(&self, partition: &str) -> bool {
        !self.taken.contains(partition)
            && match self.scope {
                Scope::Whole => true,
                Scope::Partitions(partitions) => partitions.contains(partition),
            }
    }
}

impl Store {
    /// The units of a stage that are done. The contents of those that make up its tables are read with them.
    pub async fn stage_units(&self, stage: &str) -> Result<StageUnits, StoreError> {
        let mut found = StageUnits::default();
        for object in self.list(&paths::units(stage)).await? {
            let Some(want) = paths::parse_unit(&object.location) else { continue };
            let newest = found.newest.entry(want.partition.clone()).or_insert_with(|| want.clone());
            if found.done.get(newest).is_none_or(|before| *before < object.last_modified) {
                *newest = want.clone();
            }
            found.done.insert(want, object.last_modified);
        }
        for record in self.view(stage).await?.units.into_values() {
            if found.is_done(&record.want()) {
                found.add(record);
            }
        }
        Ok(found)
    }

    /// The records of the units that make up a stage's tables, in order of partition.
    pub async fn current_units(&self, stage: &str) -> Result<Vec<Arc<UnitRecord>>, StoreError> {
        Ok(self.view(stage).await?.units.into_values().collect())
    }

    /// The partitions of a stage that are done under one fingerprint.
    pub async fn done_partitions(&self, stage: &str, fingerprint: &str) -> Result<BTreeSet<String>, StoreError> {
        let listed = self.list(&paths::units_of(stage, fingerprint)).await?;
        Ok(listed.iter().filter_map(|object| Some(paths::parse_unit(&object.location)?.partition)).collect())
    }

    /// The stages that have tables, or had.
    pub async fn stages(&self) -> Result<Vec<String>, StoreError> {
        let folders = self.folders(&paths::all_stage_records()).await?;
        Ok(folders.iter().filter_map(|folder| folder.filename().map(str::to_owned)).collect())
    }

    /// The records of a stage, in the order of their runs.
    pub(crate) async fn stage_records(&self, stage: &str) -> Result<Vec<StageRecord>, StoreError> {
        let listed = self.list(&paths::stage_records(stage)).await?;
        self.get_all(listed.into_iter().map(|object| object.location).collect()).await
    }

    pub(crate) async fn view(&self, stage: &str) -> Result<View, StoreError> {
        Ok(View::of(self.stage_records(stage).await?))
    }

    /// Brings the tables of a stage in line with the units of a run, as far as no newer run is about them: each table in
    /// at most one log entry. Returns how many partitions were left to newer runs.
    pub async fn fold_stage(&self, fold: &StageFold<'_>) -> Result<usize, StoreError> {
        loop {
            let view = self.view(fold.stage).await?;
            let (mut units, mut taken) = (Vec::new(), BTreeSet::new());
            for unit in fold.units {
                match view.is_taken(fold.run, &unit.partition) {
                    true => _ = taken.insert(unit.partition.clone()),
                    false => units.push(unit),
                }
            }
            let mine: BTreeSet<&str> = units.iter().map(|unit| unit.partition.as_str()).collect();
            let mut gone = Vec::new();
            for partition in view.units.keys().filter(|partition| !mine.contains(partition.as_str())) {
                if view.is_taken(fold.run, partition) {
                    taken.insert(partition.clone());
                } else if matches!(fold.scope, Scope::Whole) {
                    gone.push(partition.clone());
                }
            }
            let is_new = |unit: &&&Arc<UnitRecord>| {
                view.units.get(&unit.partition).is_none_or(|before| before.attempt != unit.attempt)
            };
            let changed: Vec<UnitRecord> = units.iter().filter(is_new).map(|unit| unit.as_ref().clone()).collect();
            if !changed.is_empty() || !gone.is_empty() || fold.contended {
                self.write_stage_record(fold, changed, gone).await?;
            }
            let runs = view.about.into_keys().chain([fold.run]).collect();
            let share = Share { units, taken, scope: &fold.scope, runs };
            let mut overtaken = false;
            for (port, table) in fold.tables {
                if !delta::bring_in_line(self, fold, port, *table, &share).await? {
                    overtaken = true;
                    break;
                }
            }
            if !overtaken {
                return Ok(share.taken.len());
            }
        }
    }

    async fn write_stage_record(
        &self,
        fold: &StageFold<'_>,
        units: Vec<UnitRecord>,
        gone: Vec<String>,
    ) -> Result<(), StoreError> {
        let about = match &fold.scope {
            Scope::Whole => None,
            Scope::Partitions(partitions) => Some(partitions.clone()),
        };
        let record = StageRecord { version: RECORD_VERSION, run: fold.run, about, units, gone };
        let path = paths::stage_record(fold.stage, fold.run);
        match self.create_json(&path, &record).await? {
            Created::Ours => Ok(()),
            // Written before and looked at again, because a newer run appeared.
            Created::Theirs(theirs) if theirs.units.len() >= record.units.len() => Ok(()),
            Created::Theirs(_) => Err(StoreError::new(
                StoreErrorKind::AlreadyExists,
                format!("`{}` was written by somebody else", self.uri(&path)),
            )),
        }
    }

    /// Whether a run newer than `run` has said what it is about since `share` was worked out.
    pub(crate) async fn is_overtaken(&self, stage: &str, run: u64, share: &Share<'_>) -> Result<bool, StoreError> {
        let listed = self.list(&paths::stage_records(stage)).await?;
        let newer = listed.iter().filter_map(|object| paths::parse_run(&object.location));
        Ok(newer.into_iter().any(|other| other > run && !share.runs.contains(&other)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(partition: &str, attempt: &str) -> UnitRecord {
        serde_json::from_value(serde_json::json!({"version": 1, "unit": "u", "run": 1, "stage": "s", "operator": "o",
            "operator_version": 1, "params": {}, "seed": null, "fingerprint": "f", "partition": partition, "inputs": "i",
            "attempt": attempt, "worker": "w", "tables": [], "files": [], "rows_in": {}, "counts": {}, "started": "",
            "finished": "", "seconds": 0.0}))
        .unwrap()
    }

    #[test]
    fn a_partition_belongs_to_the_newest_run_about_it() {
        let record = |run: u64, about: Option<&[&str]>, units: &[(&str, &str)], gone: &[&str]| StageRecord {
            version: 1,
            run,
            about: about.map(|about| about.iter().map(|p| (*p).to_owned()).collect()),
            units: units.iter().map(|(partition, attempt)| unit(partition, attempt)).collect(),
            gone: gone.iter().map(|p| (*p).to_owned()).collect(),
        };
        let view = View::of(vec![
            record(1, None, &[("a", "1a"), ("b", "1b"), ("c", "1c")], &[]),
            record(2, Some(&["b"]), &[("b", "2b")], &[]),
            record(4, None, &[("d", "4d")], &["c"]),
        ]);
        let made: Vec<(&str, &str)> = view.units.values().map(|u| (u.partition.as_str(), u.attempt.as_str())).collect();
        assert_eq!(made, [("a", "1a"), ("b", "2b"), ("d", "4d")]);
        let view = View::of(vec![record(2, Some(&["b"]), &[("b", "2b")], &[])]);
        assert!(view.is_taken(1, "b") && !view.is_taken(1, "a") && !view.is_taken(2, "b"));
    }
}
