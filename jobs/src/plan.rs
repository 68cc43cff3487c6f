//! Plans: which units a pipeline has, which are done, and why the others are not.
//!
//! A unit is done when its record exists under the key made of the stage's fingerprint, the partition and a digest of
//! everything it reads. Nothing else counts: not the queue, not the clock, not the tables.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::try_join_all;
use operators::{Payload, SourceObject, Split};
use pipelines::{Pipeline, Selection, Stage};
use serde_json::Value;
use store::{
    AttemptEnd, Outcome, Scope, StageUnits, Store, StoreError, StoreErrorKind, UnitRecord, UnitWant, list_source,
};

use crate::error::CommandError;
use crate::partitions::Partitions;

/// What a plan is to be about.
#[derive(Clone, Debug)]
pub struct Request {
    /// The stages.
    pub selection: Selection,
    /// The partitions; all where there is none.
    pub partitions: Option<Partitions>,
    /// Which of the units that are not done.
    pub which: Which,
    /// Whether finished units are to be done again.
    pub force: bool,
    /// Where relative sources begin.
    pub folder: PathBuf,
}

impl Request {
    /// Everything that is not done, of these stages, with relative sources below the current directory.
    pub fn of(selection: Selection) -> Self {
        let folder = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        Self { selection, partitions: None, which: Which::Due, force: false, folder }
    }
}

/// Which of the units that are not done a plan lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// All of them.
    #[default]
    Due,
    /// Those that were never done, whatever with.
    Missing,
    /// Those whose last attempt failed.
    Failed,
}

/// One unit of a pipeline.
#[derive(Debug)]
pub struct Unit {
    /// Index of its stage.
    pub stage: usize,
    /// Its partition.
    pub partition: String,
    /// Which of a numbered stage's units it is.
    pub number: u32,
    /// The source objects it reads.
    pub objects: Vec<SourceObject>,
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
    /// What it is about.
    pub request: Request,
    /// The units, stage by stage in the pipeline's order.
    pub units: Vec<Unit>,
    /// Objects of each stage's source that were passed over, by reason.
    pub passed_over: BTreeMap<String, BTreeMap<&'static str, u64>>,
    by_stage: Vec<Range<usize>>,
    /// For each unit, the units that read from it, once for every time they do.
    readers: Vec<Vec<usize>>,
    store: Option<Store>,
    known: Vec<Known>,
    /// Units that are due and not asked for.
    left_out: HashSet<usize>,
}

/// What the store knows of a stage.
#[derive(Default)]
struct Known {
    units: StageUnits,
    /// A record of each old fingerprint, for telling what changed.
    before: HashMap<String, Option<Arc<UnitRecord>>>,
    attempts: Option<HashMap<UnitWant, (u32, Option<AttemptEnd>)>>,
}

/// The partition of a stage that is not cut into several.
pub(crate) const WHOLE: &str = "all";

impl Plan {
    /// Lists sources and records and works out every unit's state. Without a store nothing is done.
    pub async fn make(pipeline: Arc<Pipeline>, request: Request, store: Option<&Store>) -> Result<Self, CommandError> {
        let mut plan = Self {
            units: Vec::new(),
            passed_over: BTreeMap::new(),
            by_stage: Vec::new(),
            readers: Vec::new(),
            store: store.cloned(),
            known: Vec::new(),
            left_out: HashSet::new(),
            pipeline,
            request,
        };
        plan.expand().await?;
        plan.known = match store {
            Some(store) => {
                let stages = plan.pipeline.stages.iter().map(|stage| store.stage_units(&stage.name));
                let found = try_join_all(stages).await?;
                found.into_iter().map(|units| Known { units, ..Known::default() }).collect()
            }
            None => plan.pipeline.stages.iter().map(|_| Known::default()).collect(),
        };
        // Stages stand after what they read from, so what a stage reads is known when it is looked at.
        for stage in 0..plan.pipeline.stages.len() {
            let units: Vec<usize> = plan.units_of(stage).collect();
            plan.look_at(&units).await?;
            plan.explain(&units).await?;
        }
        plan.leave_out();
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
            'units: for mut unit in self.cut(index, stage, &split, &upstream).await? {
                for (binding, upstream) in stage.inputs.iter().zip(&upstream) {
                    let reads: Vec<usize> = if binding.port.whole || split == Split::Whole {
                        upstream.clone().collect()
                    } else {
                        let key = (stage_index(&pipeline, &binding.stage), unit.partition.clone());
                        by_partition.get(&key).copied().into_iter().collect()
                    };
                    if reads.is_empty() && self.request.partitions.is_some() {
                        // It reads something that is not in question, and so is not in question either.
                        continue 'units;
                    }
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
        match &self.request.partitions {
            Some(partitions) if self.units.is_empty() => Err(CommandError::Usage {
                message: format!("no partition is in {partitions}"),
                hint: Some("`coa plan FILE --json` lists those there are".to_owned()),
            }),
            _ => Ok(()),
        }
    }

    /// The units of a stage, those in question if only some partitions are.
    async fn cut(
        &mut self,
        index: usize,
        stage: &Stage,
        split: &Split,
        upstream: &[Range<usize>],
    ) -> Result<Vec<Unit>, CommandError> {
        let unit = |partition: String, number: u32, objects: Vec<SourceObject>| Unit {
            stage: index,
            partition,
            number,
            objects,
            reads: Vec::new(),
            state: UnitState::Due(Reason::New),
        };
        let some = self.request.partitions.is_some();
        Ok(match split {
            // They read all partitions, or have nothing to do with any: not what some partitions are about.
            Split::Whole | Split::Numbered(_) if some => Vec::new(),
            Split::Whole => vec![unit(WHOLE.to_owned(), 0, Vec::new())],
            Split::Numbered(count) => {
                (0..*count).map(|number| unit(format!("{number:05}"), number, Vec::new())).collect()
            }
            Split::PerPartition if stage.inputs.iter().any(|binding| binding.port.whole) && some => Vec::new(),
            Split::PerPartition => {
                let first = self.units[upstream[0].clone()].iter();
                first.map(|read| unit(read.partition.clone(), 0, Vec::new())).collect()
            }
            Split::PerObject(pattern) => {
                let listing = list_source(pattern, &self.request.folder).await?;
                let mut found = listing.partitions;
                // Of many objects, all may be empty: their stage has no rows. One that was named in full was meant to be read.
                if pattern.is_fixed()
                    && found.iter().flat_map(|partition| &partition.objects).all(|object| object.size == 0)
                {
                    return Err(CommandError::Usage {
                        message: format!("stage `{}`: the source `{}` is empty", stage.name, pattern.text()),
                        hint: Some("fetch it again or name another".to_owned()),
                    });
                }
                self.passed_over.insert(stage.name.clone(), listing.passed_over);
                if let Some(partitions) = &self.request.partitions {
                    found = partitions.choose(pattern, found)?;
                }
                found.into_iter().map(|partition| unit(partition.name, 0, partition.objects)).collect()
            }
        })
    }

    /// The stage of a unit.
    pub fn stage(&self, unit: usize) -> &Stage {
        &self.pipeline.stages[self.units[unit].stage]
    }

    /// Whether a unit is asked for.
    pub fn selected(&self, unit: usize) -> bool {
        self.request.selection.contains(&self.stage(unit).name) && !self.left_out.contains(&unit)
    }

    /// Whether a stage has nothing left of what was asked for: each of its units is done or was left out.
    pub fn is_through(&self, stage: usize) -> bool {
        self.units_of(stage).all(|unit| self.record(unit).is_some() || self.left_out.contains(&unit))
    }

    /// The record of a unit, if it is done.
    pub fn record(&self, unit: usize) -> Option<&Arc<UnitRecord>> {
        match &self.units[unit].state {
            UnitState::Done(record) => Some(record),
            UnitState::Due(_) => None,
        }
    }

    /// How many of the units it reads from are not done.
    pub fn missing(&self, unit: usize) -> usize {
        self.units[unit].reads.iter().flatten().filter(|upstream| self.record(**upstream).is_none()).count()
    }

    /// The key a unit's record has; known when everything it reads is done.
    pub fn want(&self, unit: usize) -> Option<UnitWant> {
        let stage = self.stage(unit);
        let mut read = String::new();
        for object in &self.units[unit].objects {
            read.push_str(&format!("object {} {}\n", object.name, object.version));
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

    /// Works out which of these units are done; what they read must have been looked at before.
    pub async fn look_at(&mut self, units: &[usize]) -> Result<(), StoreError> {
        let mut done: Vec<(usize, UnitWant)> = Vec::new();
        for &unit in units {
            let reason = match self.want(unit) {
                None => {
                    let first = self.units[unit].reads.iter().flatten().find(|read| self.record(**read).is_none());
                    Reason::After(first.map_or_else(String::new, |read| self.stage(*read).name.clone()))
                }
                Some(_) if self.request.force && self.selected(unit) => Reason::Forced,
                Some(want) if self.known[self.units[unit].stage].units.is_done(&want) => {
                    done.push((unit, want));
                    continue;
                }
                Some(_) => Reason::New,
            };
            self.units[unit].state = UnitState::Due(reason);
        }
        let unread: Vec<UnitWant> = done
            .iter()
            .filter(|(unit, want)| self.known[self.units[*unit].stage].units.record(want).is_none())
            .map(|(_, want)| want.clone())
            .collect();
        if let Some(store) = &self.store {
            for record in store.unit_records(&unread).await? {
                let stage = stage_index(&self.pipeline, &record.stage);
                self.known[stage].units.add(Arc::new(record));
            }
        }
        for (unit, want) in done {
            if let Some(record) = self.known[self.units[unit].stage].units.record(&want) {
                self.units[unit].state = UnitState::Done(Arc::clone(record));
            }
        }
        Ok(())
    }

    /// The units that were done when the plan was made: it relies on their records.
    pub(crate) fn done(&self) -> Vec<UnitWant> {
        let records = self.units.iter().filter_map(|unit| match &unit.state {
            UnitState::Done(record) => Some(record.want()),
            UnitState::Due(_) => None,
        });
        records.collect()
    }

    /// Says of units that are due, and seem new, why they are.
    async fn explain(&mut self, units: &[usize]) -> Result<(), StoreError> {
        let Some(store) = self.store.clone() else { return Ok(()) };
        for &unit in units {
            let (UnitState::Due(Reason::New), Some(want)) = (&self.units[unit].state, self.want(unit)) else {
                continue;
            };
            let stage = &self.pipeline.stages[self.units[unit].stage];
            let known = &mut self.known[self.units[unit].stage];
            if known.attempts.is_none() {
                known.attempts = Some(store.last_attempts(&stage.name, &stage.fingerprint).await?);
            }
            let last = known.attempts.as_ref().and_then(|attempts| attempts.get(&want));
            let reason = match (last, known.units.newest(&want.partition)) {
                (Some((_, Some(end))), _) if end.outcome == Outcome::Failed => Reason::Failed(end.error.clone()),
                (_, None) => Reason::New,
                (_, Some(before)) if before.fingerprint == stage.fingerprint => Reason::InputsChanged,
                (_, Some(before)) => {
                    if !known.before.contains_key(&before.fingerprint) {
                        let record = store.unit(before).await?.map(Arc::new);
                        known.before.insert(before.fingerprint.clone(), record);
                    }
                    match &known.before[&before.fingerprint] {
                        Some(record) => difference(stage, self.pipeline.seed, record),
                        None => Reason::New,
                    }
                }
            };
            self.units[unit].state = UnitState::Due(reason);
        }
        Ok(())
    }

    /// Leaves out what is due and not asked for: a unit stays if it is asked for itself or reads from one that stays.
    fn leave_out(&mut self) {
        if self.request.which == Which::Due {
            return;
        }
        for unit in 0..self.units.len() {
            let UnitState::Due(reason) = &self.units[unit].state else { continue };
            let asked = match (self.request.which, reason) {
                (Which::Missing, Reason::New) | (Which::Failed, Reason::Failed(_)) => true,
                (_, Reason::After(_)) => {
                    let reads = self.units[unit].reads.iter().flatten();
                    let mut due = reads.filter(|read| self.record(**read).is_none());
                    due.all(|read| !self.left_out.contains(read))
                }
                _ => false,
            };
            if !asked {
                self.left_out.insert(unit);
            }
        }
    }

    /// Units that are not done and asked for, with the reason.
    pub fn due(&self) -> impl Iterator<Item = (usize, &Reason)> {
        self.units.iter().enumerate().filter_map(|(index, unit)| match &unit.state {
            UnitState::Due(reason) if self.selected(index) => Some((index, reason)),
            _ => None,
        })
    }

    /// Index of the stage of this name, which must be one of the pipeline's.
    pub fn stage_of(&self, name: &str) -> usize {
        stage_index(&self.pipeline, name)
    }

    /// The units of a stage.
    pub fn units_of(&self, stage: usize) -> Range<usize> {
        self.by_stage[stage].clone()
    }

    /// The units that read from a unit, once for every time they do.
    pub fn readers(&self, unit: usize) -> &[usize] {
        &self.readers[unit]
    }

    /// What the units of a stage that are done can say about its tables: everything, or their own partitions.
    pub fn scope(&self, stage: usize) -> Scope {
        let whole = self.request.partitions.is_none() && self.units_of(stage).all(|unit| self.record(unit).is_some());
        if whole {
            return Scope::Whole;
        }
        let done = self.units_of(stage).filter(|unit| self.record(*unit).is_some());
        Scope::Partitions(done.map(|unit| self.units[unit].partition.clone()).collect::<BTreeSet<String>>())
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
    pub fn tables_of(&self, stage: usize) -> Vec<(&'static str, schemas::TableDef)> {
        let ports = self.pipeline.stages[stage].factory.outputs().iter();
        let table = ports.filter_map(|port| match port.payload {
            Payload::Table(table) => Some((port.name, table)),
            Payload::AnyTable | Payload::Files(_) => None,
        });
        table.collect()
    }
}

fn stage_index(pipeline: &Pipeline, name: &str) -> usize {
    pipeline.stages.iter().position(|stage| stage.name == name).expect("bindings name stages of the pipeline")
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
    Reason::OperatorChanged("its tables have a new version".to_owned())
}

/// Opens the store for a plan: one that does not exist yet has nothing done.
pub async fn existing(address: &str) -> Result<Option<Store>, StoreError> {
    match Store::open(address).await {
        Ok(store) => Ok(Some(store)),
        Err(error) if error.kind == StoreErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A folder as text, for records.
pub(crate) fn folder_text(folder: &Path) -> String {
    folder.display().to_string()
}
