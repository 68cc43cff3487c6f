//! `coa report`: what a pipeline did, from its store: rows of each stage, tokens, losses, the agent's success, times.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Float64Type, Int64Type};
use clap::Args;
use schemas::{Rejected, Rollout, Table, TokenizedSample, TrainingStep};
use serde_json::Value;
use store::{Store, StoredTable, UnitRecord, tables};

use super::{StoreArgs, print};
use crate::error::CommandError;
use crate::sql::{Answer, query};

/// See the module documentation.
#[derive(Args)]
pub(super) struct Report {
    #[command(flatten)]
    store: StoreArgs,
}

impl Report {
    pub(super) async fn execute(self) -> Result<(), CommandError> {
        let store = self.store.open().await?;
        let Some((run, _)) = store.last_run().await? else {
            return Err(CommandError::usage(format!("nothing was run in `{}` yet", store.url())));
        };
        let mut text = format!("pipeline `{}`, seed {}, in {}\n", run.pipeline, run.seed, store.url());
        let stages = Stages::of(&store, &run.resolved["stages"]).await?;
        text.push_str(&stages.rows());
        // Of the last run's stages, and only where they are done as that run wants them.
        let stored: Vec<StoredTable> =
            tables(&store).await?.into_iter().filter(|table| stages.units(&table.stage).is_some()).collect();
        for table in of::<Rejected>(&stored) {
            text.push_str(&rejections(&store, table).await?);
        }
        for table in of::<TokenizedSample>(&stored) {
            text.push_str(&tokens(&store, table).await?);
        }
        for table in of::<TrainingStep>(&stored) {
            text.push_str(&training(&store, table).await?);
        }
        for table in of::<Rollout>(&stored) {
            text.push_str(&agent(&store, table).await?);
        }
        print(text.trim_end());
        Ok(())
    }
}

fn of<T: Table>(stored: &[StoredTable]) -> impl Iterator<Item = &StoredTable> {
    stored.iter().filter(|table| table.table == T::NAME && table.version == T::VERSION)
}

/// The stages of a run with the units that make them up.
struct Stages<'a>(Vec<(&'a str, &'a Value, Vec<Arc<UnitRecord>>)>);

impl<'a> Stages<'a> {
    async fn of(store: &Store, settings: &'a Value) -> Result<Self, CommandError> {
        let mut stages = Vec::new();
        for (name, settings) in settings.as_object().into_iter().flatten() {
            let print = settings["fingerprint"].as_str().unwrap_or_default();
            let units = store.current_units(name).await?.into_iter().filter(|unit| unit.fingerprint == print);
            stages.push((name.as_str(), settings, units.collect()));
        }
        Ok(Self(stages))
    }

    /// The units of a stage; none where nothing is done.
    fn units(&self, stage: &str) -> Option<&[Arc<UnitRecord>]> {
        let found = self.0.iter().find(|(name, _, _)| *name == stage)?;
        (!found.2.is_empty()).then_some(&found.2)
    }

    /// Rows in and out of each stage, and its time.
    fn rows(&self) -> String {
        let mut text = format!(
            "\n{:<16} {:<20} {:>6} {:>9}  {:<44} {:>8}\n",
            "stage", "operator", "units", "rows in", "rows out", "seconds"
        );
        let mut total = 0.0;
        for (name, settings, units) in &self.0 {
            // What is read from a source is not rows yet, but records.
            let rows: u64 = units.iter().flat_map(|unit| unit.rows_in.values()).sum();
            let records: u64 = units.iter().filter_map(|unit| unit.counts.get("records")).sum();
            let rows_in = rows + records;
            let mut out: BTreeMap<&str, u64> = BTreeMap::new();
            for table in units.iter().flat_map(|unit| &unit.tables) {
                *out.entry(&table.port).or_default() += table.rows;
            }
            let out: Vec<String> = out.into_iter().map(|(port, rows)| format!("{port} {rows}")).collect();
            let seconds: f64 = units.iter().map(|unit| unit.seconds).sum();
            total += seconds;
            let operator = settings["operator"].as_str().unwrap_or_default();
            let _ = writeln!(
                text,
                "{name:<16} {operator:<20} {:>6} {rows_in:>9}  {:<44} {seconds:>8.1}",
                units.len(),
                out.join(", ")
            );
        }
        let _ = writeln!(text, "{:<100} {total:>8.1}", "all units");
        text
    }
}

/// A table's name in a query.
fn place(table: &StoredTable) -> String {
    format!("\"{}\".\"{}\"", table.stage, table.port)
}

async fn rejections(store: &Store, table: &StoredTable) -> Result<String, CommandError> {
    let place = place(table);
    let sql = format!("select reason, count(*) as n from {place} group by reason order by n desc, reason");
    let answer = query(store, &sql).await?;
    let mut reasons = Vec::new();
    for batch in &answer.batches {
        let counts = batch.column(1).as_primitive::<Int64Type>();
        for row in 0..batch.num_rows() {
            reasons.push(format!("{} {}", cell_text(batch.column(0).as_ref(), row), counts.value(row)));
        }
    }
    if reasons.is_empty() {
        return Ok(String::new());
    }
    Ok(format!("rejected by {}: {}\n", table.stage, reasons.join(", ")))
}

async fn tokens(store: &Store, table: &StoredTable) -> Result<String, CommandError> {
    let place = place(table);
    let sql = format!(
        "select count(*), sum(cardinality(input_ids)), sum(trained_tokens), sum(observation_tokens), sum(cast(truncated as bigint)) from {place}"
    );
    let numbers = numbers(&query(store, &sql).await?);
    let [samples, all, trained, observed, cut] = numbers[..] else { return Ok(String::new()) };
    let share = 100.0 * trained / all.max(1.0);
    Ok(format!(
        "\ntokens of {}.{}: {samples} samples, {all} tokens, {trained} trained ({share:.1} %), {} masked ({observed} of them observations), {cut} samples cut\n",
        table.stage,
        table.port,
        all - trained
    ))
}

async fn training(store: &Store, table: &StoredTable) -> Result<String, CommandError> {
    let place = place(table);
    let sql = format!(
        "select max(step), avg(loss) filter (where step <= 10), avg(loss) filter (where step > last - 10), sum(tokens), sum(trained_tokens), sum(seconds), sum(cast(skipped as bigint)) \
         from {place} cross join (select max(step) as last from {place})"
    );
    let figures = numbers(&query(store, &sql).await?);
    let [steps, first, last, tokens, trained, seconds, skipped] = figures[..] else { return Ok(String::new()) };
    let sql = format!("select step, heldout_loss from {place} where heldout_loss is not null order by step");
    let heldout = query(store, &sql).await?;
    let mut measured: Vec<(i64, f64)> = Vec::new();
    for batch in &heldout.batches {
        let (steps, losses) =
            (batch.column(0).as_primitive::<Int64Type>(), batch.column(1).as_primitive::<Float64Type>());
        measured.extend((0..batch.num_rows()).map(|row| (steps.value(row), losses.value(row))));
    }
    let mut text = format!(
        "\ntraining of {}: {steps} steps, loss {first:.4} (first 10 steps) -> {last:.4} (last 10), {tokens} tokens seen, {trained} trained, {:.0} tokens/s, {skipped} steps skipped\n",
        table.stage,
        tokens / seconds.max(1e-9)
    );
    if !measured.is_empty() {
        let points: Vec<String> = measured.iter().map(|(step, loss)| format!("{loss:.4} (step {step})")).collect();
        let _ = writeln!(text, "held-out loss: {}", points.join(", "));
    }
    Ok(text)
}

async fn agent(store: &Store, table: &StoredTable) -> Result<String, CommandError> {
    let place = place(table);
    let figures = |group: &str| {
        format!(
            "select {group} as grouped, count(*), sum(cast(correct as bigint)), sum(cast(finish = 'answer' as bigint)), \
             sum(tool_calls), sum(failed_calls), sum(sampled_tokens) from {place} group by grouped order by grouped"
        )
    };
    let mut text = String::new();
    for (temperature, row) in grouped(&query(store, &figures("cast(temperature as varchar)")).await?) {
        let [rollouts, right, answered, calls, failed, sampled] = row[..] else { continue };
        let (low, high) = wilson(right as u64, rollouts as u64);
        let decoding = match temperature.as_str() {
            "0.0" | "0" => "greedy".to_owned(),
            other => format!("sampled at temperature {other}"),
        };
        let _ = writeln!(
            text,
            "\nagent of {}, {decoding}: {right} of {rollouts} right = {:.1} % (95 % interval {:.1} to {:.1} %)\n  \
             {:.1} % gave an answer, {:.2} calls a rollout, {:.1} % of calls failed, {:.0} tokens sampled per success",
            table.stage,
            100.0 * right / rollouts,
            100.0 * low,
            100.0 * high,
            100.0 * answered / rollouts,
            calls / rollouts,
            100.0 * failed / calls.max(1.0),
            sampled / right.max(1.0),
        );
    }
    let by_kind: Vec<String> = grouped(&query(store, &figures("kind")).await?)
        .into_iter()
        .map(|(kind, row)| format!("{kind} {:.0} % of {}", 100.0 * row[1] / row[0], row[0]))
        .collect();
    let _ = writeln!(text, "  by kind: {}", by_kind.join(", "));
    Ok(text)
}

/// The Wilson score interval of a share, 95 %.
///
/// Wilson, "Probable inference, the law of succession, and statistical inference", 1927.
fn wilson(right: u64, of: u64) -> (f64, f64) {
    if of == 0 {
        return (0.0, 1.0);
    }
    let (n, p, z) = (of as f64, right as f64 / of as f64, 1.959_964);
    let middle = p + z * z / (2.0 * n);
    let half = z * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
    let scale = 1.0 + z * z / n;
    ((middle - half) / scale, (middle + half) / scale)
}

/// The first row, as numbers; null is 0.
fn numbers(answer: &Answer) -> Vec<f64> {
    let Some(batch) = answer.batches.iter().find(|batch| batch.num_rows() > 0) else { return Vec::new() };
    batch.columns().iter().map(|column| cell_number(column.as_ref(), 0)).collect()
}

/// The first column as text, the others as numbers.
fn grouped(answer: &Answer) -> Vec<(String, Vec<f64>)> {
    let mut rows = Vec::new();
    for batch in &answer.batches {
        for row in 0..batch.num_rows() {
            let numbers = batch.columns()[1..].iter().map(|column| cell_number(column.as_ref(), row)).collect();
            rows.push((cell_text(batch.column(0).as_ref(), row), numbers));
        }
    }
    rows
}

fn cell_text(column: &dyn Array, row: usize) -> String {
    arrow::util::display::array_value_to_string(column, row).unwrap_or_default()
}

fn cell_number(column: &dyn Array, row: usize) -> f64 {
    cell_text(column, row).parse().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::wilson;

    #[test]
    fn the_interval_of_a_share() {
        let (low, high) = wilson(50, 100);
        assert!((low - 0.403_83).abs() < 1e-4 && (high - 0.596_17).abs() < 1e-4, "{low} {high}");
        let (low, high) = wilson(0, 10);
        assert!(low.abs() < 1e-9 && (high - 0.277_53).abs() < 1e-4, "{low} {high}");
    }
}
