//! Reads recorded agent runs into the tables `traces` and `steps`; what cannot be read goes to `quarantine`.
//!
//! Records in = traces + quarantined + rejected. A record that is bad costs that record and nothing else; only records
//! that a condition of `where` turns down are rejected, and a bad record is quarantined even if it would be.

use std::fs::File;
use std::io::ErrorKind;

use chrono_tz::Tz;
use schemars::JsonSchema;
use schemas::{Columns, Domain, Quarantined, Rejected, RowError, Step, Trace};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::context::UnitContext;
use crate::error::OperatorError;
use crate::operator::{Operator, Split};
use crate::params::ParamsError;
use crate::pattern::Pattern;
use crate::port::{FilesIn, Out, Port};
use crate::traces::condition::Condition;
use crate::traces::json::{self, Repair};
use crate::traces::records::{Record, Records};
use crate::traces::tape::Tape;
use crate::traces::values::NO_ZONE;
use crate::traces::{Misfit, Parsed, borrowed, fireact, oagents, scalar, webdancer};

/// A layout of recorded runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// OAgents run records, one object a run.
    Oagents,
    /// FireAct rows: instruction, input, output with Thought/Action/Observation lines.
    Fireact,
    /// WebDancer rows: chat messages with tags.
    Webdancer,
}

/// Parameters of `ingest_traces`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The layout of the records. A source may be JSON lines, JSON lists or JSON objects over several
    /// lines, plain or gzip (`.gz`).
    pub format: Format,
    /// Where the records are: a path or URL, with `*` and `**` in its last parts. Leave it out where `records` is bound.
    #[serde(default)]
    pub source: Option<Pattern>,
    /// What kind of tasks the runs solve; the filters treat mathematics and code differently.
    #[serde(default = "qa")]
    pub domain: Domain,
    /// Repairs that may be made to a record that is not JSON; each repaired row says which.
    #[serde(default)]
    pub repair: Vec<Repair>,
    /// The zone, such as Asia/Shanghai, of times that are written without one; left out, such times are not read.
    #[serde(default, deserialize_with = "zone")]
    #[schemars(with = "Option<String>")]
    pub naive_timezone: Option<Tz>,
    /// Conditions on fields of the record, such as `"n_calls >= 5"` or `"correct"`. Records for which not all hold are
    /// rejected; records that lack such a field go to quarantine.
    #[serde(default, rename = "where")]
    pub conditions: Vec<Condition>,
}

fn zone<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Tz>, D::Error> {
    let Some(name) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    let zone =
        name.parse().map_err(|_| D::Error::custom(format!("`{name}` is no time zone: name one as Asia/Shanghai")));
    zone.map(Some)
}

fn qa() -> Domain {
    Domain::Qa
}

/// The operator.
pub struct IngestTraces {
    params: Params,
}

const RECORDS: FilesIn = FilesIn::new("records", "run_records", "recorded runs made by an earlier stage").optional();
const TRACES: Out<Trace> = Out::new("traces", "one row a run");
const STEPS: Out<Step> = Out::new("steps", "what happened in each run");
const QUARANTINE: Out<Quarantined> = Out::new("quarantine", "records that could not be read, with their bytes");
const REJECTED: Out<Rejected> = Out::new("rejected", "records that a condition of `where` turned down");

/// Rows are written when their records hold this many bytes together.
const GROUP: usize = 4 << 20;
/// A record longer than this is not read.
const LONGEST: usize = 128 << 20;

impl Operator for IngestTraces {
    const NAME: &'static str = "ingest_traces";
    const VERSION: u32 = 3;
    const ABOUT: &'static str =
        "Reads recorded agent runs; what cannot be read goes to quarantine, nothing is dropped unseen.";
    const INPUTS: &'static [Port] = &[RECORDS.port()];
    const OUTPUTS: &'static [Port] = &[TRACES.port(), STEPS.port(), QUARANTINE.port(), REJECTED.port()];
    type Params = Params;

    fn new(params: Params) -> Result<Self, ParamsError> {
        Ok(Self { params })
    }

    fn split(&self) -> Split {
        match &self.params.source {
            Some(pattern) => Split::PerObject(pattern.clone()),
            None => Split::PerPartition,
        }
    }

    fn run(&self, cx: &UnitContext<'_>) -> Result<(), OperatorError> {
        for object in cx.io.objects() {
            let reader = cx.io.open(object)?;
            self.source(cx, &object.uri, &object.name, reader, object.size)?;
        }
        if self.params.source.is_none() {
            for file in cx.files(&RECORDS)? {
                let size = file.path.metadata()?.len();
                let uri = format!("{}/{}", cx.partition, file.name);
                self.source(cx, &uri, &file.name, Box::new(File::open(&file.path)?), size)?;
            }
        }
        Ok(())
    }
}

/// Rows that are waiting to be written.
struct Rows {
    traces: Columns<Trace>,
    steps: Columns<Step>,
    quarantine: Columns<Quarantined>,
    rejected: Columns<Rejected>,
    /// Bytes of their records.
    bytes: usize,
}

/// What a record is read as.
enum Read {
    Run(Box<Parsed>),
    Rejected(Rejected),
}

impl Rows {
    fn new() -> Result<Self, RowError> {
        let (traces, steps) = (Columns::new()?, Columns::new()?);
        Ok(Self { traces, steps, quarantine: Columns::new()?, rejected: Columns::new()?, bytes: 0 })
    }

    fn write(&mut self, cx: &UnitContext<'_>) -> Result<(), OperatorError> {
        self.bytes = 0;
        cx.append_columns(&TRACES, &mut self.traces)?;
        cx.append_columns(&STEPS, &mut self.steps)?;
        cx.append_columns(&QUARANTINE, &mut self.quarantine)?;
        cx.append_columns(&REJECTED, &mut self.rejected)
    }
}

impl IngestTraces {
    fn source(
        &self,
        cx: &UnitContext<'_>,
        uri: &str,
        name: &str,
        reader: Box<dyn std::io::Read + Send>,
        size: u64,
    ) -> Result<(), OperatorError> {
        let gzip = name.ends_with(".gz");
        let mut records = Records::new(reader, gzip, LONGEST);
        let mut tape = Tape::default();
        let mut rows = Rows::new()?;
        let (mut read, mut without_zone) = (0_u64, 0);
        cx.progress.begin((!gzip).then_some(size), "bytes");
        loop {
            let record = records.next_record().map_err(|error| {
                let cut = if error.kind() == ErrorKind::UnexpectedEof { ": it is truncated" } else { "" };
                OperatorError::input(format!("`{uri}` cannot be read on after byte {}{cut}", records.offset()))
                    .hint("the object is cut or damaged: fetch it again")
                    .because(error)
            })?;
            let Some(record) = record else { break };
            read += 1;
            cx.check_stop()?;
            match self.read(&record, name, &mut tape) {
                Ok(Read::Run(parsed)) => {
                    rows.bytes += record.bytes.len();
                    let mut trace = parsed.trace;
                    trace.source = uri.to_owned();
                    trace.line = record.line as i64;
                    trace.byte_offset = record.offset as i64;
                    let unread = trace.unread.as_deref().unwrap_or_default();
                    cx.io.count("unread_values", unread.len() as u64);
                    without_zone += unread.iter().filter(|why| why.ends_with(NO_ZONE)).count();
                    rows.traces.push(&trace)?;
                    parsed.steps.iter().try_for_each(|step| rows.steps.push(step))?;
                    records.give_back(record.bytes);
                }
                Ok(Read::Rejected(mut rejected)) => {
                    rows.bytes += rejected.detail.len();
                    rejected.source = Some(uri.to_owned());
                    rejected.line = Some(record.line as i64);
                    rejected.byte_offset = Some(record.offset as i64);
                    rows.rejected.push(&rejected)?;
                    records.give_back(record.bytes);
                }
                Err((code, reason)) => {
                    rows.bytes += record.bytes.len();
                    rows.quarantine.push(&Quarantined {
                        source: uri.to_owned(),
                        line: record.line as i64,
                        byte_offset: record.offset as i64,
                        byte_length: record.length as i64,
                        code: code.to_owned(),
                        reason,
                        raw: record.bytes,
                    })?;
                }
            }
            if rows.bytes >= GROUP {
                rows.write(cx)?;
                cx.progress.at(records.offset(), "");
            }
        }
        if let Some(trailing) = records.take_trailing() {
            read += 1;
            let (offset, length) = (trailing.offset, trailing.length);
            tracing::warn!(source = uri, offset, length, "the source ends in bytes that are not gzip");
            rows.quarantine.push(&Quarantined {
                source: uri.to_owned(),
                line: records.line() as i64,
                byte_offset: offset as i64,
                byte_length: length as i64,
                code: "not_gzip".to_owned(),
                reason: format!("{length} bytes from byte {offset} of the compressed source on are not gzip"),
                raw: trailing.bytes,
            })?;
        }
        if without_zone > 0 {
            tracing::warn!(
                source = uri,
                times = without_zone,
                "times without zone were not read: set `naive_timezone`"
            );
        }
        cx.io.count("records", read);
        cx.io.count("blank_lines", records.blank);
        cx.io.count("empty_objects", u64::from(read == 0));
        cx.progress.at(records.offset(), "");
        rows.write(cx)
    }

    fn read(&self, record: &Record, name: &str, tape: &mut Tape) -> Result<Read, (&'static str, String)> {
        if record.bytes.len() as u64 != record.length {
            let reason = format!("{} bytes; records of up to {LONGEST} are read", record.length);
            return Err(("row_too_large", reason));
        }
        // Most records are beyond doubt, and of those that are rejected nothing is built. The others are read with care.
        let certain = std::str::from_utf8(&record.bytes).ok().and_then(|text| tape.read(text));
        if let Some(certain) = certain {
            return match self.judge(record, name, |field, look| certain.field(field, look))? {
                Some(rejected) => Ok(Read::Rejected(rejected)),
                None => self.parse(record, name, certain.value(), Vec::new()),
            };
        }
        let (value, repaired) = json::read(&record.bytes, record.at_end, &self.params.repair)
            .map_err(|fault| (fault.code, fault.reason))?;
        let value = borrowed::Value::from(&value);
        match self.judge(record, name, |field, look| look(value.get(field)))? {
            Some(rejected) => Ok(Read::Rejected(rejected)),
            None => self.parse(record, name, value, repaired),
        }
    }

    fn parse(
        &self,
        record: &Record,
        name: &str,
        value: borrowed::Value<'_>,
        repaired: Vec<&'static str>,
    ) -> Result<Read, (&'static str, String)> {
        let id = trace_id(name, record);
        let parsed = match self.params.format {
            Format::Oagents => oagents::parse(value, &id, self.params.naive_timezone),
            Format::Fireact => fireact::parse(value, &id),
            Format::Webdancer => webdancer::parse(value, &id),
        };
        let mut parsed = parsed.map_err(|misfit| (misfit.code, misfit.reason))?;
        parsed.trace.domain = self.params.domain;
        parsed.trace.repaired = repaired.into_iter().map(str::to_owned).collect();
        Ok(Read::Run(Box::new(parsed)))
    }

    /// The rejection of a record by the first condition that does not hold.
    fn judge(
        &self,
        record: &Record,
        name: &str,
        field: impl Fn(&str, &mut dyn FnMut(Option<&borrowed::Value<'_>>)),
    ) -> Result<Option<Rejected>, (&'static str, String)> {
        for condition in &self.params.conditions {
            let mut judged = Ok(None);
            field(condition.field(), &mut |value| judged = condition.judge(value));
            let Some(detail) = judged.map_err(|Misfit { code, reason }| (code, reason))? else { continue };
            let mut task_id = None;
            field("task_id", &mut |value| task_id = value.and_then(scalar));
            let row_id = trace_id(name, record);
            return Ok(Some(Rejected::new(row_id, task_id, "condition", detail)));
        }
        Ok(None)
    }
}

/// Derived from the source's name, the record's place and its bytes: the same record keeps its id in every run, and a
/// record that was written twice has two.
fn trace_id(name: &str, record: &Record) -> String {
    let mut hash = Xxh3::new();
    hash.update(name.as_bytes());
    hash.update(&record.offset.to_le_bytes());
    hash.update(&record.bytes);
    format!("{:032x}", hash.digest128())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::memory::MemoryIo;

    fn read(lines: &[&[u8]], conditions: &[&str]) -> MemoryIo {
        let params = json!({"format": "oagents", "source": "x", "where": conditions});
        let operator = IngestTraces::new(serde_json::from_value(params).unwrap()).unwrap();
        let io = MemoryIo::new().unwrap().with_object("a.jsonl", &lines.join(&b'\n'));
        io.run(&operator, 0).unwrap();
        io
    }

    #[test]
    fn records_in_are_traces_rejected_and_quarantined() {
        let lines: [&[u8]; 7] = [
            br#"{"question": "q1", "task_id": "kept", "n": 5, "right": true}"#,
            br#"{"question": "q2", "task_id": 2, "n": 4, "right": true}"#,
            br#"{"question": "q3", "n": 7, "right": false}"#,
            br#"{"question": "q4", "n": 4, "n": 4, "right": true}"#,
            br#"{"question": "q5", "right": true}"#,
            br#"{"question": "q6", "n": "5", "right": true}"#,
            b"{\"question\": \"\xff\", \"n\": 1, \"right\": true}",
        ];
        let io = read(&lines, &["n >= 5", "right"]);
        let traces: Vec<Trace> = io.rows("traces").unwrap();
        let tasks: Vec<Option<&str>> = traces.iter().map(|trace| trace.task_id.as_deref()).collect();
        assert_eq!(tasks, [Some("kept")]);
        let rejected: Vec<Rejected> = io.rows("rejected").unwrap();
        let why: Vec<(Option<&str>, &str)> =
            rejected.iter().map(|row| (row.task_id.as_deref(), row.detail.as_str())).collect();
        assert_eq!(why, [(Some("2"), "`n >= 5`: n is 4"), (None, "`right`: right is false")]);
        let quarantine: Vec<Quarantined> = io.rows("quarantine").unwrap();
        let faults: Vec<(i64, &str)> = quarantine.iter().map(|row| (row.line, row.code.as_str())).collect();
        assert_eq!(faults, [(4, "duplicate_key"), (5, "missing_field"), (6, "wrong_type"), (7, "invalid_utf8")]);
        for row in &quarantine {
            assert_eq!(row.raw, lines[row.line as usize - 1]);
        }
        assert_eq!(io.counted("records"), 7);
    }

    /// A rejected record has the id that it would have had as a trace, and conditions change nothing about kept ones.
    #[test]
    fn conditions_choose_among_the_same_rows() {
        let lines: Vec<String> = (0..40).map(|n| format!(r#"{{"question": "q\n{n}", "n": {n}}}"#)).collect();
        let lines: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
        let all: Vec<Trace> = read(&lines, &[]).rows("traces").unwrap();
        let some = read(&lines, &["n < 25"]);
        let kept: Vec<Trace> = some.rows("traces").unwrap();
        let rejected: Vec<Rejected> = some.rows("rejected").unwrap();
        assert_eq!(kept, all[..25]);
        let ids: Vec<&str> = rejected.iter().map(|row| row.row_id.as_str()).collect();
        assert_eq!(ids, all[25..].iter().map(|trace| trace.trace_id.as_str()).collect::<Vec<_>>());
    }
}
