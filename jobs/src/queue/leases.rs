//! Leases: which worker works on a unit of which run, how far it is, and how it ended; and which runs are being run.
//!
//! A lease belongs to the highest try that has begun; what an older one says about it is ignored. Times are the
//! database's, so that machines need not agree on the time of day. Nothing here decides whether a unit is done: that is
//! the store's business. A lease only tells the runner to look.

use std::time::Duration;

use operators::{ErrorKind, OperatorError};
use serde::{Deserialize, Serialize};
use sqlx::Row;

use super::{Db, Queue, UnitJob, either};
use crate::error::CommandError;

/// How far a unit is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// What was done.
    pub(crate) done: u64,
    /// Of how much, where that is known.
    pub(crate) total: Option<u64>,
    /// What is counted.
    pub(crate) unit: String,
    /// A word about it.
    pub(crate) note: String,
}

/// How a try ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "as", rename_all = "snake_case")]
pub(crate) enum Ending {
    /// The unit is done.
    Done,
    /// With an error.
    Failed {
        /// Its kind.
        kind: ErrorKind,
        /// It, with its causes.
        error: String,
        /// What to do about it.
        hint: Option<String>,
    },
}

impl From<&OperatorError> for Ending {
    fn from(error: &OperatorError) -> Self {
        Self::Failed { kind: error.kind, error: error.chain(), hint: error.hint.clone() }
    }
}

/// A try that ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The stage.
    pub(crate) stage: String,
    /// The partition.
    pub(crate) partition: String,
    /// Which try within the run.
    pub(crate) attempt: u32,
    /// How.
    pub(crate) ending: Ending,
}

/// A lease, for people.
#[derive(Clone, Debug)]
pub(crate) struct LeaseView {
    /// The run.
    pub(crate) run: u64,
    /// The stage.
    pub(crate) stage: String,
    /// The partition.
    pub(crate) partition: String,
    /// Which try within the run.
    pub(crate) attempt: u32,
    /// Who has it.
    pub(crate) worker: String,
    /// How far it is.
    pub(crate) progress: Progress,
    /// Seconds since it began.
    pub(crate) running_for: f64,
    /// Seconds since its worker was heard of.
    pub(crate) silent_for: f64,
}

const TABLES: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS coa_leases (
        store TEXT NOT NULL, run BIGINT NOT NULL, stage TEXT NOT NULL, partition TEXT NOT NULL,
        attempt BIGINT NOT NULL, worker TEXT NOT NULL, done BIGINT NOT NULL, total BIGINT, unit TEXT NOT NULL,
        note TEXT NOT NULL, ending TEXT, began DOUBLE PRECISION NOT NULL, seen DOUBLE PRECISION NOT NULL,
        PRIMARY KEY (store, run, stage, partition))",
    "CREATE TABLE IF NOT EXISTS coa_runs (
        store TEXT NOT NULL, run BIGINT NOT NULL, seen DOUBLE PRECISION NOT NULL, PRIMARY KEY (store, run))",
];

/// Makes the tables.
pub(super) async fn set_up(queue: &Queue) -> Result<(), CommandError> {
    for sql in TABLES {
        let mut result = Ok(());
        // Two processes that make a table at the same moment may both be told that it is not there.
        for _ in 0..2 {
            result = either!(&queue.db(), pool => sqlx::query(sql).execute(pool).await.map(|_| ()));
            if result.is_ok() {
                break;
            }
        }
        result.map_err(|error| queue.broken(&error))?;
    }
    Ok(())
}

impl Queue {
    /// The database's time, in seconds.
    fn now(&self) -> &'static str {
        match &self.db() {
            Db::Sqlite(_) => "unixepoch('subsec')",
            Db::Postgres(_) => "CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION)",
        }
    }

    /// A worker begins a job.
    pub(crate) async fn begin(&self, job: &UnitJob, worker: &str) -> Result<(), CommandError> {
        self.put(job, worker, None).await
    }

    /// A worker has ended a job.
    pub(crate) async fn end(&self, job: &UnitJob, worker: &str, ending: &Ending) -> Result<(), CommandError> {
        self.put(job, worker, Some(serde_json::to_string(ending).expect("plain data"))).await
    }

    async fn put(&self, job: &UnitJob, worker: &str, ending: Option<String>) -> Result<(), CommandError> {
        let now = self.now();
        let sql = format!(
            "INSERT INTO coa_leases (store, run, stage, partition, attempt, worker, done, total, unit, note, ending, began, seen)
             VALUES ($1, $2, $3, $4, $5, $6, 0, NULL, '', '', $7, {now}, {now})
             ON CONFLICT (store, run, stage, partition) DO UPDATE
             SET attempt = excluded.attempt, worker = excluded.worker, ending = excluded.ending, seen = excluded.seen,
                 done = 0, total = NULL, unit = '', note = '',
                 began = CASE WHEN excluded.ending IS NULL THEN excluded.began ELSE coa_leases.began END
             WHERE coa_leases.attempt < excluded.attempt
                OR (coa_leases.attempt = excluded.attempt AND (excluded.ending IS NULL OR coa_leases.worker = excluded.worker))"
        );
        either!(&self.db(), pool => {
            let query = sqlx::query(sqlx::AssertSqlSafe(sql))
                .bind(&job.store).bind(job.run as i64).bind(&job.want.stage).bind(&job.want.partition)
                .bind(i64::from(job.attempt)).bind(worker).bind(ending);
            query.execute(pool).await.map(|_| ()).map_err(|error| self.broken(&error))
        })
    }

    /// A worker says how far it is with a job.
    pub(crate) async fn beat(&self, job: &UnitJob, worker: &str, progress: &Progress) -> Result<(), CommandError> {
        let now = self.now();
        let sql = format!(
            "UPDATE coa_leases SET done = $7, total = $8, unit = $9, note = $10, seen = {now}
             WHERE store = $1 AND run = $2 AND stage = $3 AND partition = $4 AND attempt = $5 AND worker = $6"
        );
        either!(&self.db(), pool => {
            let query = sqlx::query(sqlx::AssertSqlSafe(sql))
                .bind(&job.store).bind(job.run as i64).bind(&job.want.stage).bind(&job.want.partition)
                .bind(i64::from(job.attempt)).bind(worker)
                .bind(progress.done as i64).bind(progress.total.map(|total| total as i64))
                .bind(&progress.unit).bind(&progress.note);
            query.execute(pool).await.map(|_| ()).map_err(|error| self.broken(&error))
        })
    }

    /// The tries of a run that ended since this was last asked.
    pub(crate) async fn take_ended(&self, store: &str, run: u64) -> Result<Vec<Ended>, CommandError> {
        let sql = "DELETE FROM coa_leases WHERE store = $1 AND run = $2 AND ending IS NOT NULL
                   RETURNING stage, partition, attempt, ending";
        either!(&self.db(), pool => {
            let query = sqlx::query(sql).bind(store).bind(run as i64);
            let rows = query.fetch_all(pool).await.map_err(|error| self.broken(&error))?;
            rows.iter().map(|row| {
                let ending: String = row.get(3);
                Ok(Ended {
                    stage: row.get(0),
                    partition: row.get(1),
                    attempt: row.get::<i64, _>(2) as u32,
                    ending: serde_json::from_str(&ending).map_err(|error| self.broken(&error))?,
                })
            }).collect()
        })
    }

    /// What is being worked on for a store, and how far it is.
    pub(crate) async fn at_work(&self, store: &str) -> Result<Vec<LeaseView>, CommandError> {
        let now = self.now();
        let sql = format!(
            "SELECT run, stage, partition, attempt, worker, done, total, unit, note, {now} - began, {now} - seen
             FROM coa_leases WHERE store = $1 AND ending IS NULL ORDER BY run, stage, partition"
        );
        either!(&self.db(), pool => {
            let rows = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(store).fetch_all(pool).await;
            let rows = rows.map_err(|error| self.broken(&error))?;
            Ok(rows.iter().map(|row| LeaseView {
                run: row.get::<i64, _>(0) as u64,
                stage: row.get(1),
                partition: row.get(2),
                attempt: row.get::<i64, _>(3) as u32,
                worker: row.get(4),
                progress: Progress {
                    done: row.get::<i64, _>(5) as u64,
                    total: row.get::<Option<i64>, _>(6).map(|total| total as u64),
                    unit: row.get(7),
                    note: row.get(8),
                },
                running_for: row.get(9),
                silent_for: row.get(10),
            }).collect())
        })
    }

    /// The runner of a run says that it is alive.
    pub(crate) async fn beat_run(&self, store: &str, run: u64) -> Result<(), CommandError> {
        let now = self.now();
        let sql = format!(
            "INSERT INTO coa_runs (store, run, seen) VALUES ($1, $2, {now})
             ON CONFLICT (store, run) DO UPDATE SET seen = excluded.seen"
        );
        either!(&self.db(), pool => {
            let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(store).bind(run as i64);
            query.execute(pool).await.map(|_| ()).map_err(|error| self.broken(&error))
        })
    }

    /// Whether the runner of a run was heard of within a time.
    pub(crate) async fn is_run_alive(&self, store: &str, run: u64, within: Duration) -> Result<bool, CommandError> {
        let now = self.now();
        let sql = format!("SELECT count(*) FROM coa_runs WHERE store = $1 AND run = $2 AND {now} - seen < $3");
        either!(&self.db(), pool => {
            let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(store).bind(run as i64).bind(within.as_secs_f64());
            let row = query.fetch_one(pool).await.map_err(|error| self.broken(&error))?;
            Ok(row.get::<i64, _>(0) > 0)
        })
    }

    /// Seconds since the runner of a run was heard of; none where this queue does not know the run.
    pub(crate) async fn run_silent_for(&self, store: &str, run: u64) -> Result<Option<f64>, CommandError> {
        let now = self.now();
        let sql = format!("SELECT {now} - seen FROM coa_runs WHERE store = $1 AND run = $2");
        either!(&self.db(), pool => {
            let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(store).bind(run as i64);
            let row = query.fetch_optional(pool).await.map_err(|error| self.broken(&error))?;
            Ok(row.map(|row| row.get::<f64, _>(0)))
        })
    }

    /// A run is over: its leases and its sign of life go.
    pub(crate) async fn forget_run(&self, store: &str, run: u64) -> Result<(), CommandError> {
        for sql in [
            "DELETE FROM coa_leases WHERE store = $1 AND run = $2",
            "DELETE FROM coa_runs WHERE store = $1 AND run = $2",
        ] {
            either!(&self.db(), pool => {
                let query = sqlx::query(sql).bind(store).bind(run as i64);
                query.execute(pool).await.map_err(|error| self.broken(&error))?;
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use store::UnitWant;

    use super::*;
    use crate::queue::QueueAddress;

    #[tokio::test]
    async fn a_new_try_begins_from_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let queue = Queue::open(&QueueAddress::Sqlite(folder.path().join("q.sqlite"))).await.unwrap();
        let text = |text: &str| text.to_owned();
        let want = UnitWant { stage: text("s"), fingerprint: text("f"), partition: text("p"), inputs: text("i") };
        let (store, run) = (text("file:///s"), 1);
        let (objects, inputs) = (Vec::new(), Vec::new());
        let mut job =
            UnitJob { version: 1, store, run, want, number: 0, objects, inputs, attempt: 1, trace_parent: None };
        queue.begin(&job, "one").await.unwrap();
        let progress = Progress { done: 5, total: Some(9), unit: text("rows"), note: text("half") };
        queue.beat(&job, "one", &progress).await.unwrap();
        assert_eq!(queue.at_work(&job.store).await.unwrap()[0].progress, progress);
        // Its worker died, and another has the unit now.
        job.attempt = 2;
        queue.begin(&job, "two").await.unwrap();
        let found = queue.at_work(&job.store).await.unwrap();
        assert_eq!((found.len(), found[0].worker.as_str(), found[0].attempt), (1, "two", 2));
        assert_eq!(found[0].progress, Progress::default());
        queue.close().await;
    }
}
