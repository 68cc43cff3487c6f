//! Spans: a *run*, in it its *stages*, in them the *units*, one span an attempt, in whichever process it is made.
//!
//! Where spans are exported, a job takes the identity of its stage's span along, so that the units that other workers do
//! belong to the run's trace. Attributes are `coa.run`, `coa.stage`, `coa.partition`, `coa.attempt` (as the table
//! `attempts` has it), `coa.try` (which one within the run), `coa.worker`, `coa.outcome`, and of a run `coa.pipeline`
//! and `coa.resumes`; what failed has the status *error*, an `error.type` and an `exception` event.

use std::collections::HashMap;

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{Status, TraceContextExt};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use store::RunRecord;
use tracing::Span;
use tracing::field::Empty;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::error::CommandError;
use crate::queue::UnitJob;

/// The target of all spans.
pub(super) const TARGET: &str = "coa::work";

/// What W3C's Trace Context calls the identity of a span.
const PARENT: &str = "traceparent";

/// A run.
pub(crate) fn run(record: &RunRecord) -> Span {
    tracing::info_span!(
        target: TARGET, parent: None, "run",
        coa.run = record.run as i64, coa.pipeline = record.pipeline, coa.worker = record.worker,
        coa.resumes = record.resumes.map(|run| run as i64), coa.outcome = Empty, error.type = Empty,
    )
}

/// A stage of a run that has something to do.
pub(crate) fn stage(of: &Span, run: u64, stage: &str) -> Span {
    tracing::info_span!(
        target: TARGET, parent: of, "stage",
        coa.run = run as i64, coa.stage = stage, coa.outcome = Empty, error.type = Empty,
    )
}

/// An attempt at a unit; [`attempt`] names it once it is on record.
pub(crate) fn unit(job: &UnitJob, worker: &str) -> Span {
    let span = tracing::info_span!(
        target: TARGET, parent: None, "unit",
        coa.run = job.run as i64, coa.stage = job.want.stage, coa.partition = job.want.partition,
        coa.attempt = Empty, coa.try = i64::from(job.attempt), coa.worker = worker, coa.outcome = Empty, error.type = Empty,
    );
    if let Some(parent) = &job.trace_parent {
        let carrier = HashMap::from([(PARENT.to_owned(), parent.clone())]);
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier);
        // Fails where spans are not exported.
        let _ = span.set_parent(parent);
    }
    span
}

/// Names the attempt that the current unit span is about.
pub(crate) fn attempt(name: &str) {
    Span::current().record("coa.attempt", name);
}

/// The identity of a span, for a job; none where spans are not exported.
pub(crate) fn trace_parent(span: &Span) -> Option<String> {
    let context = span.context();
    if !context.span().span_context().is_valid() {
        return None;
    }
    let mut carrier = HashMap::new();
    TraceContextPropagator::new().inject_context(&context, &mut carrier);
    carrier.remove(PARENT)
}

/// What a span is about ended like this, and not with an error.
pub(crate) fn ended(span: &Span, outcome: &str) {
    span.record("coa.outcome", outcome);
}

/// A run ended; with what outcome was said where it was put on record.
pub(crate) fn run_ended(span: &Span, result: &Result<(), CommandError>) {
    let Err(error) = result else { return };
    let kind = match error {
        CommandError::Interrupted(_) => return,
        CommandError::Failed(_) => "units",
        CommandError::Store(_) => "storage",
        CommandError::Queue(_) => "queue",
        // OpenTelemetry's word for it.
        _ => "_OTHER",
    };
    failed(span, kind, error.to_string());
}

/// What a span is about failed. `kind` is one of a few words.
pub(crate) fn failed(span: &Span, kind: &'static str, message: String) {
    span.record("coa.outcome", "failed");
    span.record("error.type", kind);
    let event = vec![KeyValue::new("exception.type", kind), KeyValue::new("exception.message", message.clone())];
    span.add_event("exception", event);
    span.set_status(Status::error(message));
}
