//! A checked pipeline: what can run.

use std::sync::Arc;

use operators::{Factory, Payload, Port, Runnable, Split};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// A checked pipeline.
pub struct Pipeline {
    /// Its name.
    pub name: String,
    /// The store's address, where the file gives one.
    pub store: Option<String>,
    /// The job queue's address, where the file gives one.
    pub queue: Option<String>,
    /// What every draw is seeded from.
    pub seed: u64,
    /// The text it was made from.
    pub text: String,
    /// Its stages, each after the stages it reads from; otherwise as written.
    pub stages: Vec<Stage>,
}

/// A named use of an operator.
pub struct Stage {
    /// Its name.
    pub name: String,
    /// The operator.
    pub factory: &'static dyn Factory,
    /// The operator with its parameters.
    pub operator: Arc<dyn Runnable>,
    /// The parameters, defaults filled in, keys sorted.
    pub params: Value,
    /// The bound inputs, in the order of the operator's ports.
    pub inputs: Vec<Binding>,
    /// Units that may be at work at the same time, over all workers.
    pub max_parallel: Option<usize>,
    /// The share of records that may be quarantined before the stage counts as failed.
    pub max_bad_ratio: Option<f64>,
    /// What the output depends on besides the inputs.
    pub fingerprint: String,
}

/// An input port and the output port that feeds it.
#[derive(Clone, Debug)]
pub struct Binding {
    /// The input port, with the payload of the output that feeds it.
    pub port: Port,
    /// The stage that feeds it.
    pub stage: String,
    /// The output port of that stage.
    pub from: &'static str,
}

impl Pipeline {
    /// The stage of this name.
    pub fn stage(&self, name: &str) -> Option<&Stage> {
        self.stages.iter().find(|stage| stage.name == name)
    }

    /// Every setting with defaults filled in, as stored with each run.
    pub fn resolved(&self) -> Value {
        let stages: serde_json::Map<String, Value> = self
            .stages
            .iter()
            .map(|stage| {
                let inputs: serde_json::Map<String, Value> = stage
                    .inputs
                    .iter()
                    .map(|binding| (binding.port.name.to_owned(), format!("{}.{}", binding.stage, binding.from).into()))
                    .collect();
                let settings = json!({
                    "operator": stage.factory.name(),
                    "operator_version": stage.factory.version(),
                    "inputs": inputs,
                    "params": stage.params,
                    "fingerprint": stage.fingerprint,
                    "max_parallel": stage.max_parallel,
                    "max_bad_ratio": stage.max_bad_ratio,
                });
                (stage.name.clone(), settings)
            })
            .collect();
        json!({"name": self.name, "store": self.store, "queue": self.queue, "seed": self.seed, "stages": stages})
    }
}

impl Stage {
    /// How its work is cut into units.
    pub fn split(&self) -> Split {
        self.operator.split()
    }

    /// The output port of this name.
    pub fn output(&self, port: &str) -> Option<&'static Port> {
        self.factory.outputs().iter().find(|output| output.name == port)
    }
}

/// What a stage's output depends on besides the contents of its inputs, as 32 hexadecimal digits.
///
/// Where an input takes any table, its output depends on which one is bound, even if that has no rows.
pub fn fingerprint(factory: &dyn Factory, params: &Value, seed: u64, bindings: &[Binding]) -> String {
    let tables: Vec<Value> = factory
        .outputs()
        .iter()
        .map(|port| match port.payload {
            Payload::Table(table) => json!([port.name, table.name, table.version]),
            Payload::AnyTable => unreachable!("an output is of one table"),
            Payload::Files(kind) => json!([port.name, kind]),
        })
        .collect();
    let mut covered = json!({
        "operator": factory.name(),
        "version": factory.version(),
        "params": params,
        "seed": factory.seeded().then_some(seed),
        "tables": tables,
    });
    let any = |binding: &&Binding| {
        factory.inputs().iter().any(|port| port.name == binding.port.name && port.payload == Payload::AnyTable)
    };
    let bound: Vec<Value> = bindings
        .iter()
        .filter(any)
        .map(|binding| json!([binding.port.name, binding.stage, binding.from, binding.port.payload.to_string()]))
        .collect();
    if !bound.is_empty() {
        covered["bound"] = bound.into();
    }
    let digest = Sha256::digest(covered.to_string());
    digest[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}
