//! `coa worker`: takes jobs from a queue and does them, until told to leave.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use operators::Queue as Kind;
use store::Store;

use super::{MetricsArgs, QueueArgs};
use crate::error::CommandError;
use crate::queue::{Queue, QueueAddress};
use crate::runner::Signals;
use crate::telemetry::{Metrics, say};
use crate::worker::{Worker as Hand, worker_name};

/// See the module documentation.
#[derive(Args)]
pub(super) struct Worker {
    #[command(flatten)]
    queue: QueueArgs,
    /// A store whose own queue is meant, where no queue is given.
    #[arg(long, env = "COA_STORE", value_name = "URL")]
    store: Option<String>,
    /// Which jobs: `cpu`, `gpu` or both with a comma.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "cpu")]
    queues: Vec<Kinds>,
    /// Units of the `cpu` queue done at the same time; as many as there are processors where not given.
    #[arg(long, value_name = "N")]
    jobs: Option<std::num::NonZeroUsize>,
    /// Seconds that units in hand have to come to a safe place when this worker is told to leave.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    grace: u64,
    /// Leave after having had nothing to do for this many seconds.
    #[arg(long, value_name = "SECONDS")]
    idle_exit: Option<u64>,
    #[command(flatten)]
    metrics: MetricsArgs,
}

/// A kind of jobs.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kinds {
    /// Anything but training.
    Cpu,
    /// Training and evaluation of models; one unit at a time.
    Gpu,
}

impl Worker {
    pub(super) async fn execute(self) -> Result<(), CommandError> {
        let store = match &self.store {
            Some(address) => Some(Store::open(address).await?),
            None => None,
        };
        let address = match (&self.queue.queue, &store) {
            (Some(queue), _) => QueueAddress::parse(queue),
            (None, Some(store)) => QueueAddress::of(store),
            (None, None) => {
                return Err(CommandError::Usage {
                    message: "a worker needs a queue".to_owned(),
                    hint: Some("give --queue postgres://…, or --store for the queue beside a store".to_owned()),
                });
            }
        };
        if let (Some(_), QueueAddress::Sqlite(path)) = (&self.queue.queue, &address)
            && path.parent().is_some_and(|folder| !folder.as_os_str().is_empty() && !folder.exists())
        {
            return Err(CommandError::Usage {
                message: format!("there is no queue at `{address}`"),
                hint: Some("check the path; a run makes its queue".to_owned()),
            });
        }
        let listener = self.metrics.listen().await?;
        let mut signals = Signals::new()?;
        let queue = Arc::new(Queue::open(&address).await?);
        let name = worker_name();
        let metrics = Metrics::new();
        let hand = Hand::new(name.clone(), Arc::clone(&queue), None, Arc::clone(&metrics))?;
        if let Some(store) = &store {
            hand.add_store(store);
        }
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        if self.queues.contains(&Kinds::Cpu) {
            for slot in 0..self.jobs.map_or(processors, usize::from) {
                queue.start_worker(Kind::Cpu, &format!("{name}-cpu{slot}"), Arc::<Hand>::clone(&hand));
            }
        }
        if self.queues.contains(&Kinds::Gpu) {
            queue.start_worker(Kind::Gpu, &format!("{name}-gpu"), Arc::<Hand>::clone(&hand));
        }
        let beating = tokio::spawn(Arc::clone(&hand).beat());
        if let Some(listener) = listener {
            say(&format!("metrics are at {}", listener.url()));
            listener.serve(metrics, Arc::clone(&queue));
        }
        say(&format!("worker {name} takes jobs from {address}"));
        let mut idle_since = Instant::now();
        loop {
            if hand.in_hand() > 0 {
                idle_since = Instant::now();
            }
            if self.idle_exit.is_some_and(|limit| idle_since.elapsed() >= Duration::from_secs(limit)) {
                break;
            }
            tokio::select! {
                () = signals.next() => break,
                () = hand.dealt.notified() => idle_since = Instant::now(),
                () = tokio::time::sleep(Duration::from_millis(250)) => {}
            }
        }
        // Nothing new is taken; what is in hand comes to a safe place, within the grace.
        hand.stop();
        let leaving = Instant::now();
        if hand.in_hand() > 0 {
            say(&format!("leaving: {} units in hand come to a safe place first", hand.in_hand()));
        }
        while hand.in_hand() > 0 && leaving.elapsed() < Duration::from_secs(self.grace) {
            tokio::select! {
                () = signals.next() => break,
                () = hand.dealt.notified() => {}
                () = tokio::time::sleep(Duration::from_millis(100)) => {}
            }
        }
        beating.abort();
        let left = hand.in_hand();
        if left > 0 {
            say(&format!("{left} units are left where they are; another worker takes them"));
            return Ok(());
        }
        queue.close().await;
        Ok(())
    }
}
