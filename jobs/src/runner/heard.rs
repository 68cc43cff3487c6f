//! What a run hears of its units: how they ended, and that nothing is heard of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use operators::ErrorKind;

use super::{Runner, UNHEARD};
use crate::plan::{UnitState, WHOLE};
use crate::queue::{Ended, Ending, Known, run_prefix};

/// How often a unit is tried in one run when its errors may pass.
const MAX_ATTEMPTS: u32 = 4;
/// The pause before the second try; doubled for each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// How long a job may be with a worker that gives no sign of life, whatever the queue thinks of that worker.
const LOST: Duration = Duration::from_secs(30);

impl Runner {
    /// Takes in which units have ended.
    pub(super) async fn hear(&mut self, url: &str) {
        for ended in self.worker.take_untold(url, self.record.run) {
            self.settle(ended).await;
        }
        let ended = match self.queue.take_ended(url, self.record.run).await {
            Ok(ended) => ended,
            Err(error) => {
                self.queue_does(Err(error)).await;
                return;
            }
        };
        for ended in ended {
            self.settle(ended).await;
        }
    }

    /// Takes in how a unit ended.
    async fn settle(&mut self, ended: Ended) {
        let Ended { stage, partition, attempt, ending } = ended;
        let place = (stage, partition);
        let Some(out) = self.out.get(&place) else { return };
        let unit = out.unit;
        let current = out.job.attempt == attempt;
        match ending {
            Ending::Done => self.believe(&place).await,
            // An older try, whose unit has been given to another.
            Ending::Failed { .. } if !current => {}
            Ending::Failed { kind, error, hint } => {
                self.take_back(&place);
                let place = if place.1 == WHOLE { place.0 } else { format!("{}/{}", place.0, place.1) };
                if kind == ErrorKind::Interrupted {
                    // By a worker that had to leave: another takes the unit. If the run itself is ending, nobody does.
                    self.ready.insert(unit);
                    return;
                }
                let tries = self.tries.entry(unit).or_default();
                tries.failed += 1;
                if kind.is_transient() && tries.failed < MAX_ATTEMPTS {
                    let pause = FIRST_PAUSE * 2_u32.pow(tries.failed - 1);
                    self.display.complain(&format!("{place}: {error}; trying again in {} s", pause.as_secs()));
                    self.push(unit, pause).await;
                    return;
                }
                self.failed.insert(unit);
                self.display.complain(&format!("error: {place}: {error}"));
                if let Some(hint) = hint {
                    self.display.complain(&format!("hint: {hint}"));
                }
            }
        }
    }

    /// A unit is said to be done: its record says so, or it is not.
    async fn believe(&mut self, place: &(String, String)) {
        let Some(out) = self.out.get(place) else { return };
        let (unit, want) = (out.unit, out.job.want.clone());
        let known = self.worker.known(&self.store, self.record.run, &want);
        let record = match known {
            Some(record) => Ok(Some(record)),
            None => self.store.unit(&want).await.map(|record| record.map(Arc::new)),
        };
        match record {
            Ok(Some(record)) => {
                self.take_back(place);
                let stage = self.plan.stage(unit).name.clone();
                self.plan.units[unit].state = UnitState::Done(record);
                self.done += 1;
                self.is_done(unit);
                self.display.unit_done(&stage);
            }
            // Looked for again when it has gone unheard for a while.
            Ok(None) => tracing::warn!(stage = place.0, partition = place.1, "a unit was said to be done and is not"),
            Err(error) => tracing::warn!(error = error.chain(), "a unit's record could not be read"),
        }
    }

    /// What follows from a unit being done.
    pub(super) fn is_done(&mut self, unit: usize) {
        self.unfolded.insert(self.plan.units[unit].stage);
        for reader in self.plan.readers(unit).to_vec() {
            self.missing[reader] -= 1;
            if self.missing[reader] == 0 {
                self.ready.insert(reader);
            }
        }
    }

    fn take_back(&mut self, place: &(String, String)) {
        if let Some(out) = self.out.remove(place) {
            self.out_of_stage[self.plan.units[out.unit].stage] -= 1;
        }
    }

    /// Looks in the store for jobs that neither this process nor the queue knows any more, and pushes them again.
    pub(super) async fn look_for_unheard(&mut self) {
        let unheard: Vec<((String, String), String)> = self
            .out
            .iter()
            .filter(|(_, out)| out.since.elapsed() >= UNHEARD && !self.worker.has(&out.job.key()))
            .map(|(place, out)| (place.clone(), out.job.key()))
            .collect();
        if unheard.is_empty() {
            return;
        }
        let url = self.store.url().to_string();
        let prefix = run_prefix(&url, self.record.run);
        let looked = tokio::try_join!(self.queue.known(&prefix), self.queue.at_work(&url));
        let (known, leases) = match looked {
            Ok(found) => found,
            Err(error) => {
                self.queue_does(Err(error)).await;
                return;
            }
        };
        let beating: HashMap<(&str, &str), u32> = leases
            .iter()
            .filter(|lease| lease.run == self.record.run && lease.silent_for < LOST.as_secs_f64())
            .map(|lease| ((lease.stage.as_str(), lease.partition.as_str()), lease.attempt))
            .collect();
        for (place, key) in unheard {
            let Some(out) = self.out.get_mut(&place) else { continue };
            let beats = beating.get(&(place.0.as_str(), place.1.as_str())) == Some(&out.job.attempt);
            match known.get(&key) {
                None => {}
                Some(Known::Given) if !beats => {
                    if out.silent_since.get_or_insert_with(Instant::now).elapsed() < LOST {
                        continue;
                    }
                    tracing::warn!(stage = place.0, partition = place.1, "a job is lost and pushed again");
                }
                Some(_) => {
                    out.silent_since = None;
                    continue;
                }
            }
            self.believe(&place).await;
            if let Some(out) = self.out.get(&place) {
                let unit = out.unit;
                self.take_back(&place);
                self.push(unit, Duration::ZERO).await;
            }
        }
    }
}
