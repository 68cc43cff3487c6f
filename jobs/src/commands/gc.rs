//! `coa gc`: what nothing in a store refers to any more is listed, and deleted if that is asked for.

use std::collections::BTreeSet;

use chrono::TimeDelta;
use clap::Args;
use store::Store;
use store::gc::{Garbage, Kind, Rules, survey, sweep};

use super::{QueueArgs, StoreArgs, print};
use crate::error::CommandError;
use crate::queue::Queue;
use crate::scratch::Scratch;

const HELP: &str = "\
Without --delete nothing is deleted: what would be is counted on standard output, or listed with --verbose.

What the tables show, what they have shown within the retention, and what finished units wrote that no later run has put
others in place of stays, and so does everything younger than the retention. While a run is at work only what failed
attempts left behind goes. A run without an end counts as being at work unless its queue says that it is dead: give the
--queue it had, or --nothing-runs.

Examples:
  coa gc --store data/mine
  coa gc --store s3://bucket/mine --retention 30d --delete
  coa gc --store data/mine --retention 0s --nothing-runs --delete";

/// See the module documentation.
#[derive(Args)]
#[command(after_long_help = HELP)]
pub(super) struct Gc {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    queue: QueueArgs,
    /// What was written or replaced within this time stays: `7d`, `12h`, `90m` or `0s`.
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = time)]
    retention: TimeDelta,
    /// Delete it.
    #[arg(long)]
    delete: bool,
    /// List each object.
    #[arg(long, short)]
    verbose: bool,
    /// Nothing is at work on this store, and nothing is begun until this ends: runs without an end are dead, and a
    /// retention below an hour is safe.
    #[arg(long)]
    nothing_runs: bool,
}

/// A runner or a worker that was not heard of for this many seconds is dead.
const DEAD: f64 = 60.0;

impl Gc {
    pub(super) async fn execute(self) -> Result<(), CommandError> {
        if self.retention < TimeDelta::hours(1) && !self.nothing_runs {
            return Err(CommandError::Usage {
                message: "a retention below an hour may delete what an attempt is writing at this moment".to_owned(),
                hint: Some("keep an hour or more, or stop everything on this store and add --nothing-runs".to_owned()),
            });
        }
        let store = self.store.open().await?;
        // First: what begins after this is seen by the sweep.
        let newest_run = store.run_numbers().await?.last().copied().unwrap_or_default();
        let open = self.at_work(&store).await?;
        if let (true, Some(run)) = (self.nothing_runs, open.alive.first()) {
            return Err(CommandError::Failed(format!(
                "run {run} is at work: `coa cancel {run} --store …` ends it, or leave --nothing-runs out"
            )));
        }
        let unknown = !self.nothing_runs && !open.unknown.is_empty();
        let at_work = !open.alive.is_empty() || unknown;
        let garbage = survey(&store, Rules { retention: self.retention, newest_run, at_work }).await?;
        print(&if self.verbose { listed(&garbage) } else { counted(&garbage) });
        for line in open.remarks(unknown) {
            say(&line);
        }
        let abandoned = Scratch::abandoned();
        if !self.delete {
            if !abandoned.is_empty() {
                say(&format!("{} folders of temporary files are left by dead processes", abandoned.len()));
            }
            say("nothing was deleted: --delete does it");
            return Ok(());
        }
        for folder in abandoned {
            if let Err(error) = std::fs::remove_dir_all(&folder) {
                say(&format!("`{}` is left: {error}", folder.display()));
            }
        }
        let swept = sweep(&store, &garbage).await?;
        say(&format!("{} deleted, {}", swept.count, size(swept.bytes)));
        if swept.left > 0 {
            say(&format!("{} were left: a run has begun meanwhile", swept.left));
        }
        Ok(())
    }

    /// The runs that have no end.
    async fn at_work(&self, store: &Store) -> Result<OpenRuns, CommandError> {
        let mut open = OpenRuns::default();
        let queue = Queue::open_existing(&self.queue.address(store, None)).await?;
        let url = store.url().to_string();
        for run in store.open_runs().await? {
            let silent = match &queue {
                Some(queue) => queue.run_silent_for(&url, run).await?,
                None => None,
            };
            match silent {
                Some(seconds) if seconds >= DEAD => {}
                Some(_) => _ = open.alive.insert(run),
                None => _ = open.unknown.insert(run),
            }
        }
        if let Some(queue) = queue {
            let leases = queue.at_work(&url).await?;
            open.alive.extend(leases.iter().filter(|lease| lease.silent_for < DEAD).map(|lease| lease.run));
            queue.close().await;
        }
        Ok(open)
    }
}

/// Runs that have no end, and are not known to be dead.
#[derive(Default)]
struct OpenRuns {
    /// Heard of within the last minute, or one of their workers.
    alive: BTreeSet<u64>,
    /// Not known to the queue.
    unknown: BTreeSet<u64>,
}

impl OpenRuns {
    fn remarks(&self, unknown: bool) -> Vec<String> {
        let mut lines = Vec::new();
        for run in &self.alive {
            lines.push(format!("run {run} is at work: only what failed attempts left is garbage until it ends"));
        }
        for run in self.unknown.iter().filter(|_| unknown) {
            lines.push(format!(
                "run {run} has no end and its queue is not known here: only what failed attempts left is garbage; \
                 give the --queue it had, or --nothing-runs"
            ));
        }
        lines
    }
}

fn counted(garbage: &Garbage) -> String {
    let kinds = garbage.by_kind();
    let (count, bytes) = kinds.values().fold((0, 0), |sum, (count, bytes)| (sum.0 + count, sum.1 + bytes));
    let line = |name: &str, count: usize, size: String| format!("{name:<18} {count:>8} {size:>12}");
    let mut lines: Vec<String> = kinds
        .into_iter()
        .map(|(kind, (count, bytes))| match kind {
            Kind::Upload => line(kind.name(), count, "?".to_owned()),
            kind => line(kind.name(), count, size(bytes)),
        })
        .collect();
    lines.push(line("in all", count, size(bytes)));
    lines.join("\n")
}

fn listed(garbage: &Garbage) -> String {
    let line = |item: &store::gc::Item| format!("{:<18} {:>12} {}", item.kind.name(), item.bytes, item.uri);
    garbage.items.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        bytes if bytes < 1024.0 => format!("{bytes} B"),
        bytes if bytes < 1_048_576.0 => format!("{:.1} KiB", bytes / 1024.0),
        bytes if bytes < 1_073_741_824.0 => format!("{:.1} MiB", bytes / 1_048_576.0),
        bytes => format!("{:.1} GiB", bytes / 1_073_741_824.0),
    }
}

/// `7d`, `12h`, `90m`, `0s`
fn time(written: &str) -> Result<TimeDelta, String> {
    let wrong = || "write a number and one of s, m, h, d, w, as in 7d".to_owned();
    let unit = written.chars().next_back().ok_or_else(wrong)?;
    let number: u32 = written[..written.len() - unit.len_utf8()].parse().map_err(|_| wrong())?;
    let number = i64::from(number);
    let time = match unit {
        's' => TimeDelta::try_seconds(number),
        'm' => TimeDelta::try_minutes(number),
        'h' => TimeDelta::try_hours(number),
        'd' => TimeDelta::try_days(number),
        'w' => TimeDelta::try_weeks(number),
        _ => None,
    };
    time.filter(|time| *time <= TimeDelta::days(36_500)).ok_or_else(wrong)
}

#[expect(clippy::print_stderr, reason = "stderr is where talk goes")]
fn say(line: &str) {
    eprintln!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(time("7d"), Ok(TimeDelta::days(7)));
        assert_eq!(time("90m"), Ok(TimeDelta::minutes(90)));
        assert_eq!(time("0s"), Ok(TimeDelta::zero()));
        for bad in ["", "7", "d", "-1d", "1y", "7 d", "1.5h", "4000000000w", "1ä"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }
}
