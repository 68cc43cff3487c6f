//! Teacher traces: framing a source into records, reading records as JSON, and the layouts that are understood.

pub mod borrowed;
pub mod condition;
pub mod fireact;
pub mod gzip;
pub mod json;
pub mod oagents;
pub mod records;
pub mod tape;
pub mod values;
pub mod webdancer;

use schemas::{Step, Trace};

use borrowed::Value;

/// A record as rows. `source`, `line` and `byte_offset` of the trace are filled in by the caller.
pub struct Parsed {
    /// The run.
    pub trace: Trace,
    /// Its steps, in order.
    pub steps: Vec<Step>,
}

/// Why a record is not of the layout it is read as.
#[derive(Debug, PartialEq, Eq)]
pub struct Misfit {
    /// `missing_field` or `wrong_type`.
    pub code: &'static str,
    /// For a person.
    pub reason: String,
}

impl Misfit {
    fn missing(field: &str) -> Self {
        Self { code: "missing_field", reason: format!("no field `{field}`") }
    }
    fn wrong_type(field: &str, expected: &str, found: &Value<'_>) -> Self {
        Self { code: "wrong_type", reason: format!("`{field}` is {}, expected {expected}", kind(found)) }
    }
}

fn kind(value: &Value<'_>) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A text field that must be there.
fn text<'a>(record: &Value<'a>, field: &str) -> Result<&'a str, Misfit> {
    match record.get(field) {
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(Misfit::wrong_type(field, "a string", other)),
        None => Err(Misfit::missing(field)),
    }
}

/// A scalar as text, with its meaning kept: 42 is "42", 1e3 is "1000", null is `None`.
pub(crate) fn scalar(value: &Value<'_>) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some((*text).to_owned()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Number(number) => Some(match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 1e15 => format!("{float:.0}"),
            _ => number.to_string(),
        }),
        Value::Array(_) | Value::Object(_) => Some(value.to_string()),
    }
}

/// Accepted answers: a scalar, or a list of scalars; lists of lists are flattened.
fn answers(value: &Value<'_>) -> Vec<String> {
    match value {
        Value::Array(items) => items.iter().flat_map(answers).collect(),
        other => scalar(other).into_iter().collect(),
    }
}
