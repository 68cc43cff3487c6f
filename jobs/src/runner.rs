//! Runs what a plan lists.
//!
//! A unit is handed to the queue when everything it reads is done. When all units of a stage are done, its tables are
//! brought in line. What fails is told with its error; units that do not depend on it go on.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use operators::{OperatorError, Queue as Slot};
use store::{Outcome, RunEnd, RunRecord, Store, UnitRecord, fold};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use ulid::Ulid;

use crate::error::CommandError;
use crate::executor::{ReadyUnit, Worker, execute, now};
use crate::plan::{Plan, UnitState};
use crate::progress::Display;
use crate::queue::{Handler, Queue, UnitJob};

/// What is asked for besides the plan.
pub(crate) struct Request {
    /// Where the pipeline's file is, for people.
    pub(crate) path: String,
    /// The selection as it was typed.
    pub(crate) select: Vec<String>,
    /// Whether finished units are done again.
    pub(crate) force: bool,
    /// The run this one goes on with.
    pub(crate) resumes: Option<String>,
    /// The job queue's database.
    pub(crate) queue: PathBuf,
    /// Units done at the same time.
    pub(crate) slots: usize,
    /// Whether to say nothing.
    pub(crate) quiet: bool,
}

/// What `coa run` does after its command line was read; for programs and tests that run pipelines themselves.
///
/// `queue` names the job queue's database.
pub async fn run_plan(plan: Plan, store: &Store, queue: &Path, slots: usize) -> Result<(), CommandError> {
    let request = Request {
        path: String::new(),
        select: Vec::new(),
        force: false,
        resumes: None,
        queue: queue.to_owned(),
        slots,
        quiet: true,
    };
    run(plan, store, request).await
}

/// How often a unit is tried in one run when its errors may pass.
const MAX_ATTEMPTS: u32 = 3;
/// The pause before the second try; doubled for each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Runs the plan. The error tells how many units failed; each failure was told when it happened.
pub(crate) async fn run(mut plan: Plan, store: &Store, request: Request) -> Result<(), CommandError> {
    if let Some((stage, upstream)) = plan.missing_upstream() {
        return Err(CommandError::Usage {
            message: format!("stage `{stage}` reads from `{upstream}`, which is not done"),
            hint: Some(format!("select what comes before it too: --select +{stage}")),
        });
    }
    let run = Ulid::new().to_string();
    let worker_name = format!("{}-{}-{run}", host(), std::process::id());
    let record = RunRecord {
        version: 1,
        run: run.clone(),
        pipeline: plan.pipeline.name.clone(),
        path: request.path,
        text: plan.pipeline.text.clone(),
        seed: plan.pipeline.seed,
        resolved: plan.pipeline.resolved(),
        select: request.select,
        force: request.force,
        resumes: request.resumes,
        worker: worker_name.clone(),
        started: now(),
    };
    store.begin_run(&record).await?;
    if request.force {
        for stage in plan.pipeline.stages.iter().filter(|stage| plan.selection.contains(&stage.name)) {
            store.forget_units(&stage.name, &stage.fingerprint).await?;
        }
    }

    let began = Instant::now();
    let stop = Arc::new(AtomicBool::new(false));
    let display = Display::new(request.quiet);
    let (results, mut finished) = mpsc::unbounded_channel();
    let worker = Worker { store: store.clone(), run: run.clone(), name: worker_name.clone(), stop: Arc::clone(&stop) };
    let desk = Arc::new(Desk {
        worker,
        ready: Mutex::default(),
        results,
        display: Arc::clone(&display),
        handle: Handle::current(),
    });
    let mut queue = Queue::open(&request.queue).await?;
    for slot in 0..request.slots.max(1) {
        let handler: Arc<dyn Handler> = Arc::<Desk>::clone(&desk);
        queue.start_worker(Slot::Cpu.name(), &format!("{worker_name}-cpu{slot}"), handler);
    }
    let handler: Arc<dyn Handler> = Arc::<Desk>::clone(&desk);
    queue.start_worker(Slot::Gpu.name(), &format!("{worker_name}-gpu"), handler);

    let mut state = RunState::new(&plan);
    let mut signals = Signals::new()?;
    display.say(&format!("run {run} of `{}` in {}", plan.pipeline.name, store.url()));
    let mut outcome = Outcome::Complete;
    let mut signalled = 0;
    loop {
        if outcome != Outcome::Interrupted {
            hand_out(&mut plan, &mut state, &desk, &queue, &display).await?;
            fold_complete(&plan, &mut state, &display, store, &run).await?;
        }
        if state.running.is_empty() || signalled > 1 {
            break;
        }
        tokio::select! {
            Some(done) = finished.recv() => settle(&mut plan, &mut state, &desk, done, &display),
            () = signals.next() => {
                stop.store(true, Ordering::Relaxed);
                outcome = Outcome::Interrupted;
                signalled += 1;
                display.say("stopping: units in hand come to a safe place first; once more to leave at once");
            }
        }
    }
    if signalled <= 1 {
        queue.close().await;
    }
    if outcome == Outcome::Complete && !state.failed.is_empty() {
        outcome = Outcome::Failed;
    }
    let blocked = plan.due().count() as u64 - state.failed.len() as u64;
    let end = RunEnd {
        version: 1,
        outcome,
        done: state.done,
        failed: state.failed.len() as u64,
        blocked,
        finished: now(),
        seconds: began.elapsed().as_secs_f64(),
    };
    store.end_run(&run, &end).await?;
    let again = format!("`coa resume --store {}` goes on", shown(store));
    match outcome {
        Outcome::Complete => {
            display.say(&format!("done: {} units in {:.1} s", state.done, end.seconds));
            Ok(())
        }
        Outcome::Interrupted => Err(CommandError::Interrupted(format!("interrupted; {again}"))),
        Outcome::Failed => Err(CommandError::Failed(format!(
            "{} of {} units failed, {blocked} were not tried; {again}",
            end.failed,
            end.failed + end.done + blocked
        ))),
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

/// The queue's database: beside a local store, in the user's state folder for others.
pub(crate) fn queue_path(store: &Store) -> PathBuf {
    match store.local() {
        Some(folder) => folder.join("queue").join("jobs.sqlite"),
        None => {
            let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_else(std::env::temp_dir);
            let state = std::env::var_os("XDG_STATE_HOME").map_or_else(|| home.join(".local/state"), Into::into);
            let name = format!("{:016x}.sqlite", xxhash_rust::xxh3::xxh3_64(store.url().as_str().as_bytes()));
            state.join("coa").join(name)
        }
    }
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String = name.trim().chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    if name.is_empty() { "host".to_owned() } else { name }
}

/// What is known of a run besides its plan.
struct RunState {
    /// Units that may have become ready.
    candidates: Vec<usize>,
    /// Stages that may have become complete.
    unfolded: BTreeSet<usize>,
    running: HashSet<usize>,
    failed: HashSet<usize>,
    attempts: HashMap<usize, u32>,
    /// Stages that had something to do.
    announced: HashSet<usize>,
    done: u64,
}

impl RunState {
    fn new(plan: &Plan) -> Self {
        Self {
            candidates: (0..plan.units.len()).collect(),
            unfolded: (0..plan.pipeline.stages.len()).collect(),
            running: HashSet::new(),
            failed: HashSet::new(),
            attempts: HashMap::new(),
            announced: HashSet::new(),
            done: 0,
        }
    }
}

/// Hands out every unit that has become ready.
async fn hand_out(
    plan: &mut Plan,
    state: &mut RunState,
    desk: &Desk,
    queue: &Queue,
    display: &Arc<Display>,
) -> Result<(), CommandError> {
    let mut candidates: VecDeque<usize> = std::mem::take(&mut state.candidates).into();
    while let Some(unit) = candidates.pop_front() {
        let waiting = plan.record(unit).is_none() && !state.running.contains(&unit) && !state.failed.contains(&unit);
        if !waiting || !plan.selected(unit) || plan.want(unit).is_none() {
            continue;
        }
        // Its inputs have become known, and with them perhaps that it is done already.
        plan.units[unit].state = plan.look(unit);
        let stage = plan.units[unit].stage;
        let Some(ready) = ready(plan, unit) else {
            state.unfolded.insert(stage);
            candidates.extend(plan.readers(unit));
            continue;
        };
        if state.announced.insert(stage) {
            let due = plan.units_of(stage).filter(|unit| plan.record(*unit).is_none()).count();
            display.begin_stage(&plan.pipeline.stages[stage].name, due as u64);
        }
        let attempt = state.attempts.entry(unit).or_insert(0);
        *attempt += 1;
        let pause = if *attempt > 1 { FIRST_PAUSE * 2_u32.pow(*attempt - 2) } else { Duration::ZERO };
        let job = UnitJob {
            version: 1,
            run: desk.worker.run.clone(),
            stage: ready.want.stage.clone(),
            partition: ready.want.partition.clone(),
            attempt: *attempt,
        };
        let slot = ready.factory.queue().name();
        desk.ready().insert((job.stage.clone(), job.partition.clone()), (unit, ready));
        state.running.insert(unit);
        queue.push(slot, job, pause).await?;
    }
    Ok(())
}

/// Brings the tables of every stage that has become complete in line with its units.
async fn fold_complete(
    plan: &Plan,
    state: &mut RunState,
    display: &Arc<Display>,
    store: &Store,
    run: &str,
) -> Result<(), CommandError> {
    for stage in std::mem::take(&mut state.unfolded) {
        let name = &plan.pipeline.stages[stage].name;
        if !plan.selection.contains(name) {
            continue;
        }
        let records: Option<Vec<Arc<UnitRecord>>> =
            plan.units_of(stage).map(|unit| plan.record(unit).cloned()).collect();
        let Some(records) = records else { continue };
        for (port, table) in plan.tables_of(stage) {
            fold(store, name, port, table, run, &records).await?;
        }
        if state.announced.contains(&stage) {
            display.end_stage(name, &summary(&records));
        }
    }
    Ok(())
}

/// `8 units, 4000 rows in, kept 3990, rejected 10`
pub(crate) fn summary(records: &[Arc<UnitRecord>]) -> String {
    let mut parts = Vec::new();
    if records.len() > 1 {
        parts.push(format!("{} units", records.len()));
    }
    let rows_in: u64 = records.iter().flat_map(|record| record.rows_in.values()).sum();
    if rows_in > 0 {
        parts.push(format!("{rows_in} rows in"));
    }
    let first = records.first();
    for table in first.map(|record| record.tables.as_slice()).unwrap_or_default() {
        let rows: u64 = records.iter().map(|record| record.rows(&table.port)).sum();
        parts.push(format!("{} {rows}", table.port));
    }
    for files in first.map(|record| record.files.as_slice()).unwrap_or_default() {
        let count: usize = records
            .iter()
            .flat_map(|record| &record.files)
            .filter(|output| output.port == files.port)
            .map(|output| output.files.len())
            .sum();
        parts.push(format!("{} ({count} files)", files.port));
    }
    parts.join(", ")
}

fn ready(plan: &Plan, unit: usize) -> Option<ReadyUnit> {
    if plan.record(unit).is_some() {
        return None;
    }
    let stage = plan.stage(unit);
    Some(ReadyUnit {
        want: plan.want(unit)?,
        number: plan.units[unit].number,
        factory: stage.factory,
        operator: Arc::clone(&stage.operator),
        params: stage.params.clone(),
        pipeline_seed: plan.pipeline.seed,
        inputs: plan.inputs(unit),
        objects: plan.units[unit].objects.iter().map(|(object, _)| object.clone()).collect(),
    })
}

/// Takes in how a unit ended.
fn settle(plan: &mut Plan, state: &mut RunState, desk: &Desk, finished: Finished, display: &Arc<Display>) {
    let Finished { unit, result } = finished;
    state.running.remove(&unit);
    let stage = plan.stage(unit).name.clone();
    let partition = plan.units[unit].partition.clone();
    desk.ready().remove(&(stage.clone(), partition.clone()));
    match result {
        Ok(record) => {
            plan.units[unit].state = UnitState::Done(record);
            state.done += 1;
            state.candidates.extend(plan.readers(unit));
            state.unfolded.insert(plan.units[unit].stage);
            display.unit_done(&stage);
        }
        Err(error) => {
            let attempts = state.attempts.get(&unit).copied().unwrap_or(1);
            let place = if partition == "all" { stage } else { format!("{stage}/{partition}") };
            if error.kind == operators::ErrorKind::Interrupted {
                return;
            }
            if error.kind.is_transient() && attempts < MAX_ATTEMPTS {
                display.say(&format!("{place}: {}; trying again", error.chain()));
                state.candidates.push(unit);
                return;
            }
            state.failed.insert(unit);
            display.say(&format!("error: {place}: {}", error.chain()));
            if let Some(hint) = &error.hint {
                display.say(&format!("hint: {hint}"));
            }
        }
    }
}

struct Finished {
    unit: usize,
    result: Result<Arc<UnitRecord>, OperatorError>,
}

/// What workers of this process take their units from.
struct Desk {
    worker: Worker,
    ready: Mutex<HashMap<(String, String), (usize, ReadyUnit)>>,
    results: mpsc::UnboundedSender<Finished>,
    display: Arc<Display>,
    handle: Handle,
}

impl Desk {
    fn ready(&self) -> std::sync::MutexGuard<'_, HashMap<(String, String), (usize, ReadyUnit)>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handler for Desk {
    fn handle(&self, job: UnitJob) {
        // A job that a killed run left behind: its unit is this run's business only if this run planned it.
        if job.run != self.worker.run {
            return;
        }
        let Some((unit, ready)) = self.ready().remove(&(job.stage.clone(), job.partition)) else { return };
        let progress = self.display.unit(&job.stage);
        let result = execute(&self.worker, &ready, &progress, &self.handle);
        let _ = self.results.send(Finished { unit, result });
    }
}

/// SIGINT and SIGTERM.
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Self, CommandError> {
        use tokio::signal::unix::{SignalKind, signal};
        let failed = |source| CommandError::Io { what: "cannot listen for signals".to_owned(), source };
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
