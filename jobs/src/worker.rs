//! A worker: takes jobs from a queue and does them, for any run of any store it can reach.
//!
//! A job says what its unit reads; the run's record in the store says with which operator and parameters. While a unit is
//! being done its lease is renewed, with how far it is; a cancelled run or a worker that is asked to leave sets the unit's
//! stop flag, and the operator comes to a safe place.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use operators::{ErrorKind, Factory, OperatorError, Port, ProgressSink};
use pipelines::{Binding, fingerprint};
use serde_json::Value;
use store::{InputPort, RunRecord, Store, UnitRecord, UnitWant};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::error::CommandError;
use crate::executor::{ReadyUnit, execute};
use crate::progress::{Display, UnitProgress};
use crate::queue::{Ended, Ending, Handler, Progress, Queue, UnitJob};
use crate::registry;
use crate::scratch::Scratch;
use crate::telemetry::{Metrics, spans};

/// Takes jobs and does them.
pub(crate) struct Worker {
    name: String,
    queue: Arc<Queue>,
    handle: Handle,
    stores: Mutex<HashMap<String, Store>>,
    runs: Mutex<HashMap<(String, u64), Arc<RunContext>>>,
    hand: Mutex<HashMap<String, Arc<InHand>>>,
    /// Endings that the queue did not take.
    untold: Mutex<Vec<(UnitJob, Ending)>>,
    stopping: AtomicBool,
    scratch: Scratch,
    /// Told whenever a job was dealt with.
    pub(crate) dealt: Notify,
    display: Option<Arc<Display>>,
    metrics: Arc<Metrics>,
}

/// What is known of a run whose jobs come along.
struct RunContext {
    store: Store,
    record: RunRecord,
    cancelled: AtomicBool,
    /// Records that were read or made: what comes next reads them again.
    units: Mutex<HashMap<UnitWant, Arc<UnitRecord>>>,
}

/// A job that is being done.
struct InHand {
    job: UnitJob,
    context: Mutex<Option<Arc<RunContext>>>,
    stop: AtomicBool,
    progress: Mutex<Progress>,
    shown: Option<UnitProgress>,
}

/// How often leases are renewed.
const BEAT: Duration = Duration::from_secs(1);
/// A run whose runner was not heard of for this long is not worked for.
const RUN_DEAD: Duration = Duration::from_secs(60);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Worker {
    /// A worker of this name; `display` shows its units, `metrics` count them.
    pub(crate) fn new(
        name: String,
        queue: Arc<Queue>,
        display: Option<Arc<Display>>,
        metrics: Arc<Metrics>,
    ) -> Result<Arc<Self>, CommandError> {
        let scratch = Scratch::open().map_err(|source| CommandError::Io {
            what: format!("no temporary files can be made in `{}` (TMPDIR)", std::env::temp_dir().display()),
            source,
        })?;
        Ok(Arc::new(Self {
            name,
            queue,
            handle: Handle::current(),
            stores: Mutex::default(),
            runs: Mutex::default(),
            hand: Mutex::default(),
            untold: Mutex::default(),
            stopping: AtomicBool::new(false),
            scratch,
            dealt: Notify::new(),
            display,
            metrics,
        }))
    }

    /// A store that is open already.
    pub(crate) fn add_store(&self, store: &Store) {
        lock(&self.stores).insert(store.url().to_string(), store.clone());
    }

    /// Asks all units in hand to come to a safe place; jobs that come in are put back.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        for job in lock(&self.hand).values() {
            job.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Number of units in hand.
    pub(crate) fn in_hand(&self) -> usize {
        lock(&self.hand).len()
    }

    /// Endings of a run's units that the queue did not take.
    pub(crate) fn take_untold(&self, store: &str, run: u64) -> Vec<Ended> {
        let is_of_run = |(job, _): &mut (UnitJob, Ending)| job.store == store && job.run == run;
        let untold = lock(&self.untold).extract_if(.., is_of_run).collect::<Vec<_>>();
        let ended = untold.into_iter().map(|(job, ending)| Ended {
            stage: job.want.stage,
            partition: job.want.partition,
            attempt: job.attempt,
            ending,
        });
        ended.collect()
    }

    /// Whether a job is in hand, by its key.
    pub(crate) fn has(&self, key: &str) -> bool {
        lock(&self.hand).contains_key(key)
    }

    /// Renews leases and looks for cancelled runs, until dropped.
    pub(crate) async fn beat(self: Arc<Self>) {
        loop {
            tokio::time::sleep(BEAT).await;
            let hand: Vec<Arc<InHand>> = lock(&self.hand).values().cloned().collect();
            let runs: Vec<Arc<RunContext>> = {
                let all = hand.iter().filter_map(|job| lock(&job.context).clone());
                let mut by_run: HashMap<(String, u64), Arc<RunContext>> = HashMap::new();
                by_run.extend(all.map(|run| ((run.store.url().to_string(), run.record.run), run)));
                by_run.into_values().collect()
            };
            for run in runs {
                if run.store.is_cancelled(run.record.run).await.unwrap_or(false) {
                    run.cancelled.store(true, Ordering::Relaxed);
                }
            }
            for job in hand {
                if lock(&job.context).as_ref().is_some_and(|run| run.cancelled.load(Ordering::Relaxed)) {
                    job.stop.store(true, Ordering::Relaxed);
                }
                let progress = lock(&job.progress).clone();
                if let Err(error) = self.queue.beat(&job.job, &self.name, &progress).await {
                    tracing::warn!(%error, "a lease could not be renewed");
                }
            }
        }
    }

    /// The record of a unit of a run that this worker knows.
    pub(crate) fn known(&self, store: &Store, run: u64, want: &UnitWant) -> Option<Arc<UnitRecord>> {
        let context = lock(&self.runs).get(&(store.url().to_string(), run)).cloned()?;
        lock(&context.units).get(want).cloned()
    }

    /// Tells this worker of a unit that is done.
    pub(crate) fn learn(&self, store: &Store, run: u64, record: &Arc<UnitRecord>) {
        if let Some(context) = lock(&self.runs).get(&(store.url().to_string(), run)) {
            lock(&context.units).insert(record.want(), Arc::clone(record));
        }
    }

    /// Tells this worker of a run it is to work for.
    pub(crate) fn add_run(&self, store: &Store, record: RunRecord) {
        let key = (store.url().to_string(), record.run);
        let context =
            RunContext { store: store.clone(), record, cancelled: AtomicBool::new(false), units: Mutex::default() };
        lock(&self.runs).insert(key, Arc::new(context));
    }

    fn context(&self, job: &UnitJob) -> Result<Option<Arc<RunContext>>, OperatorError> {
        let key = (job.store.clone(), job.run);
        if let Some(context) = lock(&self.runs).get(&key) {
            return Ok(Some(Arc::clone(context)));
        }
        let known = lock(&self.stores).get(&job.store).cloned();
        let store = match known {
            Some(store) => store,
            None => {
                let store = self.handle.block_on(Store::open(&job.store))?;
                // Others work on it too.
                self.handle.block_on(store.require_create_once())?;
                self.add_store(&store);
                store
            }
        };
        let Some((record, end)) = self.handle.block_on(store.run(job.run))? else {
            return Err(OperatorError::input(format!("`{}` has no run {}", job.store, job.run)));
        };
        if end.is_some() || self.handle.block_on(store.is_cancelled(job.run))? {
            return Ok(None);
        }
        self.add_run(&store, record);
        Ok(lock(&self.runs).get(&key).cloned())
    }

    /// Does a job. `None` where nobody waits for it any more.
    fn deal(&self, hand: &InHand) -> Option<Ending> {
        let job = &hand.job;
        let result = (|| -> Result<Option<Arc<UnitRecord>>, OperatorError> {
            let Some(context) = self.context(job)? else { return Ok(None) };
            *lock(&hand.context) = Some(Arc::clone(&context));
            if self.stopping.load(Ordering::Relaxed) || context.cancelled.load(Ordering::Relaxed) {
                return Err(OperatorError::interrupted());
            }
            if let Some(record) = self.handle.block_on(context.store.unit(&job.want))? {
                return Ok(Some(Arc::new(record)));
            }
            let unit = self.ready(job, &context)?;
            let record = self.attempt(&unit, hand)?;
            lock(&context.units).insert(job.want.clone(), Arc::clone(&record));
            Ok(Some(record))
        })();
        match result {
            Ok(Some(_)) => Some(Ending::Done),
            Ok(None) => None,
            Err(error) => Some(Ending::from(&error)),
        }
    }

    /// Makes an attempt at a unit, and counts it.
    fn attempt(&self, unit: &ReadyUnit, hand: &InHand) -> Result<Arc<UnitRecord>, OperatorError> {
        let work = self.metrics.begin(&unit.want.stage, hand.job.attempt > 1);
        let result = execute(unit, &self.name, hand, &hand.stop, &self.handle, &self.scratch);
        match &result {
            Ok(record) if record.worker == self.name => work.done(record),
            Ok(_) => work.gave_way(),
            Err(error) => work.failed(error),
        }
        result
    }

    /// What a job needs, found in the store.
    fn ready(&self, job: &UnitJob, context: &RunContext) -> Result<ReadyUnit, OperatorError> {
        let settings = &context.record.resolved["stages"][&job.want.stage];
        let operator = settings["operator"].as_str().unwrap_or_default();
        let factory: Option<&'static dyn Factory> = registry().into_iter().find(|factory| factory.name() == operator);
        let mismatch = || {
            OperatorError::environment(format!(
                "this worker is of another build than the run: it has no `{operator}` with the same meaning"
            ))
            .hint("run the same version of coa everywhere")
        };
        let factory = factory.ok_or_else(mismatch)?;
        let params: Value = settings["params"].clone();
        let seed = context.record.seed;
        let mut bindings = Vec::new();
        for input in &job.inputs {
            let port = factory.inputs().iter().find(|port| port.name == input.port).ok_or_else(mismatch)?;
            let from = &context.record.resolved["stages"][&input.stage]["operator"];
            let from = registry().into_iter().find(|factory| from.as_str() == Some(factory.name()));
            let from = from.ok_or_else(mismatch)?;
            let output = from.outputs().iter().find(|output| output.name == input.from).ok_or_else(mismatch)?;
            let port = Port { payload: output.payload, ..*port };
            bindings.push(Binding { port, stage: input.stage.clone(), from: output.name });
        }
        if fingerprint(factory, &params, seed, &bindings) != job.want.fingerprint {
            return Err(mismatch());
        }
        let operator = factory
            .rebuild(&params)
            .map_err(|error| OperatorError::internal(format!("stored parameters cannot be read: {error}")))?;
        let mut inputs = Vec::new();
        for (input, binding) in job.inputs.iter().zip(&bindings) {
            inputs.push(InputPort {
                port: input.port.clone(),
                payload: binding.port.payload,
                stage: input.stage.clone(),
                from: input.from.clone(),
                records: self.records(context, input.wants().collect())?,
            });
        }
        Ok(ReadyUnit {
            store: context.store.clone(),
            run: job.run,
            want: job.want.clone(),
            number: job.number,
            factory,
            operator,
            params,
            pipeline_seed: seed,
            inputs,
            objects: job.objects.clone(),
        })
    }

    fn records(&self, context: &RunContext, wants: Vec<UnitWant>) -> Result<Vec<Arc<UnitRecord>>, OperatorError> {
        let unread: Vec<UnitWant> = {
            let known = lock(&context.units);
            wants.iter().filter(|want| !known.contains_key(*want)).cloned().collect()
        };
        let read = self.handle.block_on(context.store.unit_records(&unread))?;
        let mut known = lock(&context.units);
        known.extend(read.into_iter().map(|record| (record.want(), Arc::new(record))));
        Ok(wants.iter().map(|want| Arc::clone(&known[want])).collect())
    }

    /// Whether anybody waits for a job of a run that is not this process's own.
    fn is_wanted(&self, job: &UnitJob) -> bool {
        let own = lock(&self.runs).contains_key(&(job.store.clone(), job.run));
        own || self.handle.block_on(self.queue.is_run_alive(&job.store, job.run, RUN_DEAD)).unwrap_or(true)
    }

    /// Writes an ending down, trying for a while: a database may be restarting.
    fn tell(&self, job: &UnitJob, ending: &Ending) {
        for pause in [0, 100, 500, 2000, 5000] {
            std::thread::sleep(Duration::from_millis(pause));
            match self.handle.block_on(self.queue.end(job, &self.name, ending)) {
                Ok(()) => return,
                Err(error) => tracing::warn!(%error, key = job.key(), "the end of a unit could not be told"),
            }
        }
        // A runner in another process asks the store about jobs it hears nothing of.
        lock(&self.untold).push((job.clone(), ending.clone()));
    }
}

impl Handler for Worker {
    fn handle(&self, job: UnitJob) {
        if !self.is_wanted(&job) {
            return;
        }
        if let Err(error) = self.handle.block_on(self.queue.begin(&job, &self.name)) {
            tracing::warn!(%error, key = job.key(), "a unit is done without a lease");
        }
        let span = spans::unit(&job, &self.name);
        let _within = span.enter();
        let key = job.key();
        let hand = Arc::new(InHand {
            shown: self.display.as_ref().map(|display| display.unit(&job.want.stage)),
            job,
            context: Mutex::default(),
            stop: AtomicBool::new(self.stopping.load(Ordering::Relaxed)),
            progress: Mutex::default(),
        });
        lock(&self.hand).insert(key.clone(), Arc::clone(&hand));
        // A panic outside of the operator must not leave the runner waiting.
        let ending = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.deal(&hand)));
        let ending = ending.unwrap_or_else(|_| Some(Ending::from(&OperatorError::internal("the worker panicked"))));
        if let Some(ending) = ending {
            match &ending {
                Ending::Done => spans::ended(&span, "done"),
                Ending::Failed { kind: ErrorKind::Interrupted, .. } => spans::ended(&span, "interrupted"),
                Ending::Failed { kind, error, .. } => spans::failed(&span, kind.name(), error.clone()),
            }
            self.tell(&hand.job, &ending);
        }
        lock(&self.hand).remove(&key);
        self.dealt.notify_one();
    }

    fn give_up(&self, job: UnitJob, error: std::io::Error) {
        let error = OperatorError::new(ErrorKind::Storage, format!("no thread could be had for a unit: {error}"));
        let (queue, name) = (Arc::clone(&self.queue), self.name.clone());
        self.handle.spawn(async move {
            let _ = queue.end(&job, &name, &Ending::from(&error)).await;
        });
    }
}

impl ProgressSink for InHand {
    fn begin(&self, total: Option<u64>, unit: &'static str) {
        *lock(&self.progress) = Progress { done: 0, total, unit: unit.to_owned(), note: String::new() };
        if let Some(shown) = &self.shown {
            shown.begin(total, unit);
        }
    }

    fn at(&self, done: u64, note: &str) {
        {
            let mut progress = lock(&self.progress);
            progress.done = done;
            if progress.note != note {
                progress.note = note.to_owned();
            }
        }
        if let Some(shown) = &self.shown {
            shown.at(done, note);
        }
    }
}

/// What this process is called among workers: unique, or a restart would be refused until the last one has aged.
pub(crate) fn worker_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    let host = if host.is_empty() { "host".to_owned() } else { host };
    format!("{host}-{}-{}", std::process::id(), ulid::Ulid::new())
}
