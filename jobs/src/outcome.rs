//! How a stage stands, from the records of its units.
//!
//! A stage is *complete* when all its units are done; *complete with quarantined rows* when some of what it read could not
//! be used and lies in its quarantine; *failed* when a unit failed, or more was quarantined than its `max_bad_ratio`
//! allows; *unfinished* otherwise.

use std::fmt;

use store::{StageEnd, StageOutcome, UnitRecord};

/// The port that takes what could not be used.
const PORT: &str = "quarantine";

/// What of a stage's records was quarantined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quarantine {
    bad: u64,
    all: u64,
}

impl Quarantine {
    /// Over these units: of the records an operator counted (`records`), or else of the rows it read.
    pub(crate) fn of<'a>(units: impl IntoIterator<Item = &'a UnitRecord>) -> Self {
        let mut found = Self::default();
        for unit in units {
            let read = unit.counts.get("records").copied();
            found.bad += unit.rows(PORT);
            found.all += read.unwrap_or_else(|| unit.rows_in.values().sum());
        }
        found
    }

    /// Whether the share is over a limit.
    pub(crate) fn is_over(self, limit: f64) -> bool {
        self.bad as f64 > limit * self.all as f64
    }

    /// How a stage stands that has this many units, of which these are done and these failed.
    pub(crate) fn end(self, units: usize, done: usize, failed: usize, limit: Option<f64>) -> StageEnd {
        let outcome = match () {
            () if failed > 0 => StageOutcome::Failed,
            () if done < units => StageOutcome::Unfinished,
            () if limit.is_some_and(|limit| self.is_over(limit)) => StageOutcome::Failed,
            () if self.bad > 0 => StageOutcome::CompleteWithQuarantinedRows,
            () => StageOutcome::Complete,
        };
        let (units, done, failed) = (units as u64, done as u64, failed as u64);
        StageEnd { outcome, units, done, failed, records: self.all, quarantined: self.bad }
    }
}

impl fmt::Display for Quarantine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = 100.0 * self.bad as f64 / self.all.max(1) as f64;
        write!(f, "{} of {} records were quarantined ({share:.2} %)", self.bad, self.all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_stands_by_its_units_and_its_quarantine() {
        let found = Quarantine { bad: 2, all: 100 };
        let name = |units, done, failed, limit| found.end(units, done, failed, limit).outcome.name();
        assert_eq!(name(3, 3, 0, None), "complete with quarantined rows");
        assert_eq!(name(3, 3, 0, Some(0.02)), "complete with quarantined rows");
        assert_eq!(name(3, 3, 0, Some(0.019)), "failed");
        assert_eq!(name(3, 2, 0, Some(0.019)), "unfinished");
        assert_eq!(name(3, 2, 1, None), "failed");
        assert_eq!(Quarantine::default().end(1, 1, 0, Some(0.0)).outcome.name(), "complete");
        assert_eq!(found.to_string(), "2 of 100 records were quarantined (2.00 %)");
    }
}
