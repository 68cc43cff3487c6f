//! The command line: one file a command. Results go to stdout, talk goes to stderr.

mod backfill;
mod cancel;
mod check;
mod compact;
mod doctor;
mod gc;
mod lineage;
mod operators;
mod plan;
mod report;
mod resume;
mod run;
mod show;
mod sql;
mod status;
mod watch;
mod why;
mod worker;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Parser, Subcommand};
use pipelines::{Pipeline, compile};
use store::Store;

use crate::error::CommandError;
use crate::queue::QueueAddress;
use crate::registry;
use crate::telemetry::{Listener, LogFormat};

/// Turns recorded multi-agent runs into one trained agent.
#[derive(Parser)]
#[command(name = "coa", version, about)]
pub struct Cli {
    /// What to log on stderr, as in RUST_LOG: `debug`, or `store=debug,warn`.
    #[arg(long, global = true, env = "RUST_LOG", value_name = "FILTER")]
    log: Option<String>,
    /// How stderr looks: `text`, or `json` for one object a line.
    #[arg(long, global = true, env = "COA_LOG_FORMAT", value_name = "FORMAT", value_enum, default_value = "text")]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check a pipeline file without touching data.
    Check(check::Check),
    /// List the units that would run, and why.
    Plan(plan::Plan),
    /// Run what the plan lists.
    Run(run::Run),
    /// Run the partitioned stages over some partitions of their source.
    Backfill(backfill::Backfill),
    /// Go on with the last run, or a named one.
    Resume(resume::Resume),
    /// Ask a run to end, wherever it runs.
    Cancel(cancel::Cancel),
    /// Take jobs from a queue and do them.
    Worker(worker::Worker),
    /// Show runs, stages, units and errors.
    Status(status::Status),
    /// Query the store's tables with SQL, or look around in a shell.
    Sql(sql::Sql),
    /// Tell where a table, a row or a model came from, down to the sources.
    Lineage(lineage::Lineage),
    /// Show one thing as a person wants to read it.
    Show(show::Show),
    /// Examine this machine and a store, and say how to mend what is wrong.
    Doctor(doctor::Doctor),
    /// Merge many small files of tables into fewer.
    Compact(compact::Compact),
    /// Find what nothing in a store refers to, and delete it.
    Gc(gc::Gc),
    /// List operators, or describe one.
    Operators(operators::Operators),
    /// Report what a pipeline did: rows, losses, success, times.
    Report(report::Report),
}

impl Cli {
    /// The log filter.
    pub fn log(&self) -> &str {
        // The Delta kernel logs as errors what its callers look for, such as a table that is not there yet.
        self.log.as_deref().unwrap_or("warn,buoyant_kernel=off")
    }

    /// How log lines look.
    pub fn log_format(&self) -> LogFormat {
        self.log_format
    }

    /// Whether units are done, here or for this command by others.
    pub fn does_units(&self) -> bool {
        matches!(self.command, Command::Run(_) | Command::Backfill(_) | Command::Resume(_) | Command::Worker(_))
    }

    /// Does it.
    pub async fn execute(self) -> Result<(), CommandError> {
        match self.command {
            Command::Check(command) => command.execute(),
            Command::Plan(command) => command.execute().await,
            Command::Run(command) => command.execute().await,
            Command::Backfill(command) => command.execute().await,
            Command::Cancel(command) => command.execute().await,
            Command::Worker(command) => command.execute().await,
            Command::Doctor(command) => command.execute().await,
            Command::Resume(command) => command.execute().await,
            Command::Status(command) => command.execute().await,
            Command::Sql(command) => command.execute(),
            Command::Lineage(command) => command.execute().await,
            Command::Show(command) => command.execute().await,
            Command::Compact(command) => command.execute().await,
            Command::Gc(command) => command.execute().await,
            Command::Operators(command) => command.execute(),
            Command::Report(command) => command.execute().await,
        }
    }
}

/// A pipeline file and what may replace its settings.
#[derive(clap::Args)]
struct PipelineArgs {
    /// The pipeline file.
    file: PathBuf,
    /// A store instead of the file's own.
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// A seed instead of the file's own.
    #[arg(long)]
    seed: Option<u64>,
}

impl PipelineArgs {
    fn load(&self) -> Result<Arc<Pipeline>, CommandError> {
        let text = read_file(&self.file)?;
        Ok(Arc::new(compile(&self.file.display().to_string(), &text, &registry(), self.seed)?))
    }

    fn address(&self, pipeline: &Pipeline) -> Result<String, CommandError> {
        self.store.clone().or_else(|| pipeline.store.clone()).ok_or_else(|| CommandError::Usage {
            message: format!("`{}` names no store", self.file.display()),
            hint: Some("add store = \"data/NAME\" to it, or give --store URL".to_owned()),
        })
    }
}

/// A store that exists.
#[derive(clap::Args)]
struct StoreArgs {
    /// The store: a folder, file:///… or s3://….
    #[arg(long, env = "COA_STORE", value_name = "URL")]
    store: String,
}

impl StoreArgs {
    async fn open(&self) -> Result<Store, CommandError> {
        Ok(Store::open(&self.store).await?)
    }
}

/// The job queue.
#[derive(clap::Args)]
struct QueueArgs {
    /// The job queue: postgres://host/database for many machines, or the path of an SQLite database. Beside a local
    /// store where not given. Passwords come from PGPASSWORD or ~/.pgpass.
    #[arg(long, env = "COA_QUEUE", value_name = "URL")]
    queue: Option<String>,
}

impl QueueArgs {
    /// The address given here, or in the pipeline's file, or the store's own.
    fn address(&self, store: &Store, pipeline: Option<&str>) -> QueueAddress {
        match self.queue.as_deref().or(pipeline) {
            Some(address) => QueueAddress::parse(address),
            None => QueueAddress::of(store),
        }
    }
}

/// Metrics of this process.
#[derive(clap::Args)]
struct MetricsArgs {
    /// Serve metrics for Prometheus at http://ADDR:PORT/metrics; port 0 is any free one, and is said.
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<String>,
}

impl MetricsArgs {
    /// Takes the address, if one is given.
    async fn listen(&self) -> Result<Option<Listener>, CommandError> {
        match &self.metrics {
            Some(address) => Listener::bind(address).await.map(Some),
            None => Ok(None),
        }
    }
}

/// The folder that relative sources begin in.
fn current_folder() -> Result<PathBuf, CommandError> {
    std::env::current_dir()
        .map_err(|source| CommandError::Io { what: "the current directory is gone".to_owned(), source })
}

fn read_file(path: &Path) -> Result<String, CommandError> {
    let what = |source: std::io::Error| {
        let message = match source.kind() {
            std::io::ErrorKind::NotFound => format!("there is no file `{}`", path.display()),
            std::io::ErrorKind::IsADirectory => format!("`{}` is a folder, not a pipeline file", path.display()),
            std::io::ErrorKind::InvalidData => format!("`{}` is not UTF-8 text", path.display()),
            _ => format!("cannot read `{}`: {source}", path.display()),
        };
        CommandError::usage(message)
    };
    std::fs::read_to_string(path).map_err(what)
}

/// Prints data. Whoever reads it may have had enough: that is no error.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush());
}
