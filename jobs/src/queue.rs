//! The job queue: one unit is one apalis job on SQLite, in this process.
//!
//! The queue is a hint. A job carries names, never rows; what it does is decided by the store when it runs; its
//! database can be deleted at any time and loses nothing. Of apalis' behaviour this relies on little, because some of
//! it is not what a long job needs:
//!
//! - one job per fetch and one at a time per worker: with more, no heartbeat goes out while a batch is being worked on;
//! - worker names are unique per process, or a restart is refused until the old one has aged;
//! - a job's work happens on a thread of its own, so heartbeats go on however long it computes;
//! - jobs never fail towards apalis: its retries know no pause and, after a crash, no limit. The runner decides what is
//!   tried again, and counts.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apalis::layers::WorkerBuilderExt;
use apalis::prelude::{BackendExt, Data, TaskBuilder, TaskSink, WorkerBuilder};
use apalis_sqlite::{Config, SqliteConnectOptions, SqlitePool, SqlitePoolOptions, SqliteStorage};
use serde::{Deserialize, Serialize};

use crate::error::CommandError;

/// A job: which unit of which run. Names only.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct UnitJob {
    /// Version of this layout.
    pub(crate) version: u32,
    /// The run it belongs to; jobs of other runs are leftovers and are passed over.
    pub(crate) run: String,
    /// The stage.
    pub(crate) stage: String,
    /// The partition.
    pub(crate) partition: String,
    /// Which try within the run, from 1.
    pub(crate) attempt: u32,
}

/// What a worker does with a job. It returns when the job is dealt with, one way or the other.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Deals with a job, on a thread where it may block.
    fn handle(&self, job: UnitJob);
}

/// The queue of this process.
pub(crate) struct Queue {
    pool: SqlitePool,
    workers: tokio::task::JoinSet<()>,
}

/// How often an idle worker looks for jobs.
const POLL: Duration = Duration::from_millis(25);

impl Queue {
    /// Opens the database, making it where there is none.
    pub(crate) async fn open(path: &Path) -> Result<Self, CommandError> {
        let broken = |error: &dyn std::fmt::Display| CommandError::Queue(format!("`{}`: {error}", path.display()));
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|error| broken(&error))?;
        }
        // Set here and not by apalis' set-up, which turns durability off on one connection.
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .pragma("journal_mode", "WAL")
            .pragma("synchronous", "NORMAL")
            .busy_timeout(Duration::from_secs(10));
        let pool = SqlitePoolOptions::new().max_connections(8).connect_with(options).await;
        let pool = pool.map_err(|error| broken(&error))?;
        SqliteStorage::migrations().run(&pool).await.map_err(|error| broken(&error))?;
        Ok(Self { pool, workers: tokio::task::JoinSet::new() })
    }

    fn storage(&self, queue: &str) -> SqliteStorage<UnitJob> {
        let config = Config::default()
            .queue(queue)
            .batch_size(1)
            .heartbeat_interval(Duration::from_secs(2))
            .missed_heartbeats(3);
        SqliteStorage::new(&self.pool).with_config(config)
    }

    /// Starts a worker that does one job at a time.
    pub(crate) fn start_worker(&mut self, queue: &'static str, name: &str, handler: Arc<dyn Handler>) {
        self.workers.spawn(supervise(self.storage(queue), name.to_owned(), Shared(handler)));
    }

    /// Hands a job to the workers of `queue`, to be begun after a pause.
    pub(crate) async fn push(&self, queue: &str, job: UnitJob, pause: Duration) -> Result<(), CommandError> {
        // The key is unique per run, unit and try, so a job that was pushed twice by mistake runs once.
        let key = format!("{}.{}.{}.{}", job.run, job.stage, job.partition, job.attempt);
        let mut task = TaskBuilder::new(job).idempotency_key(key).max_attempts(1);
        if !pause.is_zero() {
            task = task.run_after(pause);
        }
        let task = task.build();
        self.storage(queue).push_task(task).await.map_err(|error| CommandError::Queue(error.to_string()))
    }

    /// Stops the workers; jobs in hand were dealt with before.
    pub(crate) async fn close(mut self) {
        self.workers.abort_all();
        while self.workers.join_next().await.is_some() {}
        self.pool.close().await;
    }
}

/// Keeps a worker going: a database error ends one, and another takes its place under a new name.
async fn supervise(storage: SqliteStorage<UnitJob>, name: String, handler: Shared) {
    for life in 0.. {
        let worker = WorkerBuilder::new(format!("{name}-{life}"))
            .backend(storage.clone().poll_with_interval(POLL))
            .data(handler.clone())
            .concurrency(1)
            .build(work);
        match worker.run().await {
            Ok(()) => return,
            Err(error) => tracing::warn!(%error, name, "a queue worker ended and is started again"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[derive(Clone)]
struct Shared(Arc<dyn Handler>);

/// The thread of a job could not be started.
#[derive(Debug, thiserror::Error)]
#[error("no thread for a job")]
struct NoThread(#[source] std::io::Error);

/// Waits for a thread that does the job: the worker's own future stays free for heartbeats.
async fn work(job: UnitJob, handler: Data<Shared>) -> Result<(), NoThread> {
    let handler = Arc::clone(&handler.0.0);
    let (done, wait) = tokio::sync::oneshot::channel();
    let name = format!("unit-{}", job.stage);
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        handler.handle(job);
        let _ = done.send(());
    });
    thread.map_err(NoThread)?;
    // An error means the thread is gone; the runner hears of it by the result that does not come.
    let _ = wait.await;
    Ok(())
}
