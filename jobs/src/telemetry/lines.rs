//! Log lines as JSON: one object a line, with the fields of the event and of the spans it belongs to beside each other.
//!
//! ```json
//! {"timestamp":"2026-03-01T10:00:00.000Z","level":"WARN","target":"jobs::worker","message":"a lease could not be renewed","run":7,"stage":"sft","partition":"all","attempt":"01J…","worker":"host-1-01J…"}
//! ```
//!
//! What traces call `coa.run` is `run` here, as events call it, and so on.

use std::io::Write;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use crate::executor::now;

/// Writes events to stderr.
pub(super) struct JsonLines;

/// Fields of an event or a span.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for JsonLines {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let Fields(mut fields) = fields;
        // What comes from crates that log without `tracing` has its origin among its fields.
        let from = fields.shift_remove("log.target");
        for name in ["log.module_path", "log.file", "log.line"] {
            fields.shift_remove(name);
        }
        let mut line = Map::new();
        line.insert("timestamp".to_owned(), now().into());
        line.insert("level".to_owned(), event.metadata().level().as_str().into());
        line.insert("target".to_owned(), from.unwrap_or_else(|| event.metadata().target().into()));
        line.insert("message".to_owned(), fields.shift_remove("message").unwrap_or_else(|| "".into()));
        let spans = || context.event_scope(event).into_iter().flatten();
        // What the work is comes first: events and spans of libraries may have fields of the same names.
        for span in spans() {
            if let Some(Fields(fields)) = span.extensions().get() {
                add(&mut line, fields.iter().filter_map(|(name, value)| Some((name.strip_prefix("coa.")?, value))));
            }
        }
        add(&mut line, fields.iter().map(|(name, value)| (name.as_str(), value)));
        for span in spans() {
            if let Some(Fields(fields)) = span.extensions().get() {
                add(
                    &mut line,
                    fields
                        .iter()
                        .filter_map(|(name, value)| (!name.starts_with("coa.")).then_some((name.as_str(), value))),
                );
            }
        }
        let mut text = Value::Object(line).to_string();
        text.push('\n');
        // Whoever read it may be gone.
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
    }
}

/// Adds fields that the line does not have yet.
fn add<'a>(line: &mut Map<String, Value>, fields: impl Iterator<Item = (&'a str, &'a Value)>) {
    for (name, value) in fields {
        line.entry(name).or_insert_with(|| value.clone());
    }
}

impl Fields {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }
}
