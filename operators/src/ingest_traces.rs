//! Reads recorded agent runs into the tables `traces` and `steps`; what cannot be read goes to `quarantine`.
//!
//! Records in = traces + quarantined. A record that is bad costs that record and nothing else.

use std::fs::File;

use schemars::JsonSchema;
use schemas::{Domain, Quarantined, Step, Trace};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use xxhash_rust::xxh3::Xxh3;

use crate::context::UnitContext;
use crate::error::OperatorError;
use crate::operator::{Operator, Split};
use crate::params::ParamsError;
use crate::port::{FilesIn, Out, Port};
use crate::traces::json::{self, Repair};
use crate::traces::records::{Record, Records};
use crate::traces::{Misfit, Parsed, fireact, oagents, webdancer};

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
    /// The layout of the records. A source may be JSON lines or one JSON list, plain or gzip (`.gz`).
    pub format: Format,
    /// Where the records are: a path or URL, with `*` and `**` in its last parts. Leave it out where `records` is bound.
    #[serde(default)]
    pub source: Option<String>,
    /// What kind of tasks the runs solve; the filters treat mathematics and code differently.
    #[serde(default = "qa")]
    pub domain: Domain,
    /// Repairs that may be made to a record that is not JSON; each repaired row says which.
    #[serde(default)]
    pub repair: Vec<Repair>,
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

/// Rows are written when their records hold this many bytes together.
const GROUP: usize = 16 << 20;
/// A record longer than this is not read.
const LONGEST: usize = 128 << 20;

impl Operator for IngestTraces {
    const NAME: &'static str = "ingest_traces";
    const VERSION: u32 = 1;
    const ABOUT: &'static str =
        "Reads recorded agent runs; what cannot be read goes to quarantine, nothing is dropped unseen.";
    const INPUTS: &'static [Port] = &[RECORDS.port()];
    const OUTPUTS: &'static [Port] = &[TRACES.port(), STEPS.port(), QUARANTINE.port()];
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
#[derive(Default)]
struct Rows {
    traces: Vec<Trace>,
    steps: Vec<Step>,
    quarantine: Vec<Quarantined>,
}

impl Rows {
    fn write(&mut self, cx: &UnitContext<'_>) -> Result<(), OperatorError> {
        cx.append(&TRACES, &std::mem::take(&mut self.traces))?;
        cx.append(&STEPS, &std::mem::take(&mut self.steps))?;
        cx.append(&QUARANTINE, &std::mem::take(&mut self.quarantine))
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
        let mut rows = Rows::default();
        let mut waiting = 0;
        cx.progress.begin((!gzip).then_some(size), "bytes");
        loop {
            let record = records.next_record().map_err(|error| {
                OperatorError::input(format!("`{uri}` cannot be read on after byte {}", records.offset()))
                    .hint("the object is cut or damaged: fetch it again")
                    .because(error)
            })?;
            let Some(record) = record else { break };
            cx.io.count("records", 1);
            cx.check_stop()?;
            waiting += record.bytes.len();
            match self.read(&record, name) {
                Ok(parsed) => {
                    let mut trace = parsed.trace;
                    trace.source = uri.to_owned();
                    trace.line = record.line as i64;
                    trace.byte_offset = record.offset as i64;
                    rows.traces.push(trace);
                    rows.steps.extend(parsed.steps);
                }
                Err((code, reason)) => rows.quarantine.push(Quarantined {
                    source: uri.to_owned(),
                    line: record.line as i64,
                    byte_offset: record.offset as i64,
                    byte_length: record.length as i64,
                    code: code.to_owned(),
                    reason,
                    raw: record.bytes,
                }),
            }
            if waiting >= GROUP {
                waiting = 0;
                rows.write(cx)?;
                cx.progress.at(records.offset(), "");
            }
        }
        cx.io.count("blank_lines", records.blank);
        cx.progress.at(records.offset(), "");
        rows.write(cx)
    }

    fn read(&self, record: &Record, name: &str) -> Result<Parsed, (&'static str, String)> {
        if record.bytes.len() as u64 != record.length {
            let reason = format!("{} bytes; records of up to {LONGEST} are read", record.length);
            return Err(("row_too_large", reason));
        }
        let (value, repaired) = json::read(&record.bytes, record.at_end, &self.params.repair)
            .map_err(|fault| (fault.code, fault.reason))?;
        let id = trace_id(name, record);
        let parse: fn(&Value, &str) -> Result<Parsed, Misfit> = match self.params.format {
            Format::Oagents => oagents::parse,
            Format::Fireact => fireact::parse,
            Format::Webdancer => webdancer::parse,
        };
        let mut parsed = parse(&value, &id).map_err(|misfit| (misfit.code, misfit.reason))?;
        parsed.trace.domain = self.params.domain;
        parsed.trace.repaired = repaired.into_iter().map(str::to_owned).collect();
        Ok(parsed)
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
