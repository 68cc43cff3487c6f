//! The job queue: one unit is one apalis job, on SQLite (one machine) or PostgreSQL (many).
//!
//! The queue is a hint. A job names a unit and what it reads, never rows; what it does is decided by the store when it
//! runs; its database can be deleted at any time and loses nothing. Of apalis' behaviour this relies on little, because
//! some of it is not what a long job needs:
//!
//! - one job per fetch and one at a time per worker: with more, no heartbeat goes out while a batch is being worked on;
//! - worker names are unique per process, or a restart is refused until the old one has aged;
//! - a job's work happens on a thread of its own, so heartbeats go on however long it computes;
//! - jobs never fail towards apalis: its retries know no pause and, after a crash, no limit. The runner decides what is
//!   tried again, and counts;
//! - a worker is woken when a job is pushed in its process or one of its own has ended, and looks every quarter of a
//!   second otherwise.
//!
//! Beside apalis' tables stand two of ours ([`leases`]): which unit is being worked on, how far it is and how it ended.

mod address;
mod job;
mod leases;
mod wake;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use apalis::layers::WorkerBuilderExt;
use apalis::prelude::{Data, TaskBuilder, TaskSink, WorkerBuilder};
use apalis_core::backend::ext::poll_strategy::PollWith;
use apalis_postgres::{PgPool, PostgresStorage};
use apalis_sqlite::{SqlitePool, SqliteStorage};
use operators::Queue as Kind;
use sqlx::Row;
use tokio::task::JoinSet;

use crate::error::CommandError;

pub(crate) use address::QueueAddress;
pub(crate) use job::{InputUnits, UnitJob, run_prefix};
pub(crate) use leases::{Ended, Ending, LeaseView, Progress};
use wake::{Waking, Wakings, Woken};

/// Does the same with either database.
macro_rules! either {
    ($db:expr, $pool:ident => $body:expr) => {
        match $db {
            $crate::queue::Db::Sqlite($pool) => $body,
            $crate::queue::Db::Postgres($pool) => $body,
        }
    };
}
use either;

/// What a worker does with a job. It returns when the job is dealt with, one way or the other.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Deals with a job, on a thread where it may block.
    fn handle(&self, job: UnitJob);
    /// No thread could be had for a job.
    fn give_up(&self, job: UnitJob, error: std::io::Error);
}

/// A connection to the queue's database.
#[derive(Clone, Debug)]
enum Db {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

/// The queue, as this process sees it.
pub(crate) struct Queue {
    address: QueueAddress,
    db: RwLock<Db>,
    wakings: Wakings,
    workers: Mutex<JoinSet<()>>,
}

/// What the queue knows of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// It waits for a worker.
    Waits,
    /// A worker has it, or had it and is not yet taken for dead.
    Given,
}

/// How often a worker that has nothing to do looks for jobs that other processes pushed.
const LOOK: Duration = Duration::from_millis(250);
/// How often a worker says that it is alive, and how often it may fail to: then its job is given to another.
const HEARTBEAT: Duration = Duration::from_secs(2);
const MISSED: usize = 3;
/// How long closing may take.
const CLOSING: Duration = Duration::from_secs(10);

impl Queue {
    /// Opens the database, making what is missing.
    pub(crate) async fn open(address: &QueueAddress) -> Result<Self, CommandError> {
        let db = address.connect().await?;
        let (wakings, workers) = (Wakings::default(), Mutex::default());
        let queue = Self { address: address.clone(), db: RwLock::new(db), wakings, workers };
        leases::set_up(&queue).await?;
        Ok(queue)
    }

    /// Opens the database if there is one.
    pub(crate) async fn open_existing(address: &QueueAddress) -> Result<Option<Self>, CommandError> {
        match address {
            QueueAddress::Sqlite(path) if !path.exists() => Ok(None),
            _ => Self::open(address).await.map(Some),
        }
    }

    /// Connects anew: the database was deleted, moved or restarted. Workers go over to it by themselves; jobs that it does
    /// not know have to be pushed again.
    pub(crate) async fn reopen(&self) -> Result<(), CommandError> {
        let db = self.address.connect().await?;
        let old = std::mem::replace(&mut *self.db.write().unwrap_or_else(PoisonError::into_inner), db);
        tokio::spawn(async move { either!(&old, pool => pool.close().await) });
        leases::set_up(self).await
    }

    fn db(&self) -> Db {
        self.db.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn broken(&self, error: &dyn std::fmt::Display) -> CommandError {
        CommandError::Queue(format!("`{}`: {error}", self.address))
    }

    /// Starts a worker that does one job of this kind at a time.
    pub(crate) fn start_worker(self: &Arc<Self>, kind: Kind, name: &str, handler: Arc<dyn Handler>) {
        let waking = self.wakings.add(kind);
        let worker = supervise(Arc::clone(self), kind, name.to_owned(), Working { handler, waking });
        self.workers().spawn(worker);
    }

    fn workers(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a job to the workers of its kind, to be begun after a pause.
    pub(crate) async fn push(&self, kind: Kind, job: UnitJob, pause: Duration) -> Result<(), CommandError> {
        let key = job.key();
        let mut task = TaskBuilder::new(job).idempotency_key(key).max_attempts(1);
        if !pause.is_zero() {
            task = task.run_after(pause);
        }
        let task = task.build();
        let pushed = match &self.db() {
            Db::Sqlite(pool) => sqlite(pool, kind).push_task(task).await.map_err(|error| self.broken(&error)),
            Db::Postgres(pool) => postgres(pool, kind).push_task(task).await.map_err(|error| self.broken(&error)),
        };
        self.wakings.wake(kind);
        pushed
    }

    /// A run's jobs that the queue knows to be waiting or given to a worker, by key.
    pub(crate) async fn known(&self, run_prefix: &str) -> Result<HashMap<String, Known>, CommandError> {
        let sql = match &self.db() {
            Db::Sqlite(_) => {
                "SELECT idempotency_key, status FROM Jobs
                 WHERE status IN ('Pending', 'Queued', 'Running') AND idempotency_key LIKE $1"
            }
            Db::Postgres(_) => {
                "SELECT idempotency_key, status FROM apalis.jobs
                 WHERE status IN ('Pending', 'Queued', 'Running') AND idempotency_key LIKE $1"
            }
        };
        let pattern = format!("{run_prefix}%");
        either!(&self.db(), pool => {
            let rows = sqlx::query(sql).bind(&pattern).fetch_all(pool).await.map_err(|error| self.broken(&error))?;
            let known = |status: &str| if status == "Pending" { Known::Waits } else { Known::Given };
            Ok(rows.iter().map(|row| (row.get(0), known(row.get(1)))).collect())
        })
    }

    /// How many jobs of each kind wait for a worker.
    pub(crate) async fn waiting(&self) -> Result<Vec<(Kind, u64)>, CommandError> {
        let sql = match &self.db() {
            Db::Sqlite(_) => "SELECT count(*) FROM Jobs WHERE status IN ('Pending', 'Queued') AND job_type = $1",
            Db::Postgres(_) => {
                "SELECT count(*) FROM apalis.jobs WHERE status IN ('Pending', 'Queued') AND job_type = $1"
            }
        };
        let mut waiting = Vec::new();
        for kind in [Kind::Cpu, Kind::Gpu] {
            let jobs: i64 = either!(&self.db(), pool => {
                let row = sqlx::query(sql).bind(kind.name()).fetch_one(pool).await;
                row.map_err(|error| self.broken(&error))?.get(0)
            });
            waiting.push((kind, jobs as u64));
        }
        Ok(waiting)
    }

    /// Deletes the jobs of a run that nobody has begun.
    pub(crate) async fn forget(&self, run_prefix: &str) -> Result<(), CommandError> {
        let sql = match &self.db() {
            Db::Sqlite(_) => "DELETE FROM Jobs WHERE status <> 'Running' AND idempotency_key LIKE $1",
            Db::Postgres(_) => "DELETE FROM apalis.jobs WHERE status <> 'Running' AND idempotency_key LIKE $1",
        };
        let pattern = format!("{run_prefix}%");
        either!(&self.db(), pool => {
            sqlx::query(sql).bind(&pattern).execute(pool).await.map(|_| ()).map_err(|error| self.broken(&error))
        })
    }

    /// Deletes all that is known of a run that another goes on with: its runner died, or will push again what it misses.
    pub(crate) async fn supersede(&self, store: &str, run: u64) -> Result<(), CommandError> {
        let sql = match &self.db() {
            Db::Sqlite(_) => "DELETE FROM Jobs WHERE idempotency_key LIKE $1",
            Db::Postgres(_) => "DELETE FROM apalis.jobs WHERE idempotency_key LIKE $1",
        };
        let pattern = format!("{}%", run_prefix(store, run));
        either!(&self.db(), pool => {
            sqlx::query(sql).bind(&pattern).execute(pool).await.map_err(|error| self.broken(&error))?;
        });
        self.forget_run(store, run).await
    }

    /// Stops the workers; jobs in hand were dealt with before.
    pub(crate) async fn close(&self) {
        let mut workers = std::mem::take(&mut *self.workers());
        let close = async {
            workers.shutdown().await;
            either!(&self.db(), pool => pool.close().await);
        };
        // A courtesy to the database, which may be past it.
        if tokio::time::timeout(CLOSING, close).await.is_err() {
            tracing::warn!(queue = %self.address, "the queue is left without being closed");
        }
    }
}

fn sqlite(pool: &SqlitePool, kind: Kind) -> SqliteStorage<UnitJob> {
    let config = apalis_sqlite::Config::default()
        .queue(kind.name())
        .batch_size(1)
        .heartbeat_interval(HEARTBEAT)
        .missed_heartbeats(MISSED);
    SqliteStorage::new(pool).with_config(config)
}

fn postgres(pool: &PgPool, kind: Kind) -> PostgresStorage<UnitJob> {
    let config = apalis_postgres::Config::default()
        .queue(kind.name())
        .batch_size(1)
        .heartbeat_interval(HEARTBEAT)
        .missed_heartbeats(MISSED);
    PostgresStorage::new(pool).with_config(config)
}

/// Keeps a worker going: a database error ends one, and another takes its place under a new name.
async fn supervise(queue: Arc<Queue>, kind: Kind, name: String, working: Working) {
    for life in 0.. {
        let name = format!("{name}-{life}");
        let strategy = Woken::new(Arc::clone(&working.waking), LOOK);
        // The two backends share no trait that says all that a worker needs.
        macro_rules! run {
            ($storage:expr) => {{
                let backend = PollWith::new($storage, strategy);
                let worker =
                    WorkerBuilder::new(name.as_str()).backend(backend).data(working.clone()).concurrency(1).build(work);
                worker.run().await.map_err(|error| error.to_string())
            }};
        }
        let ended = match &queue.db() {
            Db::Sqlite(pool) => run!(sqlite(pool, kind)),
            Db::Postgres(pool) => run!(postgres(pool, kind)),
        };
        match ended {
            Ok(()) => tracing::debug!(name, "a queue worker ended and is started again"),
            Err(error) => tracing::warn!(error, name, "a queue worker ended and is started again"),
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// What a worker's function needs.
#[derive(Clone)]
struct Working {
    handler: Arc<dyn Handler>,
    waking: Arc<Waking>,
}

/// A job's work is over; how it went stands in its lease.
#[derive(Debug, thiserror::Error)]
#[error("no job fails towards the queue")]
struct Never;

/// Waits for a thread that does the job: the worker's own future stays free for heartbeats.
async fn work(job: UnitJob, working: Data<Working>) -> Result<(), Never> {
    let Working { handler, waking } = Working::clone(&working);
    let (done, wait) = tokio::sync::oneshot::channel();
    let (theirs, copy) = (Arc::clone(&handler), job.clone());
    let thread = std::thread::Builder::new().name(format!("unit-{}", job.want.stage)).spawn(move || {
        theirs.handle(copy);
        let _ = done.send(());
    });
    match thread {
        Ok(_) => {
            let _ = wait.await;
        }
        Err(error) => handler.give_up(job, error),
    }
    waking.wake();
    Ok(())
}
