//! Plans: which units a pipeline has, which are done, and why the others are not.
//!
//! A unit is done when its record exists under the key made of the stage's fingerprint, the partition and a digest of
//! everything it reads. Nothing else counts: not the queue, not the clock, not the tables.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use operators::{Payload, SourceObject, Split};
use pipelines::{Pipeline, Selection, Stage};
use serde_json::Value;
use store::{InputPort, Outcome, Store, StoreError, StoreErrorKind, UnitRecord, UnitWant, list_source};

use crate::error::CommandError;

/// One unit of a pipeline.
pub struct Unit {
    /// Index of its stage.
    pub stage: usize,
    /// Its partition.
    pub partition: String,
    /// Which of a numbered stage's units it is.
    pub number: u32,
    /// The source objects it reads, with what changes when their content does.
    pub objects: Vec<(SourceObject, String)>,
    /// For each binding of the stage, the units it reads from.
    pub reads: Vec<Vec<usize>>,
    /// Whether it is done.
    pub state: UnitState,
}

/// Whether a unit is done.
#[derive(Clone, Debug)]
pub enum UnitState {
    /// It is, by this record.
    Done(Arc<UnitRecord>),
    /// It is not, because of this.
    Due(Reason),
}

/// Why a unit has to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It was never done.
    New,
    /// What it reads is not done yet, so what it will read is not known: the stage that comes first.
    After(String),
    /// What it reads has changed.
    InputsChanged,
    /// Parameters have changed: which, and from what to what.
    ParametersChanged(String),
    /// The operator has a new version.
    OperatorChanged(String),
    /// Its last attempt failed with this error.
    Failed(String),
    /// It was asked for with `--force`.
    Forced,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::New => f.write_str("new"),
            Self::After(stage) => write!(f, "after `{stage}`"),
            Self::InputsChanged => f.write_str("inputs changed"),
            Self::ParametersChanged(what) => write!(f, "parameters changed: {what}"),
            Self::OperatorChanged(what) => write!(f, "operator version changed: {what}"),
            Self::Failed(error) => write!(f, "failed: {error}"),
            Self::Forced => f.write_str("forced"),
        }
    }
}

/// All units of a pipeline with their state.
pub struct Plan {
    /// The pipeline.
    pub pipeline: Arc<Pipeline>,
    /// Which stages the command is about.
    pub selection: Selection,
    /// The units, stage by stage in the pipeline's order.
    pub units: Vec<Unit>,
    by_stage: Vec<Range<usize>>,
    /// For each unit, the units that read from it.
    readers: Vec<Vec<usize>>,
    records: Vec<StageRecords>,
    failures: HashMap<String, String>,
    forced: bool,
}

#[derive(Default)]
struct StageRecords {
    by_key: HashMap<(String, String, String), Arc<UnitRecord>>,
    /// The newest record of each partition, for telling what changed.
    newest: HashMap<String, Arc<UnitRecord>>,
}

/// The partition of a stage that is not cut into several.
const WHOLE: &str = "all";

impl Plan {
    /// Lists sources and records and works out every unit's state. Without a store nothing is done.
    pub async fn make(
        pipeline: Arc<Pipeline>,
        selection: Selection,
        store: Option<&Store>,
        forced: bool,
    ) -> Result<Self, CommandError> {
        let mut plan = Self {
            units: Vec::new(),
            by_stage: Vec::new(),
            readers: Vec::new(),
            records: Vec::new(),
            failures: HashMap::new(),
            pipeline,
            selection,
            forced,
        };
        plan.expand().await?;
        for stage in &plan.pipeline.stages {
            let records = match store {
                Some(store) => StageRecords::of(store.units(&stage.name).await?),
                None => StageRecords::default(),
            };
            plan.records.push(records);
        }
        if let Some(store) = store {
            plan.failures = last_failures(store).await?;
        }
        for index in 0..plan.units.len() {
            plan.units[index].state = plan.look(index);
        }
        Ok(plan)
    }

    /// The units of each stage, without their state.
    async fn expand(&mut self) -> Result<(), CommandError> {
        let pipeline = Arc::clone(&self.pipeline);
        let mut by_partition: HashMap<(usize, String), usize> = HashMap::new();
        for (index, stage) in pipeline.stages.iter().enumerate() {
            let begin = self.units.len();
            let upstream: Vec<Range<usize>> = stage
                .inputs
                .iter()
                .map(|binding| self.by_stage[stage_index(&pipeline, &binding.stage)].clone())
                .collect();
            let split = stage.split();
            for mut unit in self.cut(index, stage, &split, &upstream).await? {
                for (binding, upstream) in stage.inputs.iter().zip(&upstream) {
                    let reads: Vec<usize> = if binding.port.whole || split == Split::Whole {
                        upstream.clone().collect()
                    } else {
                        let key = (stage_index(&pipeline, &binding.stage), unit.partition.clone());
                        by_partition.get(&key).copied().into_iter().collect()
                    };
                    if reads.is_empty() {
                        return Err(CommandError::Usage {
                            message: format!(
                                "stage `{}`: input `{}` has no partition `{}` in `{}`",
                                stage.name, binding.port.name, unit.partition, binding.stage
                            ),
                            hint: Some("bind the inputs of a stage to stages with the same partitions".to_owned()),
                        });
                    }
                    unit.reads.push(reads);
                }
                let position = self.units.len();
                for read in unit.reads.iter().flatten() {
                    self.readers[*read].push(position);
                }
                by_partition.insert((index, unit.partition.clone()), position);
                self.units.push(unit);
                self.readers.push(Vec::new());
            }
            self.by_stage.push(begin..self.units.len());
        }
        Ok(())
    }

    /// The partitions of a stage.
    async fn cut(
        &self,
        index: usize,
        stage: &Stage,
        split: &Split,
        upstream: &[Range<usize>],
    ) -> Result<Vec<Unit>, CommandError> {
        let unit = |partition: String, number: u32, objects: Vec<(SourceObject, String)>| Unit {
            stage: index,
            partition,
            number,
            objects,
            reads: Vec::new(),
            state: UnitState::Due(Reason::New),
        };
        Ok(match split {
            Split::Whole => vec![unit(WHOLE.to_owned(), 0, Vec::new())],
            Split::Numbered(count) => {
                (0..*count).map(|number| unit(format!("{number:05}"), number, Vec::new())).collect()
            }
            Split::PerPartition => {
                let first = self.units[upstream[0].clone()].iter();
                first.map(|read| unit(read.partition.clone(), 0, Vec::new())).collect()
            }
            Split::PerObject(pattern) => {
                let listed = list_source(pattern).await?;
                if listed.iter().all(|found| found.object.size == 0) {
                    let what = if listed.len() == 1 { "is empty" } else { "matches only empty objects" };
                    return Err(CommandError::Usage {
                        message: format!("stage `{}`: the source `{pattern}` {what}", stage.name),
                        hint: Some("fetch it again or name another".to_owned()),
                    });
                }
                listed.into_iter().map(|found| unit(found.partition, 0, vec![(found.object, found.version)])).collect()
            }
        })
    }

    /// The stage of a unit.
    pub fn stage(&self, unit: usize) -> &Stage {
        &self.pipeline.stages[self.units[unit].stage]
    }

    /// Whether a unit's stage is selected.
    pub fn selected(&self, unit: usize) -> bool {
        self.selection.contains(&self.stage(unit).name)
    }

    /// The record of a unit, if it is done.
    pub fn record(&self, unit: usize) -> Option<&Arc<UnitRecord>> {
        match &self.units[unit].state {
            UnitState::Done(record) => Some(record),
            UnitState::Due(_) => None,
        }
    }

    /// The key a unit's record has; known when everything it reads is done.
    pub fn want(&self, unit: usize) -> Option<UnitWant> {
        let stage = self.stage(unit);
        let mut read = String::new();
        for (object, version) in &self.units[unit].objects {
            read.push_str(&format!("object {} {version}\n", object.uri));
        }
        for (binding, units) in stage.inputs.iter().zip(&self.units[unit].reads) {
            for upstream in units {
                let record = self.record(*upstream)?;
                let digest = record.digest(binding.from);
                read.push_str(&format!("{} {} {digest}\n", binding.port.name, record.partition));
            }
        }
        let inputs = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(read.as_bytes()))[..12].to_owned();
        Some(UnitWant {
            stage: stage.name.clone(),
            fingerprint: stage.fingerprint.clone(),
            partition: self.units[unit].partition.clone(),
            inputs,
        })
    }

    /// What a unit's inputs are, once everything it reads is done.
    pub fn inputs(&self, unit: usize) -> Vec<InputPort> {
        let stage = self.stage(unit);
        let bindings = stage.inputs.iter().zip(&self.units[unit].reads);
        bindings
            .map(|(binding, units)| InputPort {
                port: binding.port.name.to_owned(),
                payload: binding.port.payload,
                stage: binding.stage.clone(),
                from: binding.from.to_owned(),
                records: units.iter().filter_map(|upstream| self.record(*upstream).cloned()).collect(),
            })
            .collect()
    }

    /// Works out a unit's state from the states of the units it reads.
    pub fn look(&self, unit: usize) -> UnitState {
        let stage = self.stage(unit);
        let Some(want) = self.want(unit) else {
            let first = self.units[unit].reads.iter().flatten().find(|upstream| self.record(**upstream).is_none());
            let name = first.map_or_else(String::new, |upstream| self.stage(*upstream).name.clone());
            return UnitState::Due(Reason::After(name));
        };
        if self.forced && self.selected(unit) {
            return UnitState::Due(Reason::Forced);
        }
        let records = &self.records[self.units[unit].stage];
        let key = (want.fingerprint.clone(), want.partition.clone(), want.inputs.clone());
        if let Some(record) = records.by_key.get(&key) {
            return UnitState::Done(Arc::clone(record));
        }
        if let Some(error) = self.failures.get(&want.key()) {
            return UnitState::Due(Reason::Failed(error.clone()));
        }
        UnitState::Due(match records.newest.get(&want.partition) {
            Some(before) => difference(stage, self.pipeline.seed, before),
            None => Reason::New,
        })
    }

    /// Units that are not done, with the reason, for the selected stages.
    pub fn due(&self) -> impl Iterator<Item = (usize, &Reason)> {
        self.units.iter().enumerate().filter_map(|(index, unit)| match &unit.state {
            UnitState::Due(reason) if self.selected(index) => Some((index, reason)),
            _ => None,
        })
    }

    /// The units of a stage.
    pub fn units_of(&self, stage: usize) -> Range<usize> {
        self.by_stage[stage].clone()
    }

    /// The units that read from a unit.
    pub fn readers(&self, unit: usize) -> &[usize] {
        &self.readers[unit]
    }

    /// The first unit a selected unit needs that is neither done nor selected: the stage that must be selected too.
    pub fn missing_upstream(&self) -> Option<(&str, &str)> {
        self.due().find_map(|(unit, _)| {
            let upstream = self.units[unit].reads.iter().flatten();
            let mut missing = upstream.filter(|up| self.record(**up).is_none() && !self.selected(**up));
            missing.next().map(|up| (self.stage(unit).name.as_str(), self.stage(*up).name.as_str()))
        })
    }

    /// Tables of a stage's output ports.
    pub fn tables_of(&self, stage: usize) -> impl Iterator<Item = (&'static str, schemas::TableDef)> {
        self.pipeline.stages[stage].factory.outputs().iter().filter_map(|port| match port.payload {
            Payload::Table(table) => Some((port.name, table)),
            Payload::Files(_) => None,
        })
    }
}

fn stage_index(pipeline: &Pipeline, name: &str) -> usize {
    pipeline.stages.iter().position(|stage| stage.name == name).expect("bindings name stages of the pipeline")
}

impl StageRecords {
    fn of(records: Vec<UnitRecord>) -> Self {
        let mut found = Self::default();
        for record in records.into_iter().map(Arc::new) {
            let key = (record.fingerprint.clone(), record.partition.clone(), record.inputs.clone());
            let newest = found.newest.entry(record.partition.clone()).or_insert_with(|| Arc::clone(&record));
            // Attempt ids sort by time; only the explanation of a plan depends on it.
            if newest.attempt < record.attempt {
                *newest = Arc::clone(&record);
            }
            found.by_key.insert(key, record);
        }
        found
    }
}

/// The errors of units whose last attempt, in the last run, failed.
async fn last_failures(store: &Store) -> Result<HashMap<String, String>, StoreError> {
    let Some((run, _)) = store.runs().await?.pop() else { return Ok(HashMap::new()) };
    let mut failures = HashMap::new();
    for (attempt, end) in store.attempts_of(&run.run).await? {
        match end {
            Some(end) if end.outcome == Outcome::Failed => failures.insert(attempt.unit, end.error),
            _ => failures.remove(&attempt.unit),
        };
    }
    Ok(failures)
}

/// What changed since a unit's partition was last done.
fn difference(stage: &Stage, seed: u64, before: &UnitRecord) -> Reason {
    let factory = stage.factory;
    if before.operator != factory.name() {
        return Reason::ParametersChanged(format!("operator `{}` was `{}`", factory.name(), before.operator));
    }
    if before.operator_version != factory.version() {
        return Reason::OperatorChanged(format!("{} -> {}", before.operator_version, factory.version()));
    }
    let mut changes = Vec::new();
    let (old, new) = (before.params.as_object(), stage.params.as_object());
    if let (Some(old), Some(new)) = (old, new) {
        for (key, value) in new {
            let was = old.get(key).unwrap_or(&Value::Null);
            if was != value {
                changes.push(format!("{key} {was} -> {value}"));
            }
        }
    }
    if factory.seeded() && before.seed != Some(seed) {
        changes.push(format!("seed {} -> {seed}", before.seed.unwrap_or_default()));
    }
    if !changes.is_empty() {
        return Reason::ParametersChanged(changes.join(", "));
    }
    if before.fingerprint != stage.fingerprint {
        return Reason::OperatorChanged("its tables have a new version".to_owned());
    }
    Reason::InputsChanged
}

/// Opens the store for a plan: one that does not exist yet has nothing done.
pub async fn existing(address: &str) -> Result<Option<Store>, StoreError> {
    match Store::open(address).await {
        Ok(store) => Ok(Some(store)),
        Err(error) if error.kind == StoreErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
