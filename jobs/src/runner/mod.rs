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

use operators::ErrorKind;
use store::{Outcome, RunEnd, RunRecord, Store};

use crate::error::CommandError;
use crate::executor::now;
use crate::plan::{Plan, Reason, UnitState, WHOLE, folder_text};
use crate::progress::Display;
use crate::queue::{Ended, Ending, InputUnits, Queue, QueueAddress, UnitJob, run_prefix};
use crate::worker::{Worker, worker_name};

mod fold;
mod signals;

pub(crate) use fold::summary;
pub(crate) use signals::Signals;

/// What is asked for besides the plan.
pub(crate) struct Request {
    /// Where the pipeline's file is, for people.
    pub(crate) path: String,
    /// The selection as it was typed.
    pub(crate) select: Vec<String>,
    /// The run this one goes on with.
    pub(crate) resumes: Option<u64>,
    /// The job queue.
    pub(crate) queue: QueueAddress,
    /// Units that this process does at the same time; 0 leaves all work to others.
    pub(crate) slots: usize,
    /// Units in the queue or at work at the same time, over all workers.
    pub(crate) max_parallel: Option<usize>,
    /// Whether to hand out nothing more after a unit has failed.
    pub(crate) fail_fast: bool,
    /// Whether to say nothing.
    pub(crate) quiet: bool,
}

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
    };
    run(plan, store, request).await
}

/// How often a unit is tried in one run when its errors may pass.
const MAX_ATTEMPTS: u32 = 4;
/// The pause before the second try; doubled for each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
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
pub(crate) async fn run(plan: Plan, store: &Store, request: Request) -> Result<(), CommandError> {
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
    let record = store.begin_run(record).await?;
    let display = Display::new(request.quiet);
    let worker = Worker::new(name.clone(), Arc::clone(&queue), Some(Arc::clone(&display)));
    worker.add_store(store);
    worker.add_run(store, record.clone());
    for slot in 0..request.slots {
        queue.start_worker(operators::Queue::Cpu, &format!("{name}-cpu{slot}"), Arc::<Worker>::clone(&worker));
    }
    if request.slots > 0 {
        queue.start_worker(operators::Queue::Gpu, &format!("{name}-gpu"), Arc::<Worker>::clone(&worker));
    }
    let beating = tokio::spawn(Arc::clone(&worker).beat());
    let mut runner = Runner::new(plan, store.clone(), record, request, Arc::clone(&queue), worker, display);
    let result = runner.go().await;
    beating.abort();
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
    done: u64,
    /// An error that ended the run.
    broken: Option<CommandError>,
}

/// A unit that was handed out.
struct Out {
    unit: usize,
    job: UnitJob,
    since: Instant,
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
            done: 0,
            broken: None,
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
            if !stopped {
                self.hand_out().await;
                self.fold_complete().await;
            }
            // What other workers have in hand when this run ends, they finish or not; the next run looks.
            let waiting = if stopped { self.worker.in_hand() } else { self.out.len() };
            if (waiting == 0 && (stopped || self.ready.is_empty())) || signalled > 1 {
                break;
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

    /// Takes in the result of something the queue was asked. It may be out of reach for a while.
    async fn queue_does(&mut self, result: Result<(), CommandError>) -> bool {
        let Err(error) = result else { return true };
        tracing::warn!(%error, "the job queue is connected to anew");
        let since = Instant::now();
        loop {
            match self.queue.reopen().await {
                Ok(()) => break,
                Err(error) if since.elapsed() > QUEUE_PATIENCE => {
                    self.worker.stop();
                    self.broken.get_or_insert(error);
                    return false;
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        }
        // It may be another database than before: everything is looked for.
        for out in self.out.values_mut() {
            out.since = Instant::now().checked_sub(UNHEARD).unwrap_or(out.since);
        }
        false
    }

    /// Hands out units that have become ready, as many as the queue is to hold.
    async fn hand_out(&mut self) {
        let window = self.request.max_parallel.unwrap_or(WINDOW);
        let mut full: BTreeSet<usize> = BTreeSet::new();
        while self.out.len() < window && self.broken.is_none() {
            let mut ready = self.ready.iter().copied();
            let Some(unit) = ready.find(|unit| !full.contains(&self.plan.units[*unit].stage)) else { break };
            let stage = self.plan.units[unit].stage;
            if !self.plan.selected(unit) || self.plan.record(unit).is_some() || self.failed.contains(&unit) {
                self.ready.remove(&unit);
                continue;
            }
            let limit = self.plan.pipeline.stages[stage].max_parallel;
            if limit.is_some_and(|limit| self.out_of_stage[stage] >= limit) {
                full.insert(stage);
                continue;
            }
            // Its inputs have become known, and with them perhaps that it is done already.
            if matches!(self.plan.units[unit].state, UnitState::Due(Reason::After(_)))
                && let Err(error) = self.plan.look_at(&[unit]).await
            {
                self.stop_with(error.into());
                return;
            }
            self.ready.remove(&unit);
            if self.plan.record(unit).is_some() {
                self.is_done(unit);
                continue;
            }
            if self.announced.insert(stage) {
                let due = self.plan.units_of(stage).filter(|unit| self.plan.record(*unit).is_none()).count();
                self.display.begin_stage(&self.plan.pipeline.stages[stage].name, due as u64);
            }
            self.push(unit, Duration::ZERO).await;
        }
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
            want,
        };
        let place = (job.want.stage.clone(), job.want.partition.clone());
        let pushed = self.queue.push(kind, job.clone(), pause).await;
        self.out.insert(place, Out { unit, job, since: Instant::now() + pause });
        self.out_of_stage[self.plan.units[unit].stage] += 1;
        self.queue_does(pushed).await;
    }

    /// Takes in which units have ended.
    async fn hear(&mut self, url: &str) {
        let ended = match self.queue.take_ended(url, self.record.run).await {
            Ok(ended) => ended,
            Err(error) => {
                self.queue_does(Err(error)).await;
                return;
            }
        };
        for ended in ended {
            self.settle(ended).await;
        }
    }

    /// Takes in how a unit ended.
    async fn settle(&mut self, ended: Ended) {
        let Ended { stage, partition, attempt, ending } = ended;
        let place = (stage, partition);
        let Some(out) = self.out.get(&place) else { return };
        let unit = out.unit;
        let current = out.job.attempt == attempt;
        match ending {
            Ending::Done => self.believe(&place).await,
            // An older try, whose unit has been given to another.
            Ending::Failed { .. } if !current => {}
            Ending::Failed { kind, error, hint } => {
                self.take_back(&place);
                let place = if place.1 == WHOLE { place.0 } else { format!("{}/{}", place.0, place.1) };
                if kind == ErrorKind::Interrupted {
                    // By a worker that had to leave: another takes the unit. If the run itself is ending, nobody does.
                    self.ready.insert(unit);
                    return;
                }
                let tries = self.tries.entry(unit).or_default();
                tries.failed += 1;
                if kind.is_transient() && tries.failed < MAX_ATTEMPTS {
                    let pause = FIRST_PAUSE * 2_u32.pow(tries.failed - 1);
                    self.display.say(&format!("{place}: {error}; trying again in {} s", pause.as_secs()));
                    self.push(unit, pause).await;
                    return;
                }
                self.failed.insert(unit);
                self.display.say(&format!("error: {place}: {error}"));
                if let Some(hint) = hint {
                    self.display.say(&format!("hint: {hint}"));
                }
            }
        }
    }

    /// A unit is said to be done: its record says so, or it is not.
    async fn believe(&mut self, place: &(String, String)) {
        let Some(out) = self.out.get(place) else { return };
        let (unit, want) = (out.unit, out.job.want.clone());
        let known = self.worker.known(&self.store, self.record.run, &want);
        let record = match known {
            Some(record) => Ok(Some(record)),
            None => self.store.unit(&want).await.map(|record| record.map(Arc::new)),
        };
        match record {
            Ok(Some(record)) => {
                self.take_back(place);
                let stage = self.plan.stage(unit).name.clone();
                self.plan.units[unit].state = UnitState::Done(record);
                self.done += 1;
                self.is_done(unit);
                self.display.unit_done(&stage);
            }
            // Looked for again when it has gone unheard for a while.
            Ok(None) => tracing::warn!(stage = place.0, partition = place.1, "a unit was said to be done and is not"),
            Err(error) => tracing::warn!(error = error.chain(), "a unit's record could not be read"),
        }
    }

    /// What follows from a unit being done.
    fn is_done(&mut self, unit: usize) {
        self.unfolded.insert(self.plan.units[unit].stage);
        for reader in self.plan.readers(unit).to_vec() {
            self.missing[reader] -= 1;
            if self.missing[reader] == 0 {
                self.ready.insert(reader);
            }
        }
    }

    fn take_back(&mut self, place: &(String, String)) {
        if let Some(out) = self.out.remove(place) {
            self.out_of_stage[self.plan.units[out.unit].stage] -= 1;
        }
    }

    /// Looks in the store for jobs that neither this process nor the queue knows any more, and pushes them again.
    async fn look_for_unheard(&mut self) {
        let unheard: Vec<((String, String), String)> = self
            .out
            .iter()
            .filter(|(_, out)| out.since.elapsed() >= UNHEARD && !self.worker.has(&out.job.key()))
            .map(|(place, out)| (place.clone(), out.job.key()))
            .collect();
        if unheard.is_empty() {
            return;
        }
        let keys: Vec<String> = unheard.iter().map(|(_, key)| key.clone()).collect();
        let prefix = run_prefix(self.store.url().as_str(), self.record.run);
        let unknown = match self.queue.unknown(&prefix, &keys).await {
            Ok(unknown) => unknown,
            Err(error) => {
                self.queue_does(Err(error)).await;
                return;
            }
        };
        for (place, _) in unheard.into_iter().filter(|(_, key)| unknown.contains(key)) {
            self.believe(&place).await;
            if let Some(out) = self.out.get(&place) {
                let unit = out.unit;
                self.take_back(&place);
                self.push(unit, Duration::ZERO).await;
            }
        }
    }

    /// An error that no unit is to blame for: nothing more is handed out, and what is in hand comes to a safe place.
    fn stop_with(&mut self, error: CommandError) {
        self.worker.stop();
        self.broken.get_or_insert(error);
    }

    async fn end(&mut self, ends: Option<Ends>, began: Instant) -> Result<(), CommandError> {
        let url = self.store.url().to_string();
        let outcome = match ends {
            Some(Ends::Interrupted) => Outcome::Interrupted,
            Some(Ends::Cancelled) => Outcome::Cancelled,
            None if self.failed.is_empty() && self.broken.is_none() => Outcome::Complete,
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
            finished: now(),
            seconds: began.elapsed().as_secs_f64(),
        };
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
