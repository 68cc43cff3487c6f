//! Whether what depends on a stage may begin: a stage with a `max_bad_ratio` is judged when all its units are done.

use std::collections::{BTreeMap, BTreeSet};

use pipelines::Stage;
use store::{Outcome, StageEnd, UnitRecord};

use super::Runner;
use crate::outcome::Quarantine;
use crate::telemetry::spans;

/// How a stage was judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Not all of its units are done.
    Open,
    /// What depends on it may begin.
    Good,
    /// Too many records were quarantined.
    Bad,
}

impl Runner {
    /// How the stages that a unit's stage reads from stand: the worst of them.
    pub(super) fn verdict_before(&mut self, stage: usize) -> Verdict {
        let read: BTreeSet<usize> =
            self.plan.pipeline.stages[stage].inputs.iter().map(|binding| self.plan.stage_of(&binding.stage)).collect();
        let mut verdict = Verdict::Good;
        for stage in read {
            match self.verdict(stage) {
                Verdict::Bad => return Verdict::Bad,
                Verdict::Open => verdict = Verdict::Open,
                Verdict::Good => {}
            }
        }
        verdict
    }

    pub(super) fn verdict(&mut self, stage: usize) -> Verdict {
        if self.verdicts[stage] != Verdict::Open {
            return self.verdicts[stage];
        }
        let Some(limit) = self.plan.pipeline.stages[stage].max_bad_ratio else {
            self.verdicts[stage] = Verdict::Good;
            return Verdict::Good;
        };
        if !self.plan.is_through(stage) {
            return Verdict::Open;
        }
        let records = self.plan.units_of(stage).filter_map(|unit| Some(&**self.plan.record(unit)?));
        let found = Quarantine::of(records);
        self.verdicts[stage] = match found.is_over(limit) {
            false => Verdict::Good,
            true => {
                self.display.complain(&complaint(&self.plan.pipeline.stages[stage], found, limit));
                Verdict::Bad
            }
        };
        self.verdicts[stage]
    }

    /// How each stage that was asked for stands.
    pub(super) fn stage_ends(&self) -> BTreeMap<String, StageEnd> {
        let mut ends = BTreeMap::new();
        for (index, stage) in self.plan.pipeline.stages.iter().enumerate() {
            let units = self.plan.units_of(index);
            if units.is_empty() || !self.plan.request.selection.contains(&stage.name) {
                continue;
            }
            let records: Vec<&UnitRecord> = units.clone().filter_map(|unit| Some(&**self.plan.record(unit)?)).collect();
            let (done, failed) = (records.len(), units.clone().filter(|unit| self.failed.contains(unit)).count());
            let end = Quarantine::of(records).end(units.len(), done, failed, stage.max_bad_ratio);
            ends.insert(stage.name.clone(), end);
        }
        ends
    }

    /// Ends the span of a stage, with how the stage stands.
    pub(super) fn end_span(&mut self, stage: usize) {
        let Some(span) = self.spans.remove(&stage) else { return };
        let failed = self.plan.units_of(stage).filter(|unit| self.failed.contains(unit)).count();
        match (failed, self.verdicts[stage]) {
            (0, Verdict::Bad) => spans::failed(&span, "quarantine", "too much was quarantined".to_owned()),
            (0, _) => {
                let complete = self.plan.is_through(stage);
                spans::ended(&span, if complete { Outcome::Complete } else { Outcome::Interrupted }.name());
            }
            (units, _) => spans::failed(&span, "units", format!("{units} units failed")),
        }
    }

    /// Stages that failed because of what they quarantined.
    pub(super) fn bad_stages(&self) -> impl Iterator<Item = &str> {
        let stages = self.plan.pipeline.stages.iter().zip(&self.verdicts);
        stages.filter(|(_, verdict)| **verdict == Verdict::Bad).map(|(stage, _)| stage.name.as_str())
    }
}

fn complaint(stage: &Stage, found: Quarantine, limit: f64) -> String {
    let name = &stage.name;
    format!(
        "error: {name}: {found}, more than `max_bad_ratio = {limit}` allows; what reads from it is not begun\n\
         hint: coa sql \"select reason, count(*) from {name}.quarantine group by reason\" shows why; mend the source, or \
         raise the limit"
    )
}
