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
    AttemptEnd, AttemptIo, AttemptRecord, Created, InputPort, Outcome, Store, UnitPlace, UnitRecord, UnitWant,
};
use tokio::runtime::Handle;
use ulid::Ulid;

/// A unit whose inputs are done, with everything needed to do it anywhere.
pub(crate) struct ReadyUnit {
    pub(crate) want: UnitWant,
    pub(crate) number: u32,
    pub(crate) factory: &'static dyn Factory,
    pub(crate) operator: Arc<dyn Runnable>,
    pub(crate) params: Value,
    pub(crate) pipeline_seed: u64,
    pub(crate) inputs: Vec<InputPort>,
    pub(crate) objects: Vec<SourceObject>,
}

/// Who does it, for whom.
#[derive(Clone)]
pub(crate) struct Worker {
    pub(crate) store: Store,
    pub(crate) run: String,
    pub(crate) name: String,
    pub(crate) stop: Arc<AtomicBool>,
}

/// The time as tables show it.
pub(crate) fn now() -> String {
    Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Does a unit; must not be called on a thread of the runtime.
pub(crate) fn execute(
    worker: &Worker,
    unit: &ReadyUnit,
    progress: &dyn ProgressSink,
    handle: &Handle,
) -> Result<Arc<UnitRecord>, OperatorError> {
    let attempt = AttemptRecord {
        version: 1,
        attempt: Ulid::new().to_string(),
        unit: unit.want.key(),
        run: worker.run.clone(),
        stage: unit.want.stage.clone(),
        partition: unit.want.partition.clone(),
        worker: worker.name.clone(),
        started: now(),
    };
    handle.block_on(worker.store.begin_attempt(&attempt))?;
    let result = catch_unwind(AssertUnwindSafe(|| attempt_unit(worker, unit, &attempt, progress, handle)));
    let error = match result {
        Ok(Ok(record)) => return Ok(record),
        Ok(Err(error)) => error,
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
    if let Err(unwritten) = handle.block_on(worker.store.end_attempt(&attempt, &end)) {
        tracing::warn!(stage = unit.want.stage, error = unwritten.chain(), "the failure could not be recorded");
    }
    Err(error)
}

fn attempt_unit(
    worker: &Worker,
    unit: &ReadyUnit,
    attempt: &AttemptRecord,
    progress: &dyn ProgressSink,
    handle: &Handle,
) -> Result<Arc<UnitRecord>, OperatorError> {
    let began = Instant::now();
    let scratch = tempfile::Builder::new().prefix("coa-").tempdir().map_err(|error| {
        OperatorError::environment("cannot create a folder for temporary files")
            .hint("TMPDIR names where they go")
            .because(error)
    })?;
    let place = UnitPlace {
        unit: attempt.unit.clone(),
        stage: unit.want.stage.clone(),
        partition: unit.want.partition.clone(),
        attempt: attempt.attempt.clone(),
    };
    let inputs = unit.inputs.iter().map(|input| InputPort {
        port: input.port.clone(),
        payload: input.payload,
        stage: input.stage.clone(),
        from: input.from.clone(),
        records: input.records.clone(),
    });
    let inputs = inputs.collect();
    let io = AttemptIo::new(&worker.store, handle, place, unit.factory, inputs, unit.objects.clone(), scratch.path());
    let cx = UnitContext {
        io: &io,
        operator: unit.factory.name(),
        partition: &unit.want.partition,
        number: unit.number,
        pipeline_seed: unit.pipeline_seed,
        scratch: scratch.path(),
        progress,
        stop: &worker.stop,
    };
    unit.operator.run(&cx)?;
    let (tables, files) = io.upload()?;
    let record = UnitRecord {
        version: 1,
        unit: attempt.unit.clone(),
        run: worker.run.clone(),
        stage: unit.want.stage.clone(),
        operator: unit.factory.name().to_owned(),
        operator_version: unit.factory.version(),
        params: unit.params.clone(),
        seed: unit.factory.seeded().then_some(unit.pipeline_seed),
        fingerprint: unit.want.fingerprint.clone(),
        partition: unit.want.partition.clone(),
        inputs: unit.want.inputs.clone(),
        attempt: attempt.attempt.clone(),
        worker: worker.name.clone(),
        tables,
        files,
        rows_in: io.rows_in(),
        counts: io.counts(),
        started: attempt.started.clone(),
        finished: now(),
        seconds: began.elapsed().as_secs_f64(),
    };
    match handle.block_on(worker.store.commit_unit(&record))? {
        Created::Ours => Ok(Arc::new(record)),
        Created::Theirs(theirs) => {
            tracing::info!(
                stage = theirs.stage,
                partition = theirs.partition,
                attempt = theirs.attempt,
                "another attempt was first"
            );
            Ok(Arc::new(theirs))
        }
    }
}
