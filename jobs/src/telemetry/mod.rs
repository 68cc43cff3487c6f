//! What a process tells of its work while it goes on, besides its results.
//!
//! - *Talk*: lines for people on stderr ([`say`], [`complain`]).
//! - *Log lines*: events of the program on stderr, filtered by `--log`, as text or one JSON object a line ([`lines`]).
//!   With JSON, talk is told as log lines too, so that every line of stderr parses.
//! - *Spans* ([`spans`]): a run, a stage of it, an attempt at a unit. Log lines carry the names of the spans they belong
//!   to, and [`otlp`] sends spans to a collector where the environment names one.
//! - *Metrics* ([`metrics`]): what this process did, in numbers, read at `/metrics` ([`scrape`]).
//!
//! None of it holds what a pipeline reads or writes, parameters, or addresses: numbers, names of the pipeline file, and
//! messages of errors as the store records them.

mod lines;
mod metrics;
mod otlp;
mod scrape;
pub(crate) mod spans;

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};

use opentelemetry::trace::TracerProvider;
use tokio::runtime::Handle;
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{EnvFilter, FilterExt, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

pub(crate) use metrics::Metrics;
pub(crate) use scrape::Listener;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line; all of stderr, then.
    Json,
}

/// The target of talk told as log lines.
const TALK: &str = "coa";

/// Whether talk is told as log lines.
static TALK_AS_LINES: AtomicBool = AtomicBool::new(false);

/// What was set up at the start of a process, and has to be finished at its end.
pub struct Telemetry {
    export: Option<otlp::Export>,
}

impl Telemetry {
    /// Sets up log lines and, for a process that does a run's work, the export of spans: on this runtime, if the
    /// environment names a collector. Once in a process.
    pub fn start(filter: &str, format: LogFormat, works_on: Option<&Handle>) -> Self {
        let filter = || {
            let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("warn"));
            // Spans and talk are there whatever is filtered: they are few, and say what lines are about.
            filter.add_directive("coa=info".parse().expect("a well-formed directive"))
        };
        let lines: Box<dyn Layer<Registry> + Send + Sync> = match format {
            LogFormat::Text => tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(std::io::stderr().is_terminal())
                .with_filter(filter())
                .boxed(),
            LogFormat::Json => lines::JsonLines.with_filter(filter()).boxed(),
        };
        let (export, trouble) = match works_on.map_or(Ok(None), otlp::begin) {
            Ok(export) => (export, None),
            Err(trouble) => (None, Some(trouble)),
        };
        let exported = export.as_ref().map(|export| {
            // Of log lines, those about something that went wrong.
            let told = filter_fn(|about| match about.is_span() {
                true => about.target() == spans::TARGET,
                false => *about.level() <= Level::WARN && about.target() != TALK,
            });
            tracing_opentelemetry::layer()
                .with_tracer(export.provider.tracer("coa"))
                .with_location(false)
                .with_threads(false)
                .with_target(false)
                .with_tracked_inactivity(false)
                .with_error_events_to_status(false)
                .with_filter(told.with_max_level_hint(LevelFilter::INFO).and(filter()))
        });
        tracing_subscriber::registry().with(lines).with(exported).init();
        if format == LogFormat::Json {
            TALK_AS_LINES.store(true, Ordering::Relaxed);
            std::panic::set_hook(Box::new(|panic| tracing::error!(target: TALK, "{panic}")));
        }
        if let Some(trouble) = trouble {
            tracing::warn!("spans are not exported: {trouble}");
        }
        Self { export }
    }

    /// Sends what was not sent yet, for as long as [`otlp::LAST_WORDS`] at most. The runtime must still be there.
    pub fn finish(self) {
        if let Some(export) = self.export {
            export.finish();
        }
    }
}

/// Whether talk goes to log lines: then nothing is drawn on the terminal either.
pub(crate) fn talks_in_lines() -> bool {
    TALK_AS_LINES.load(Ordering::Relaxed)
}

/// A line for people, on stderr.
pub fn say(line: &str) {
    match talks_in_lines() {
        true => tracing::info!(target: TALK, "{line}"),
        false => write(line),
    }
}

/// A line about something that went wrong, on stderr. `error: ` before it makes it an error among log lines.
pub fn complain(line: &str) {
    match (talks_in_lines(), line.strip_prefix("error: ")) {
        (true, Some(error)) => tracing::error!(target: TALK, "{error}"),
        (true, None) => tracing::warn!(target: TALK, "{line}"),
        (false, _) => write(line),
    }
}

#[expect(clippy::print_stderr, reason = "stderr is where talk goes")]
fn write(line: &str) {
    eprintln!("{line}");
}
