//! Metrics: what this process did, as Prometheus counts things.
//!
//! | metric | kind | labels |
//! |---|---|---|
//! | `coa_units_total` | counter: attempts at units that ended | `stage`, `outcome`: done, failed, interrupted |
//! | `coa_unit_retries_total` | counter: of all attempts, those that were not the run's first at their unit | `stage` |
//! | `coa_unit_duration_seconds` | histogram: time of units that were done | `stage` |
//! | `coa_units_at_work` | gauge | `stage` |
//! | `coa_rows_in_total`, `coa_rows_out_total` | counter; what was quarantined went out at the port `quarantine` | `stage`, `port` |
//! | `coa_written_bytes_total` | counter: files of tables and others | `stage` |
//! | `coa_queue_jobs` | gauge: jobs that wait for a worker, of all runs of the queue | `queue` |
//! | `coa_build_info` | 1 | `version`, `train` |
//! | `process_resident_memory_bytes`, `process_cpu_seconds_total` | of this process | |
//!
//! Units that another process did are counted there. Only units that are done count rows and bytes, so over all workers
//! they add up to what the table `units` says.

use std::sync::Arc;

use operators::{ErrorKind, OperatorError, Queue as Kind};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, prometheus_text};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use store::UnitRecord;

/// Upper bounds of unit times, in seconds: from a filter's blink to a training's day.
const SECONDS: [f64; 12] = [0.05, 0.2, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByStage {
    stage: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByOutcome {
    stage: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByPort {
    stage: String,
    port: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByQueue {
    queue: &'static str,
}

/// The metrics of this process.
pub(crate) struct Metrics {
    registry: Registry,
    units: Family<ByOutcome, Counter>,
    retries: Family<ByStage, Counter>,
    seconds: Family<ByStage, Histogram, fn() -> Histogram>,
    at_work: Family<ByStage, Gauge>,
    rows_in: Family<ByPort, Counter>,
    rows_out: Family<ByPort, Counter>,
    bytes: Family<ByStage, Counter>,
    waiting: Family<ByQueue, Gauge>,
}

impl Metrics {
    pub(crate) fn new() -> Arc<Self> {
        let mut metrics = Self {
            registry: Registry::default(),
            units: Family::default(),
            retries: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            at_work: Family::default(),
            rows_in: Family::default(),
            rows_out: Family::default(),
            bytes: Family::default(),
            waiting: Family::default(),
        };
        let registry = &mut metrics.registry;
        registry.register("coa_units", "Attempts at units that ended, by outcome", metrics.units.clone());
        registry.register(
            "coa_unit_retries",
            "Attempts that were not the run's first at their unit",
            metrics.retries.clone(),
        );
        let seconds = metrics.seconds.clone();
        registry.register_with_unit("coa_unit_duration", "Time of units that were done", Unit::Seconds, seconds);
        registry.register("coa_units_at_work", "Units that are being done", metrics.at_work.clone());
        registry.register("coa_rows_in", "Rows read by units that were done", metrics.rows_in.clone());
        registry.register("coa_rows_out", "Rows written by units that were done", metrics.rows_out.clone());
        let bytes = metrics.bytes.clone();
        registry.register_with_unit("coa_written", "Bytes written by units that were done", Unit::Bytes, bytes);
        registry.register("coa_queue_jobs", "Jobs that wait for a worker", metrics.waiting.clone());
        let train = if cfg!(feature = "train") { "yes" } else { "no" };
        let build = Info::new([("version", env!("CARGO_PKG_VERSION")), ("train", train)]);
        registry.register("coa_build", "The program", build);
        registry.register_collector(Box::new(Process));
        Arc::new(metrics)
    }

    /// An attempt at a unit of a stage begins; `again` if it is not the run's first.
    pub(crate) fn begin(self: &Arc<Self>, stage: &str, again: bool) -> Work {
        let by = ByStage { stage: stage.to_owned() };
        self.at_work.get_or_create(&by).inc();
        if again {
            self.retries.get_or_create(&by).inc();
        }
        Work { metrics: Arc::clone(self), by }
    }

    /// All of them, in Prometheus' text format 0.0.4. `waiting` are the jobs of each queue, where that is known.
    pub(super) fn text(&self, waiting: Option<Vec<(Kind, u64)>>) -> String {
        match waiting {
            Some(waiting) => {
                for (kind, jobs) in waiting {
                    self.waiting.get_or_create(&ByQueue { queue: kind.name() }).set(jobs as i64);
                }
            }
            None => self.waiting.clear(),
        }
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry).expect("text takes all writes");
        text
    }
}

/// An attempt at a unit, while it is made.
pub(crate) struct Work {
    metrics: Arc<Metrics>,
    by: ByStage,
}

impl Work {
    /// The unit is done, by this attempt.
    pub(crate) fn done(self, record: &UnitRecord) {
        let (metrics, stage) = (&self.metrics, &self.by.stage);
        let port = |port: &str| ByPort { stage: stage.clone(), port: port.to_owned() };
        for (name, rows) in &record.rows_in {
            metrics.rows_in.get_or_create(&port(name)).inc_by(*rows);
        }
        for table in &record.tables {
            metrics.rows_out.get_or_create(&port(&table.port)).inc_by(table.rows);
        }
        let tables = record.tables.iter().flat_map(|table| &table.files).map(|file| file.bytes);
        let files = record.files.iter().flat_map(|port| &port.files).map(|file| file.bytes);
        metrics.bytes.get_or_create(&self.by).inc_by(tables.chain(files).sum());
        metrics.seconds.get_or_create(&self.by).observe(record.seconds);
        self.ended("done");
    }

    /// The attempt came to nothing.
    pub(crate) fn failed(self, error: &OperatorError) {
        self.ended(if error.kind == ErrorKind::Interrupted { "interrupted" } else { "failed" });
    }

    /// Another attempt was first.
    pub(crate) fn gave_way(self) {
        self.ended("interrupted");
    }

    fn ended(&self, outcome: &'static str) {
        self.metrics.units.get_or_create(&ByOutcome { stage: self.by.stage.clone(), outcome }).inc();
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.metrics.at_work.get_or_create(&self.by).dec();
    }
}

/// Memory and time of this process, looked up when asked for.
#[derive(Debug)]
struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Ok(stat) = procfs::process::Process::myself().and_then(|process| process.stat()) else { return Ok(()) };
        let memory = ConstGauge::new(stat.rss * procfs::page_size());
        let about = "Memory that this process has in use";
        memory.encode(encoder.encode_descriptor(
            "process_resident_memory",
            about,
            Some(&Unit::Bytes),
            memory.metric_type(),
        )?)?;
        let ticks = procfs::ticks_per_second() as f64;
        let time = ConstCounter::new((stat.utime + stat.stime) as f64 / ticks);
        let about = "Processor time of this process";
        time.encode(encoder.encode_descriptor("process_cpu", about, Some(&Unit::Seconds), time.metric_type())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> UnitRecord {
        serde_json::from_value(serde_json::json!({
            "version": 1, "unit": "u", "run": 1, "stage": "s", "operator": "o", "operator_version": 1, "params": {},
            "seed": null, "fingerprint": "f", "partition": "p", "inputs": "i", "attempt": "a", "worker": "w",
            "tables": [
                {"port": "kept", "table": "t", "table_version": 1, "rows": 7,
                 "files": [{"path": "x", "bytes": 100, "rows": 7, "xxh3": ""}]},
                {"port": "quarantine", "table": "q", "table_version": 1, "rows": 2, "files": []}],
            "files": [{"port": "model", "kind": "k", "files": [{"name": "m", "path": "m", "bytes": 11, "sha256": ""}]}],
            "rows_in": {"rows": 9}, "counts": {}, "started": "", "finished": "", "seconds": 0.5
        }))
        .unwrap()
    }

    #[test]
    fn counts_add_up() {
        let metrics = Metrics::new();
        metrics.begin("s", false).failed(&OperatorError::input("bad"));
        metrics.begin("s", true).failed(&OperatorError::interrupted());
        let work = metrics.begin("s", true);
        assert!(metrics.text(None).contains("coa_units_at_work{stage=\"s\"} 1\n"));
        work.done(&record());
        let text = metrics.text(Some(vec![(Kind::Cpu, 3)]));
        for line in [
            "coa_units_total{stage=\"s\",outcome=\"done\"} 1",
            "coa_units_total{stage=\"s\",outcome=\"failed\"} 1",
            "coa_units_total{stage=\"s\",outcome=\"interrupted\"} 1",
            "coa_unit_retries_total{stage=\"s\"} 2",
            "coa_units_at_work{stage=\"s\"} 0",
            "coa_rows_in_total{stage=\"s\",port=\"rows\"} 9",
            "coa_rows_out_total{stage=\"s\",port=\"quarantine\"} 2",
            "coa_written_bytes_total{stage=\"s\"} 111",
            "coa_unit_duration_seconds_count{stage=\"s\"} 1",
            "coa_unit_duration_seconds_bucket{stage=\"s\",le=\"0.2\"} 0",
            "coa_queue_jobs{queue=\"cpu\"} 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in:\n{text}");
        }
        assert!(!metrics.text(None).contains("coa_queue_jobs{"), "a queue that cannot be asked has no number");
    }
}
