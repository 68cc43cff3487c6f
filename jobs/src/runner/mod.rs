//! Runs what a plan lists.
//!
//! A unit is handed to the queue when everything it reads is done; workers of this process or of others do it. When all
//! units of a stage are done, its tables are brought in line. What fails is told with its error; units that do not depend
//! on it go on.
//!
//! That a unit is done is believed of the store alone. An ended lease only says that it is time to look, and a job that
//! nobody has heard of for a while is looked for in the store and else pushed again, so a queue may lose what it likes.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use store::{Outcome, RunEnd, RunRecord, Store};
use tracing::{Instrument, Span};

use crate::error::CommandError;
use crate::executor::now;
use crate::plan::{Plan, Reason, UnitState, folder_text};
use crate::progress::Display;
use crate::queue::{InputUnits, Queue, QueueAddress, UnitJob, run_prefix};
use crate::telemetry::{Metrics, spans};
use crate::worker::{Worker, worker_name};

mod fold;
mod heard;
mod request;
mod signals;
mod verdict;

pub(crate) use fold::summary;
pub(crate) use request::Request;
pub(crate) use signals::Signals;
use verdict::Verdict;

/// What `coa run` does after its command line was read; for programs and tests that run pipelines themselves.
///
/// `queue` names the job queue's database.
pub async fn run_plan(plan: Plan, store: &Store, queue: &std::path::Path, slots: usize) -> Result<(), CommandError> {
    let request = Request {
        path: String::new(),
        select: Vec::new(),
        resumes: None,
        queue: QueueAddress::Sqlite(queue.to_owned()),
        slots,
        max_parallel: None,
        fail_fast: false,
        quiet: true,
        metrics: None,
    };
    run(plan, store, request).await
}

/// Units in the queue at the same time, if nobody asks for another number: enough for workers never to wait.
const WINDOW: usize = 256;
/// How often other processes' workers are listened for.
const LISTEN: Duration = Duration::from_millis(100);
/// How often the run says that it is alive, and looks whether it was cancelled.
const BEAT: Duration = Duration::from_secs(2);
/// How long a job may go unheard before it is looked for.
const UNHEARD: Duration = Duration::from_secs(5);
/// How long the queue may be out of reach.
const QUEUE_PATIENCE: Duration = Duration::from_secs(120);

/// Runs the plan. The error tells how many units failed; each failure was told when it happened.
pub(crate) async fn run(plan: Plan, store: &Store, mut request: Request) -> Result<(), CommandError> {
    if let Some((stage, upstream)) = plan.missing_upstream() {
        return Err(CommandError::Usage {
            message: format!("stage `{stage}` reads from `{upstream}`, which is not done"),
            hint: Some(format!("select what comes before it too: --select +{stage}")),
        });
    }
    if plan.request.force {
        // Before the run is on record: a resumed run does not force, and what was to be forgotten must be.
        for stage in plan.pipeline.stages.iter().filter(|stage| plan.request.selection.contains(&stage.name)) {
            store.forget_units(&stage.name, &stage.fingerprint).await?;
        }
    }
    if request.queue.is_shared() {
        store.require_create_once().await?;
    }
    let partitions = plan.request.partitions.as_ref();
    let name = worker_name();
    let record = RunRecord {
        version: 1,
        run: 0,
        pipeline: plan.pipeline.name.clone(),
        path: request.path.clone(),
        folder: folder_text(&plan.request.folder),
        text: plan.pipeline.text.clone(),
        seed: plan.pipeline.seed,
        resolved: plan.pipeline.resolved(),
        select: request.select.clone(),
        partitions: partitions.map(|partitions| partitions.ranges().to_vec()),
        time_zone: partitions.map(|partitions| partitions.zone().to_owned()),
        force: plan.request.force,
        resumes: request.resumes,
        worker: name.clone(),
        started: now(),
    };
    let queue = Arc::new(Queue::open(&request.queue).await?);
    if let Some(before) = request.resumes {
        // Or a worker might do again what that run had in hand, beside this one.
        queue.supersede(store.url().as_str(), before).await?;
    }
    let record = store.begin_run(record).await?;
    // From here on `coa gc` sees that a run is at work. What it forgot before, the plan must not go by.
    if let Err(gone) = store.require_units(&plan.done()).await {
        queue.close().await;
        store.end_run(record.run, &RunEnd::not_begun(now())).await?;
        return Err(gone.into());
    }
    let display = Display::new(request.quiet);
    let metrics = Metrics::new();
    let serving = request.metrics.take().map(|listener| listener.serve(Arc::clone(&metrics), Arc::clone(&queue)));
    let worker = Worker::new(name.clone(), Arc::clone(&queue), Some(Arc::clone(&display)), metrics)?;
    worker.add_store(store);
    worker.add_run(store, record.clone());
    for slot in 0..request.slots {
        queue.start_worker(operators::Queue::Cpu, &format!("{name}-cpu{slot}"), Arc::<Worker>::clone(&worker));
    }
    if request.slots > 0 {
        queue.start_worker(operators::Queue::Gpu, &format!("{name}-gpu"), Arc::<Worker>::clone(&worker));
    }
    let beating = tokio::spawn(Arc::clone(&worker).beat());
    let span = spans::run(&record);
    let mut runner = Runner::new(plan, store.clone(), record, request, Arc::clone(&queue), worker, display);
    let result = runner.go().instrument(span.clone()).await;
    spans::run_ended(&span, &result);
    beating.abort();
    if let Some(serving) = serving {
        serving.abort();
    }
    queue.close().await;
    result
}

/// A run on its way.
struct Runner {
    plan: Plan,
    store: Store,
    record: RunRecord,
    request: Request,
    queue: Arc<Queue>,
    worker: Arc<Worker>,
    display: Arc<Display>,
    /// For each unit, how many of the units it reads are not done.
    missing: Vec<usize>,
    /// Units whose inputs are done.
    ready: BTreeSet<usize>,
    /// Units that are queued or at work, by stage and partition.
    out: HashMap<(String, String), Out>,
    /// Units at work or queued, by stage.
    out_of_stage: Vec<usize>,
    failed: HashSet<usize>,
    tries: HashMap<usize, Tries>,
    /// Stages that may have become complete.
    unfolded: BTreeSet<usize>,
    /// Stages that had something to do.
    announced: HashSet<usize>,
    verdicts: Vec<Verdict>,
    /// Spans of stages that have begun and not ended.
    spans: HashMap<usize, Span>,
    done: u64,
    /// An error that ended the run.
    broken: Option<CommandError>,
    /// Since when the queue has done nothing that was asked of it.
    queue_fails_since: Option<Instant>,
}

/// A unit that was handed out.
struct Out {
    unit: usize,
    job: UnitJob,
    since: Instant,
    /// Since when it is said to be with a worker that gives no sign of life.
    silent_since: Option<Instant>,
}

#[derive(Default)]
struct Tries {
    /// Jobs pushed.
    pushed: u32,
    /// Tries that ended with an error that may pass.
    failed: u32,
}

/// Why a run ends before it is through.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    Interrupted,
    Cancelled,
}

impl Runner {
    fn new(
        plan: Plan,
        store: Store,
        record: RunRecord,
        request: Request,
        queue: Arc<Queue>,
        worker: Arc<Worker>,
        display: Arc<Display>,
    ) -> Self {
        let stages = plan.pipeline.stages.len();
        Self {
            missing: (0..plan.units.len()).map(|unit| plan.missing(unit)).collect(),
            ready: (0..plan.units.len()).filter(|unit| plan.missing(*unit) == 0).collect(),
            out: HashMap::new(),
            out_of_stage: vec![0; stages],
            failed: HashSet::new(),
            tries: HashMap::new(),
            unfolded: (0..stages).collect(),
            announced: HashSet::new(),
            verdicts: vec![Verdict::Open; stages],
            spans: HashMap::new(),
            done: 0,
            broken: None,
            queue_fails_since: None,
            plan,
            store,
            record,
            request,
            queue,
            worker,
            display,
        }
    }

    async fn go(&mut self) -> Result<(), CommandError> {
        let began = Instant::now();
        let mut signals = Signals::new()?;
        let url = self.store.url().to_string();
        let name = &self.plan.pipeline.name;
        self.display.say(&format!("run {} of `{name}` in {url}", self.record.run));
        for (stage, passed_over) in &self.plan.passed_over {
            if !passed_over.is_empty() {
                let counts: Vec<String> = passed_over.iter().map(|(reason, n)| format!("{n} {reason}")).collect();
                self.display.say(&format!("{stage}: objects passed over: {}", counts.join(", ")));
            }
        }
        let mut ends: Option<Ends> = None;
        let mut signalled = 0;
        let mut beaten: Option<Instant> = None;
        let mut told_to_wait = false;
        loop {
            if beaten.is_none_or(|at| at.elapsed() >= BEAT) {
                beaten = Some(Instant::now());
                self.queue_does(self.queue.beat_run(&url, self.record.run).await).await;
                if ends.is_none() && self.store.is_cancelled(self.record.run).await.unwrap_or(false) {
                    self.display.say("cancelled: units in hand come to a safe place first");
                    self.worker.stop();
                    ends = Some(Ends::Cancelled);
                }
                self.look_for_unheard().await;
            }
            self.hear(&url).await;
            let stopped =
                ends.is_some() || self.broken.is_some() || (self.request.fail_fast && !self.failed.is_empty());
            let mut moved = false;
            if !stopped {
                moved = self.hand_out().await;
                self.fold_complete().await;
            }
            // What other workers have in hand when this run ends, they finish or not; the next run looks.
            let waiting = if stopped { self.worker.in_hand() } else { self.out.len() };
            if (waiting == 0 && !moved) || signalled > 1 {
                break;
            }
            if waiting == 0 {
                continue;
            }
            if self.request.slots == 0 && !told_to_wait && began.elapsed() > UNHEARD && self.done == 0 {
                told_to_wait = true;
                self.display.say("waiting for workers: `coa worker` with the same queue takes the jobs");
            }
            tokio::select! {
                () = self.worker.dealt.notified() => {}
                () = tokio::time::sleep(LISTEN) => {}
                () = signals.next() => {
                    self.worker.stop();
                    ends = ends.or(Some(Ends::Interrupted));
                    signalled += 1;
                    self.display.say("stopping: units in hand come to a safe place first; once more to leave at once");
                }
            }
        }
        self.hear(&url).await;
        self.fold_rest().await;
        self.end(ends, began).await
    }

    /// Takes in the result of something the queue was asked. It may be out of reach for a while; a full disk will not pass.
    async fn queue_does(&mut self, result: Result<(), CommandError>) -> bool {
        let Err(mut error) = result else {
            self.queue_fails_since = None;
            return true;
        };
        tracing::warn!(%error, "the job queue is connected to anew");
        let since = *self.queue_fails_since.get_or_insert_with(Instant::now);
        loop {
            if error.is_disk_full() || since.elapsed() > QUEUE_PATIENCE {
                self.stop_with(error);
                return false;
            }
            match self.queue.reopen().await {
                Ok(()) => break,
                Err(again) => error = again,
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        // It may be another database than before: everything is looked for.
        for out in self.out.values_mut() {
            out.since = Instant::now().checked_sub(UNHEARD).unwrap_or(out.since);
        }
        false
    }

    /// Hands out units that have become ready, as many as the queue is to hold. False if there was nothing to do.
    async fn hand_out(&mut self) -> bool {
        let window = self.request.max_parallel.unwrap_or(WINDOW);
        // Stages that take no more units for now.
        let mut full: BTreeSet<usize> = BTreeSet::new();
        let mut moved = false;
        while self.out.len() < window && self.broken.is_none() {
            let mut ready = self.ready.iter().copied();
            let Some(unit) = ready.find(|unit| !full.contains(&self.plan.units[*unit].stage)) else { break };
            let stage = self.plan.units[unit].stage;
            if !self.plan.selected(unit) || self.plan.record(unit).is_some() || self.failed.contains(&unit) {
                self.ready.remove(&unit);
                continue;
            }
            let limit = self.plan.pipeline.stages[stage].max_parallel;
            if limit.is_some_and(|limit| self.out_of_stage[stage] >= limit)
                || self.verdict_before(stage) != Verdict::Good
            {
                full.insert(stage);
                continue;
            }
            moved = true;
            // Its inputs have become known, and with them perhaps that it is done already.
            if matches!(self.plan.units[unit].state, UnitState::Due(Reason::After(_)))
                && let Err(error) = self.plan.look_at(&[unit]).await
            {
                self.stop_with(error.into());
                return false;
            }
            self.ready.remove(&unit);
            if self.plan.record(unit).is_some() {
                self.is_done(unit);
                continue;
            }
            if self.announced.insert(stage) {
                let due = self.plan.due().filter(|(unit, _)| self.plan.units[*unit].stage == stage).count();
                let name = &self.plan.pipeline.stages[stage].name;
                self.display.begin_stage(name, due as u64);
                self.spans.insert(stage, spans::stage(&Span::current(), self.record.run, name));
            }
            self.push(unit, Duration::ZERO).await;
        }
        moved
    }

    /// Pushes a unit's job.
    async fn push(&mut self, unit: usize, pause: Duration) {
        let Some(want) = self.plan.want(unit) else { return };
        let stage = self.plan.stage(unit);
        let kind = stage.factory.queue();
        let inputs = stage.inputs.iter().zip(&self.plan.units[unit].reads).map(|(binding, units)| InputUnits {
            port: binding.port.name.to_owned(),
            stage: binding.stage.clone(),
            from: binding.from.to_owned(),
            units: units
                .iter()
                .filter_map(|unit| self.plan.record(*unit))
                .map(|record| (record.fingerprint.clone(), record.partition.clone(), record.inputs.clone()))
                .collect(),
        });
        let inputs: Vec<InputUnits> = inputs.collect();
        for record in self.plan.units[unit].reads.iter().flatten().filter_map(|unit| self.plan.record(*unit)) {
            self.worker.learn(&self.store, self.record.run, record);
        }
        let tries = self.tries.entry(unit).or_default();
        tries.pushed += 1;
        let job = UnitJob {
            version: 1,
            store: self.store.url().to_string(),
            run: self.record.run,
            number: self.plan.units[unit].number,
            objects: self.plan.units[unit].objects.clone(),
            inputs,
            attempt: tries.pushed,
            trace_parent: self.spans.get(&self.plan.units[unit].stage).and_then(spans::trace_parent),
            want,
        };
        let place = (job.want.stage.clone(), job.want.partition.clone());
        let pushed = self.queue.push(kind, job.clone(), pause).await;
        self.out.insert(place, Out { unit, job, since: Instant::now() + pause, silent_since: None });
        self.out_of_stage[self.plan.units[unit].stage] += 1;
        self.queue_does(pushed).await;
    }

    /// An error that no unit is to blame for: nothing more is handed out, and what is in hand comes to a safe place.
    fn stop_with(&mut self, error: CommandError) {
        self.worker.stop();
        self.broken.get_or_insert(error);
    }

    async fn end(&mut self, ends: Option<Ends>, began: Instant) -> Result<(), CommandError> {
        let url = self.store.url().to_string();
        let bad: Vec<String> = self.bad_stages().map(|stage| format!("`{stage}`")).collect();
        let outcome = match ends {
            Some(Ends::Interrupted) => Outcome::Interrupted,
            Some(Ends::Cancelled) => Outcome::Cancelled,
            None if self.failed.is_empty() && self.broken.is_none() && bad.is_empty() => Outcome::Complete,
            None => Outcome::Failed,
        };
        let blocked = self.plan.due().count() as u64 - self.failed.len() as u64;
        let failed = self.failed.len() as u64;
        let end = RunEnd {
            version: 1,
            outcome,
            done: self.done,
            failed,
            blocked,
            stages: self.stage_ends(),
            finished: now(),
            seconds: began.elapsed().as_secs_f64(),
        };
        for stage in self.spans.keys().copied().collect::<Vec<_>>() {
            self.end_span(stage);
        }
        spans::ended(&Span::current(), outcome.name());
        let ended = self.store.end_run(self.record.run, &end).await;
        let _ = self.queue.forget(&run_prefix(&url, self.record.run)).await;
        let _ = self.queue.forget_run(&url, self.record.run).await;
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        ended?;
        let again = format!("`coa resume --store {}` goes on", shown(&self.store));
        match outcome {
            Outcome::Complete => {
                self.display.say(&format!("done: {} units in {:.1} s", self.done, end.seconds));
                Ok(())
            }
            Outcome::Interrupted => Err(CommandError::Interrupted(format!("interrupted; {again}"))),
            Outcome::Cancelled => Err(CommandError::Interrupted(format!("cancelled; {again}"))),
            Outcome::Failed if failed == 0 => {
                let bad = bad.join(", ");
                Err(CommandError::Failed(format!("too much was quarantined in {bad}; {blocked} units were not tried")))
            }
            Outcome::Failed => {
                let all = failed + self.done + blocked;
                Err(CommandError::Failed(format!("{failed} of {all} units failed, {blocked} were not tried; {again}")))
            }
        }
    }
}

/// The store's address as a person would type it.
fn shown(store: &Store) -> String {
    match store.local() {
        Some(path) => {
            let here = std::env::current_dir().unwrap_or_default();
            path.strip_prefix(&here).unwrap_or(path).display().to_string()
        }
        None => store.url().to_string(),
    }
}
