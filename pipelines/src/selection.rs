//! Which stages of a pipeline a command is about: `stage`, `stage+` (and all after it), `+stage` (and all before it).

use std::collections::BTreeSet;

use operators::params::closest;

use crate::Pipeline;

/// A set of stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection(BTreeSet<String>);

/// A selection that names no stage of the pipeline.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("no stage `{stage}`: {hint}")]
pub struct SelectionError {
    stage: String,
    hint: String,
}

impl Selection {
    /// Every stage.
    pub fn all(pipeline: &Pipeline) -> Self {
        Self(pipeline.stages.iter().map(|stage| stage.name.clone()).collect())
    }

    /// The stages that any of the expressions names; all where there is none.
    pub fn parse(pipeline: &Pipeline, expressions: &[String]) -> Result<Self, SelectionError> {
        if expressions.is_empty() {
            return Ok(Self::all(pipeline));
        }
        let mut selected = BTreeSet::new();
        for expression in expressions {
            let (before, rest) = match expression.strip_prefix('+') {
                Some(rest) => (true, rest),
                None => (false, expression.as_str()),
            };
            let (after, name) = match rest.strip_suffix('+') {
                Some(name) => (true, name),
                None => (false, rest),
            };
            if pipeline.stage(name).is_none() {
                let names: Vec<&str> = pipeline.stages.iter().map(|stage| stage.name.as_str()).collect();
                let hint = match closest(name, &names) {
                    Some(meant) => format!("did you mean `{meant}`?"),
                    None => format!("the stages are {}", names.join(", ")),
                };
                return Err(SelectionError { stage: name.to_owned(), hint });
            }
            let mut found = BTreeSet::from([name.to_owned()]);
            if before {
                collect_before(pipeline, name, &mut found);
            }
            let mut downstream = BTreeSet::from([name.to_owned()]);
            if after {
                // Stages stand after what they read from, so one pass finds all.
                for stage in &pipeline.stages {
                    if stage.inputs.iter().any(|binding| downstream.contains(&binding.stage)) {
                        downstream.insert(stage.name.clone());
                    }
                }
            }
            selected.extend(found);
            selected.extend(downstream);
        }
        Ok(Self(selected))
    }

    /// Whether a stage is selected.
    pub fn contains(&self, stage: &str) -> bool {
        self.0.contains(stage)
    }
}

fn collect_before(pipeline: &Pipeline, name: &str, found: &mut BTreeSet<String>) {
    let Some(stage) = pipeline.stage(name) else { return };
    for binding in &stage.inputs {
        if found.insert(binding.stage.clone()) {
            collect_before(pipeline, &binding.stage, found);
        }
    }
}
