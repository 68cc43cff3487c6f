//! `coa status`: runs, stages, units, attempts and errors.

use std::collections::BTreeMap;
use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};
use store::{AttemptEnd, AttemptRecord, RunEnd, RunRecord, Store, UnitRecord};

use super::{StoreArgs, print};
use crate::error::CommandError;
use crate::runner::summary;

/// See the module documentation.
#[derive(Args)]
pub(super) struct Status {
    /// The run; the last one where not given.
    run: Option<String>,
    #[command(flatten)]
    store: StoreArgs,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(super) async fn execute(self) -> Result<(), CommandError> {
        let store = self.store.open().await?;
        let facts = Facts::gather(&store, self.run.as_deref()).await?;
        let text = if self.json {
            serde_json::to_string_pretty(&facts.json()).expect("plain data")
        } else {
            facts.text(&store)
        };
        print(&text);
        Ok(())
    }
}

/// What is known of one run.
struct Facts {
    runs: usize,
    run: RunRecord,
    end: Option<RunEnd>,
    stages: Vec<StageFacts>,
    attempts: Vec<(AttemptRecord, Option<AttemptEnd>)>,
}

struct StageFacts {
    name: String,
    settings: Value,
    units: Vec<Arc<UnitRecord>>,
}

impl Facts {
    async fn gather(store: &Store, wanted: Option<&str>) -> Result<Self, CommandError> {
        let mut all = store.runs().await?;
        let runs = all.len();
        let found = match wanted {
            Some(wanted) => all.into_iter().find(|(run, _)| run.run == wanted),
            None => all.pop(),
        };
        let Some((run, end)) = found else {
            return Err(CommandError::usage(match wanted {
                Some(wanted) => format!("no run `{wanted}` in `{}`", store.url()),
                None => format!("nothing was run in `{}` yet", store.url()),
            }));
        };
        let mut stages = Vec::new();
        for (name, settings) in run.resolved["stages"].as_object().into_iter().flatten() {
            let print = settings["fingerprint"].as_str().unwrap_or_default();
            let mut newest: BTreeMap<String, Arc<UnitRecord>> = BTreeMap::new();
            for unit in store.units(name).await?.into_iter().filter(|unit| unit.fingerprint == print) {
                let entry = newest.entry(unit.partition.clone());
                let unit = Arc::new(unit);
                let kept = entry.or_insert_with(|| Arc::clone(&unit));
                if kept.attempt < unit.attempt {
                    *kept = unit;
                }
            }
            stages.push(StageFacts {
                name: name.clone(),
                settings: settings.clone(),
                units: newest.into_values().collect(),
            });
        }
        let attempts = store.attempts_of(&run.run).await?;
        Ok(Self { runs, run, end, stages, attempts })
    }

    /// Attempts of this run that ended badly, or that have no end and no unit.
    fn troubles(&self, stage: &str) -> Vec<(String, String, Option<String>)> {
        let done = |attempt: &AttemptRecord| {
            let units = self.stages.iter().filter(|stage| stage.name == attempt.stage).flat_map(|stage| &stage.units);
            units.into_iter().any(|unit| unit.unit == attempt.unit)
        };
        self.attempts
            .iter()
            .filter(|(attempt, _)| attempt.stage == stage && !done(attempt))
            .map(|(attempt, end)| match end {
                Some(end) => {
                    (attempt.partition.clone(), format!("{}: {}", end.outcome.name(), end.error), end.hint.clone())
                }
                None => (attempt.partition.clone(), "begun, not finished".to_owned(), None),
            })
            .collect()
    }

    fn text(&self, store: &Store) -> String {
        let outcome = self.end.as_ref().map_or("unfinished (still going, or interrupted)", |end| end.outcome.name());
        let mut lines = vec![
            format!("store     {} ({} runs)", store.url(), self.runs),
            format!("run       {} of `{}`, {}", self.run.run, self.run.pipeline, outcome),
            format!(
                "started   {}{}",
                self.run.started,
                self.end.as_ref().map_or_else(String::new, |end| format!(", {:.1} s", end.seconds))
            ),
            String::new(),
        ];
        for stage in &self.stages {
            let operator = stage.settings["operator"].as_str().unwrap_or_default();
            let state = if stage.units.is_empty() { "nothing done".to_owned() } else { summary(&stage.units) };
            let seconds: f64 = stage.units.iter().map(|unit| unit.seconds).sum();
            lines.push(format!("{:<16} {:<20} {state}, {seconds:.1} s", stage.name, operator));
            for (partition, trouble, hint) in self.troubles(&stage.name) {
                lines.push(format!("{:<16}   {partition}: {trouble}", ""));
                lines.extend(hint.map(|hint| format!("{:<16}   hint: {hint}", "")));
            }
        }
        lines.join("\n")
    }

    fn json(&self) -> Value {
        let stages: Vec<Value> = self
            .stages
            .iter()
            .map(|stage| {
                let units: Vec<Value> = stage
                    .units
                    .iter()
                    .map(|unit| {
                        let rows: BTreeMap<&str, u64> =
                            unit.tables.iter().map(|table| (table.port.as_str(), table.rows)).collect();
                        json!({"partition": unit.partition, "unit": unit.unit, "run": unit.run, "attempt": unit.attempt,
                            "rows_in": unit.rows_in, "rows_out": rows, "counts": unit.counts, "seconds": unit.seconds,
                            "finished": unit.finished})
                    })
                    .collect();
                json!({"stage": stage.name, "settings": stage.settings, "units": units})
            })
            .collect();
        let attempts: Vec<Value> =
            self.attempts.iter().map(|(attempt, end)| json!({"attempt": attempt, "end": end})).collect();
        json!({"run": self.run.run, "pipeline": self.run.pipeline, "started": self.run.started, "end": self.end,
            "settings": self.run.resolved, "stages": stages, "attempts": attempts})
    }
}
