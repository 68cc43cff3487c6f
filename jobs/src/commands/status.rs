//! `coa status`: a run, its stages, what is being worked on, what failed and why.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use store::{AttemptEnd, RunEnd, RunRecord, Store, UnitRecord};

use super::watch::{self, seconds};
use super::why::{Reasons, reasons, told};
use super::{QueueArgs, StoreArgs, print};
use crate::error::CommandError;
use crate::queue::{LeaseView, Queue};
use crate::runner::summary;

/// See the module documentation.
#[derive(Args)]
pub(super) struct Status {
    /// The run; the last one where not given.
    run: Option<u64>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    queue: QueueArgs,
    /// As JSON.
    #[arg(long)]
    json: bool,
    /// Show it again and again, until the run has ended, and end as the run did. Looks every 2 seconds, or as many as
    /// are given.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = seconds,
        conflicts_with = "json")]
    watch: Option<Duration>,
}

impl Status {
    pub(super) async fn execute(self) -> Result<(), CommandError> {
        let store = self.store.open().await?;
        if let Some(every) = self.watch {
            return watch::watch(&store, self.run, &self.queue, every).await;
        }
        let (run, end) = find(&store, self.run).await?;
        let queue = open_queue(&store, &run, &self.queue).await;
        let facts = Facts::gather(&store, run, end, queue.as_ref(), Why::Told).await?;
        let text = if self.json {
            serde_json::to_string_pretty(&facts.json()).expect("plain data")
        } else {
            facts.text(&store, Times::Told)
        };
        print(&text);
        Ok(())
    }
}

/// A run, or the last one, and how it ended.
pub(super) async fn find(store: &Store, wanted: Option<u64>) -> Result<(RunRecord, Option<RunEnd>), CommandError> {
    let found = match wanted {
        Some(wanted) => store.run(wanted).await?,
        None => store.last_run().await?,
    };
    found.ok_or_else(|| {
        CommandError::usage(match wanted {
            Some(wanted) => format!("no run {wanted} in `{}`", store.url()),
            None => format!("nothing was run in `{}` yet", store.url()),
        })
    })
}

/// The queue of a run, where it can be seen from here. Progress is for those who can; the rest stands in the store.
pub(super) async fn open_queue(store: &Store, run: &RunRecord, queue: &QueueArgs) -> Option<Queue> {
    match Queue::open_existing(&queue.address(store, run.resolved["queue"].as_str())).await {
        Ok(queue) => queue,
        Err(error) => {
            tracing::warn!(%error, "what is being worked on is not known");
            None
        }
    }
}

/// Whether to find out why units were done: that reads the records of all units.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    Told,
    LeftOut,
}

/// Whether to tell times that go on while nothing else happens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Times {
    Told,
    LeftOut,
}

/// What is known of one run.
pub(super) struct Facts {
    run: RunRecord,
    end: Option<RunEnd>,
    stages: Vec<StageFacts>,
    at_work: Vec<LeaseView>,
}

struct StageFacts {
    name: String,
    settings: Value,
    /// Partitions that are done with the run's settings.
    done: usize,
    /// The units that the tables show, where they were done with the run's settings.
    shown: Vec<Arc<UnitRecord>>,
    /// Partitions that the tables show and that were done with other settings.
    outdated: usize,
    /// Why the units that are shown were done by the run, or did not have to be.
    reasons: Reasons,
    /// Partitions that were tried and are not done, with how the last attempt ended.
    troubles: Vec<(String, Option<AttemptEnd>)>,
}

impl Facts {
    /// Of a run that has ended or not; `queue` is where its units are handed out.
    pub(super) async fn gather(
        store: &Store,
        run: RunRecord,
        end: Option<RunEnd>,
        queue: Option<&Queue>,
        why: Why,
    ) -> Result<Self, CommandError> {
        let mut stages = Vec::new();
        let mut by_stage: HashMap<String, Vec<UnitRecord>> = HashMap::new();
        if why == Why::Told {
            for unit in store.all_units().await? {
                by_stage.entry(unit.stage.clone()).or_default().push(unit);
            }
        }
        for (name, settings) in run.resolved["stages"].as_object().into_iter().flatten() {
            let mut stage = StageFacts::gather(store, name, settings).await?;
            if why == Why::Told {
                let all = by_stage.get(name).map(Vec::as_slice).unwrap_or_default();
                stage.reasons = reasons(&run, stage.shown.iter().map(Arc::as_ref), all);
            }
            stages.push(stage);
        }
        let at_work = match queue {
            Some(queue) => queue.at_work(store.url().as_str()).await.unwrap_or_default(),
            None => Vec::new(),
        };
        let at_work = at_work.into_iter().filter(|lease| lease.run == run.run).collect();
        Ok(Self { run, end, stages, at_work })
    }

    pub(super) fn text(&self, store: &Store, times: Times) -> String {
        let outcome = self.end.as_ref().map_or("unfinished (still going, or it died)", |end| end.outcome.name());
        let mut lines = vec![
            format!("store     {}", store.url()),
            format!("run       {} of `{}`, {outcome}", self.run.run, self.run.pipeline),
            format!(
                "started   {}{}",
                self.run.started,
                self.end.as_ref().map_or_else(String::new, |end| format!(", {:.1} s", end.seconds))
            ),
        ];
        if let Some(partitions) = &self.run.partitions {
            let zone = self.run.time_zone.as_deref().unwrap_or("UTC");
            lines.push(format!("about     {} ({zone})", partitions.join(", ")));
        }
        lines.push(String::new());
        for stage in &self.stages {
            let operator = stage.settings["operator"].as_str().unwrap_or_default();
            let ended = self.end.as_ref().and_then(|end| end.stages.get(&stage.name));
            let state = match ended {
                Some(end) => format!("{}: {}", end.outcome.name(), stage.state()),
                None => stage.state(),
            };
            lines.push(format!("{:<16} {:<20} {state}", stage.name, operator));
            if !stage.reasons.is_empty() {
                lines.push(format!("{:<16}   {}", "", told(&stage.reasons)));
            }
            for lease in self.at_work.iter().filter(|lease| lease.stage == stage.name) {
                lines.push(format!("{:<16}   {}", "", at_work(lease, times)));
            }
            for (partition, end) in &stage.troubles {
                let running = self.at_work.iter().any(|l| l.stage == stage.name && l.partition == *partition);
                match end {
                    Some(end) => {
                        lines.push(format!("{:<16}   {partition}: {}: {}", "", end.outcome.name(), end.error));
                        lines.extend(end.hint.as_ref().map(|hint| format!("{:<16}   hint: {hint}", "")));
                    }
                    None if running => {}
                    None => lines.push(format!("{:<16}   {partition}: begun, not finished", "")),
                }
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
                    .shown
                    .iter()
                    .map(|unit| {
                        let rows: Value =
                            unit.tables.iter().map(|table| (table.port.clone(), Value::from(table.rows))).collect();
                        json!({"partition": unit.partition, "unit": unit.unit, "run": unit.run, "attempt": unit.attempt,
                            "rows_in": unit.rows_in, "rows_out": rows, "counts": unit.counts, "seconds": unit.seconds,
                            "finished": unit.finished})
                    })
                    .collect();
                let troubles: Vec<Value> =
                    stage.troubles.iter().map(|(part, end)| json!({"partition": part, "end": end})).collect();
                json!({"stage": stage.name, "settings": stage.settings, "done": stage.done, "units": units,
                    "outdated": stage.outdated, "why": stage.reasons, "not_done": troubles})
            })
            .collect();
        let at_work: Vec<Value> = self
            .at_work
            .iter()
            .map(|lease| {
                let progress = &lease.progress;
                json!({"stage": lease.stage, "partition": lease.partition, "attempt": lease.attempt,
                    "worker": lease.worker, "done": progress.done, "total": progress.total, "unit": progress.unit,
                    "note": progress.note, "running_for": lease.running_for, "silent_for": lease.silent_for})
            })
            .collect();
        json!({"run": self.run.run, "pipeline": self.run.pipeline, "started": self.run.started, "end": self.end,
            "partitions": self.run.partitions, "time_zone": self.run.time_zone, "settings": self.run.resolved,
            "stages": stages, "at_work": at_work})
    }
}

impl StageFacts {
    async fn gather(store: &Store, name: &str, settings: &Value) -> Result<Self, CommandError> {
        let print = settings["fingerprint"].as_str().unwrap_or_default();
        let done: BTreeSet<String> = store.done_partitions(name, print).await?;
        let (shown, outdated): (Vec<_>, Vec<_>) =
            store.current_units(name).await?.into_iter().partition(|unit| unit.fingerprint == print);
        let last = store.last_attempts(name, print).await?;
        let mut troubles: Vec<(String, Option<AttemptEnd>)> = last
            .into_iter()
            .filter(|(want, _)| !done.contains(&want.partition))
            .map(|(want, (_, end))| (want.partition, end))
            .collect();
        troubles.sort_by(|a, b| a.0.cmp(&b.0));
        let outdated = outdated.len();
        let (name, settings, done, reasons) = (name.to_owned(), settings.clone(), done.len(), Reasons::new());
        Ok(Self { name, settings, done, shown, outdated, reasons, troubles })
    }

    fn state(&self) -> String {
        let failed = |end: &Option<AttemptEnd>| end.as_ref().is_some_and(|end| end.outcome == store::Outcome::Failed);
        let failures = self.troubles.iter().filter(|(_, end)| failed(end)).count();
        let mut parts = Vec::new();
        if self.shown.is_empty() {
            parts.push(if self.done == 0 { "nothing done".to_owned() } else { format!("{} units done", self.done) });
        } else {
            parts.push(summary(&self.shown));
            if self.done > self.shown.len() {
                parts.push(format!("{} done and not shown yet", self.done - self.shown.len()));
            }
            let seconds: f64 = self.shown.iter().map(|unit| unit.seconds).sum();
            parts.push(format!("{seconds:.1} s"));
        }
        if failures > 0 {
            parts.push(format!("{failures} failed"));
        }
        if self.outdated > 0 {
            parts.push(format!("{} shown as they were before", self.outdated));
        }
        parts.join(", ")
    }
}

/// `part-1: 120/450 steps, loss 0.84, 12 s on host-7-…`
fn at_work(lease: &LeaseView, times: Times) -> String {
    let progress = &lease.progress;
    let mut text = format!("{}: ", lease.partition);
    match (progress.total, progress.unit.as_str()) {
        (_, "") => text.push_str("begun"),
        (Some(total), unit) => text.push_str(&format!("{}/{total} {unit}", progress.done)),
        (None, unit) => text.push_str(&format!("{} {unit}", progress.done)),
    }
    if !progress.note.is_empty() {
        text.push_str(&format!(", {}", progress.note));
    }
    if times == Times::LeftOut {
        return text;
    }
    text.push_str(&format!(", {:.0} s on {}", lease.running_for, lease.worker));
    if lease.silent_for > 10.0 {
        text.push_str(&format!(" (not heard of for {:.0} s)", lease.silent_for));
    }
    text
}
