//! Folding: the tables of a stage are brought in line with its units when the stage is complete, or when its run ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use store::{StageFold, UnitRecord};

use super::Runner;

impl Runner {
    /// Brings the tables of every stage that has become complete in line with its units.
    pub(super) async fn fold_complete(&mut self) {
        for stage in std::mem::take(&mut self.unfolded) {
            let name = self.plan.pipeline.stages[stage].name.clone();
            if !self.plan.is_through(stage) || !self.plan.request.selection.contains(&name) {
                continue;
            }
            if let Some(records) = self.fold(stage).await
                && self.announced.contains(&stage)
            {
                self.display.end_stage(&name, &summary(&records));
            }
            self.verdict(stage);
            self.end_span(stage);
        }
    }

    /// At the end of a run: partitions that are done are shown even where others of their stage are not.
    pub(super) async fn fold_rest(&mut self) {
        for stage in 0..self.plan.pipeline.stages.len() {
            let some = self.plan.units_of(stage).any(|unit| self.plan.record(unit).is_some());
            let all = self.plan.is_through(stage);
            let split = self.plan.pipeline.stages[stage].split() == operators::Split::Whole;
            if some && !all && !split && self.announced.contains(&stage) && !self.failed.is_empty() {
                self.fold(stage).await;
            }
        }
    }

    async fn fold(&mut self, stage: usize) -> Option<Vec<Arc<UnitRecord>>> {
        let records: Vec<Arc<UnitRecord>> =
            self.plan.units_of(stage).filter_map(|unit| self.plan.record(unit).cloned()).collect();
        let contended = self.contended().await;
        let fold = StageFold {
            stage: &self.plan.pipeline.stages[stage].name,
            run: self.record.run,
            scope: self.plan.scope(stage),
            units: &records,
            tables: &self.plan.tables_of(stage),
            contended,
        };
        match self.store.fold_stage(&fold).await {
            Ok(0) => Some(records),
            Ok(left) => {
                let name = fold.stage;
                self.display
                    .say(&format!("{name}: {left} partitions are left to a newer run, which is about them too"));
                Some(records)
            }
            Err(error) => {
                self.stop_with(error.into());
                None
            }
        }
    }

    /// Whether an older run may still be at work.
    async fn contended(&self) -> bool {
        let Ok(runs) = self.store.open_runs().await else { return true };
        let mut alive = false;
        for run in runs.into_iter().filter(|run| *run < self.record.run) {
            let within = Duration::from_secs(60);
            alive |= self.queue.is_run_alive(self.store.url().as_str(), run, within).await.unwrap_or(true);
        }
        alive
    }
}

/// `8 units, rows 4000 in, kept 3990, rejected 10`
pub(crate) fn summary(records: &[Arc<UnitRecord>]) -> String {
    let mut parts = Vec::new();
    if records.len() > 1 {
        parts.push(format!("{} units", records.len()));
    }
    let mut read: BTreeMap<&str, u64> = BTreeMap::new();
    for (port, rows) in records.iter().flat_map(|record| &record.rows_in) {
        *read.entry(port).or_default() += rows;
    }
    let read: Vec<String> = read.iter().map(|(port, rows)| format!("{port} {rows}")).collect();
    if !read.is_empty() {
        parts.push(format!("{} in", read.join(" and ")));
    }
    let first = records.first();
    for table in first.map(|record| record.tables.as_slice()).unwrap_or_default() {
        let rows: u64 = records.iter().map(|record| record.rows(&table.port)).sum();
        parts.push(format!("{} {rows}", table.port));
    }
    for files in first.map(|record| record.files.as_slice()).unwrap_or_default() {
        let count: usize = records
            .iter()
            .flat_map(|record| &record.files)
            .filter(|output| output.port == files.port)
            .map(|output| output.files.len())
            .sum();
        parts.push(format!("{} ({count} files)", files.port));
    }
    parts.join(", ")
}
