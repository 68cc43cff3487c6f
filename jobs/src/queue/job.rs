//! What a job says.

use operators::SourceObject;
use serde::{Deserialize, Serialize};
use store::UnitWant;
use xxhash_rust::xxh3::xxh3_64;

/// A job: which unit of which run, and what it reads. Names only; any worker that reaches the store can do it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct UnitJob {
    /// Version of this layout.
    pub(crate) version: u32,
    /// The store's address.
    pub(crate) store: String,
    /// The run that wants it.
    pub(crate) run: u64,
    /// The unit.
    pub(crate) want: UnitWant,
    /// Which of a numbered stage's units it is.
    pub(crate) number: u32,
    /// The source objects it reads.
    pub(crate) objects: Vec<SourceObject>,
    /// For each bound input, the finished units it reads.
    pub(crate) inputs: Vec<InputUnits>,
    /// Which try within the run, from 1.
    pub(crate) attempt: u32,
}

/// The finished units that feed an input port.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct InputUnits {
    /// The port.
    pub(crate) port: String,
    /// The stage that feeds it.
    pub(crate) stage: String,
    /// The output port of that stage.
    pub(crate) from: String,
    /// Fingerprint, partition and inputs of each unit.
    pub(crate) units: Vec<(String, String, String)>,
}

impl InputUnits {
    /// The units.
    pub(crate) fn wants(&self) -> impl Iterator<Item = UnitWant> {
        self.units.iter().map(|(fingerprint, partition, inputs)| UnitWant {
            stage: self.stage.clone(),
            fingerprint: fingerprint.clone(),
            partition: partition.clone(),
            inputs: inputs.clone(),
        })
    }
}

impl UnitJob {
    /// Unique per store, run, unit and try, so that a job that was pushed twice by mistake is done once.
    pub(crate) fn key(&self) -> String {
        let UnitWant { stage, partition, .. } = &self.want;
        format!("{}{stage}.{partition}.{}", run_prefix(&self.store, self.run), self.attempt)
    }
}

/// What the keys of a run's jobs begin with.
pub(crate) fn run_prefix(store: &str, run: u64) -> String {
    format!("{:016x}.{run}.", xxh3_64(store.as_bytes()))
}
