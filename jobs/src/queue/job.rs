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
    /// The span of the stage in the run's trace, as W3C's `traceparent`, where the run is traced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) trace_parent: Option<String>,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As jobs were written before they had a trace.
    const UNTRACED: &str = r#"{"version":1,"store":"file:///s","run":1,"want":{"stage":"a","fingerprint":"f","partition":"p",
        "inputs":"i"},"number":0,"objects":[],"inputs":[],"attempt":1}"#;

    #[test]
    fn a_job_without_a_trace_is_read_and_written_as_ever() {
        let mut job: UnitJob = serde_json::from_str(UNTRACED).unwrap();
        assert_eq!(job.trace_parent, None);
        let written = serde_json::to_value(&job).unwrap();
        assert_eq!(written, serde_json::from_str::<serde_json::Value>(UNTRACED).unwrap());
        job.trace_parent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
        let read: UnitJob = serde_json::from_value(serde_json::to_value(&job).unwrap()).unwrap();
        assert_eq!(read.trace_parent, job.trace_parent);
    }
}
