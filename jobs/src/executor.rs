//! Does one unit, on a thread of its own.
//!
//! The attempt is recorded before its first byte; its output is put into the store when the operator has returned; the
//! unit's record, created last, makes it count. A panic is an error like any other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use chrono::{SecondsFormat, Utc};
use operators::{ErrorKind, Factory, OperatorError, ProgressSink, Runnable, SourceObject, UnitContext};
use serde_json::Value;
use store::{
    AttemptEnd, AttemptIo, AttemptRecord, Created, InputPort, ObjectRead, Outcome, PortRead, Store, UnitPlace,
    UnitRead, UnitRecord, UnitWant,
};
use tokio::runtime::Handle;
use ulid::Ulid;

use crate::scratch::{Scratch, explain};
use crate::telemetry::spans;

/// A unit whose inputs are done, with everything needed to do it.
pub(crate) struct ReadyUnit {
    pub(crate) store: Store,
    pub(crate) run: u64,
    pub(crate) want: UnitWant,
    pub(crate) number: u32,
    pub(crate) factory: &'static dyn Factory,
    pub(crate) operator: Box<dyn Runnable>,
    pub(crate) params: Value,
    pub(crate) pipeline_seed: u64,
    pub(crate) inputs: Vec<InputPort>,
    pub(crate) objects: Vec<SourceObject>,
}

/// Attempts in a row that may end without a word before the unit counts as failed.
const SILENT_ATTEMPTS: usize = 5;

/// The time as tables show it.
pub(crate) fn now() -> String {
    Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Does a unit; must not be called on a thread of the runtime.
pub(crate) fn execute(
    unit: &ReadyUnit,
    worker: &str,
    progress: &dyn ProgressSink,
    stop: &AtomicBool,
    handle: &Handle,
    scratch: &Scratch,
) -> Result<Arc<UnitRecord>, OperatorError> {
    let attempt = AttemptRecord {
        version: 1,
        attempt: Ulid::new().to_string(),
        number: 0,
        want: unit.want.clone(),
        run: unit.run,
        worker: worker.to_owned(),
        started: now(),
    };
    let attempt = handle.block_on(unit.store.begin_attempt(attempt))?;
    spans::attempt(&attempt.attempt);
    let result = catch_unwind(AssertUnwindSafe(|| attempt_unit(unit, &attempt, progress, stop, handle, scratch)));
    let error = match result {
        Ok(Ok(record)) => return Ok(record),
        Ok(Err(error)) => explain(error, scratch.place()),
        Err(panic) => {
            let message = panic.downcast_ref::<String>().cloned();
            let message = message.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            OperatorError::internal(format!("the operator panicked: {}", message.unwrap_or_default()))
        }
    };
    let outcome = match error.kind {
        ErrorKind::Interrupted => Outcome::Interrupted,
        _ => Outcome::Failed,
    };
    let end = AttemptEnd {
        version: 1,
        outcome,
        kind: error.kind.name().to_owned(),
        error: error.chain(),
        hint: error.hint.clone(),
        finished: now(),
    };
    // The attempt's own error says more than one about writing it down.
    if let Err(unwritten) = handle.block_on(unit.store.end_attempt(&attempt, &end)) {
        tracing::warn!(stage = unit.want.stage, error = unwritten.chain(), "the failure could not be recorded");
    }
    Err(error)
}

fn attempt_unit(
    unit: &ReadyUnit,
    attempt: &AttemptRecord,
    progress: &dyn ProgressSink,
    stop: &AtomicBool,
    handle: &Handle,
    scratch: &Scratch,
) -> Result<Arc<UnitRecord>, OperatorError> {
    if attempt.number as usize > SILENT_ATTEMPTS {
        let silent = handle.block_on(unit.store.silent_attempts(attempt))?;
        if let [last, ..] = &silent[..]
            && silent.len() >= SILENT_ATTEMPTS
        {
            return Err(poison(&silent, last));
        }
    }
    let began = Instant::now();
    let scratch = scratch.attempt()?;
    let place = UnitPlace {
        unit: unit.want.key(),
        stage: unit.want.stage.clone(),
        partition: unit.want.partition.clone(),
        attempt: attempt.attempt.clone(),
    };
    let inputs = unit.inputs.clone();
    let io = AttemptIo::new(&unit.store, handle, place, unit.factory, inputs, unit.objects.clone(), scratch.path());
    let cx = UnitContext {
        io: &io,
        operator: unit.factory.name(),
        partition: &unit.want.partition,
        number: unit.number,
        pipeline_seed: unit.pipeline_seed,
        scratch: scratch.path(),
        progress,
        stop,
    };
    unit.operator.run(&cx)?;
    let (tables, files) = io.upload()?;
    let record = UnitRecord {
        version: 1,
        unit: unit.want.key(),
        run: unit.run,
        stage: unit.want.stage.clone(),
        operator: unit.factory.name().to_owned(),
        operator_version: unit.factory.version(),
        params: unit.params.clone(),
        seed: unit.factory.seeded().then_some(unit.pipeline_seed),
        fingerprint: unit.want.fingerprint.clone(),
        partition: unit.want.partition.clone(),
        inputs: unit.want.inputs.clone(),
        read: Some(read(unit)),
        attempt: attempt.attempt.clone(),
        worker: attempt.worker.clone(),
        tables,
        files,
        rows_in: io.rows_in(),
        counts: io.counts(),
        started: attempt.started.clone(),
        finished: now(),
        seconds: began.elapsed().as_secs_f64(),
    };
    // A worker that was taken for dead gives way to its successor.
    if handle.block_on(unit.store.is_superseded(attempt))? {
        return match handle.block_on(unit.store.unit(&unit.want))? {
            Some(theirs) => Ok(Arc::new(theirs)),
            None => Err(OperatorError::new(ErrorKind::Interrupted, "another attempt has taken over")),
        };
    }
    let committed = match handle.block_on(unit.store.commit_unit(&record))? {
        Created::Ours => Arc::new(record),
        Created::Theirs(theirs) => {
            tracing::info!(
                stage = theirs.stage,
                partition = theirs.partition,
                winner = theirs.attempt,
                "another attempt was first"
            );
            Arc::new(theirs)
        }
    };
    // What is done needs no checkpoints. They do no harm if they stay.
    if io.has_checkpoints()
        && let Err(error) = handle.block_on(unit.store.forget_checkpoints(&unit.want.key()))
    {
        tracing::warn!(stage = unit.want.stage, error = error.chain(), "checkpoints are left behind");
    }
    Ok(committed)
}

/// What a unit reads, for its record.
fn read(unit: &ReadyUnit) -> UnitRead {
    let object = |object: &SourceObject| ObjectRead {
        uri: object.uri.clone(),
        bytes: object.size,
        version: object.version.clone(),
    };
    let port = |input: &InputPort| PortRead {
        port: input.port.clone(),
        stage: input.stage.clone(),
        from: input.from.clone(),
        attempts: input.records.iter().map(|unit| (unit.partition.clone(), unit.attempt.clone())).collect(),
    };
    UnitRead { objects: unit.objects.iter().map(object).collect(), ports: unit.inputs.iter().map(port).collect() }
}

fn poison(silent: &[AttemptRecord], last: &AttemptRecord) -> OperatorError {
    let message = format!(
        "{} attempts in a row ended without a word, the last on {} (begun {}): the process was killed or the machine died",
        silent.len(),
        last.worker,
        last.started
    );
    OperatorError::environment(message)
        .hint("look for an out-of-memory kill on that machine (`dmesg`); `coa resume` tries again")
}
