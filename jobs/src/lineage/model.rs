//! A model or a checkpoint: the training that made it, how far it went, and what it was trained on.

use std::sync::Arc;

use schemas::{Table, TokenizedSample, TrainingStep};
use serde::Serialize;
use serde_json::Value;
use store::{PortRead, SavedStep, UnitRecord};

use super::made::{Made, Start, trace};
use super::past::{Past, place};
use super::{Branch, Lineage, counted};
use crate::error::CommandError;

/// The kind of files that are a model.
const MODEL: &str = "model";

/// A training.
#[derive(Serialize)]
struct Training {
    stage: String,
    run: u64,
    attempt: String,
    /// Steps that were done.
    step: Option<u64>,
    /// Steps that were asked for.
    steps: Option<u64>,
    /// Whether the model is that of a checkpoint.
    checkpoint: Option<u64>,
    /// Bytes of the checkpoint's files.
    checkpoint_bytes: Option<u64>,
    params: Value,
    seed: Option<u64>,
    data: Vec<Data>,
    /// Tokens that steps were made on, each as often as it was; none before the end.
    tokens_seen: Option<u64>,
    trained_tokens_seen: Option<u64>,
}

/// A table it was trained on.
#[derive(Serialize)]
struct Data {
    /// As `stage.port@v3`.
    table: String,
    rows: u64,
    tokens: u64,
    trained_tokens: u64,
    /// Digests of the tokenizers that made the tokens: one, unless something is wrong.
    tokenizers: Vec<String>,
}

/// What there is to say of a training, where a making's outputs are a model.
pub(super) async fn training(
    past: &mut Past<'_>,
    made: &Made,
    saved: Option<&SavedStep>,
) -> Result<Option<(Value, Branch)>, CommandError> {
    let Some([unit]) = made.units.first().map(Vec::as_slice) else { return Ok(None) };
    let unit: Arc<UnitRecord> = Arc::clone(unit);
    if saved.is_none() && !unit.files.iter().any(|files| files.kind == MODEL) {
        return Ok(None);
    }
    let mut data = Vec::new();
    for read in past.reads(&unit).await?.ports {
        data.extend(tokens(past, &read).await?);
    }
    let figures = match saved {
        Some(_) => None,
        None => steps(past, &unit).await?,
    };
    let [step, tokens_seen, trained_tokens_seen] = figures.unwrap_or([None; 3]);
    let training = Training {
        stage: unit.stage.clone(),
        run: unit.run,
        attempt: unit.attempt.clone(),
        step: saved.map(|saved| saved.step).or(step),
        steps: unit.params["steps"].as_u64(),
        checkpoint: saved.map(|saved| saved.step),
        checkpoint_bytes: saved.map(|saved| saved.bytes),
        params: unit.params.clone(),
        seed: unit.seed,
        data,
        tokens_seen,
        trained_tokens_seen,
    };
    let json = serde_json::to_value(&training).expect("plain data");
    Ok(Some((json, training.told())))
}

/// A checkpoint, or the model of a training that ended at this step.
pub(super) async fn step(past: &mut Past<'_>, asked: &str, stage: &str, step: u64) -> Result<Lineage, CommandError> {
    let saved = past.store.saved_steps(stage).await?;
    if let Some(found) = saved.iter().rev().find(|saved| saved.step == step) {
        let Some(unit) = past.unfinished(&found.attempt) else {
            return Err(CommandError::usage(format!("the record of run {} is gone", found.attempt.run)));
        };
        let start = Start { stage: stage.to_owned(), ports: Vec::new(), units: vec![Arc::new(unit)], version: None };
        let made = trace(past, start).await?;
        let training = training(past, &made, Some(found)).await?;
        return Ok(made.lineage(asked, training));
    }
    let mut known: Vec<String> = saved.iter().map(|saved| format!("{stage}@{}", saved.step)).collect();
    for unit in past.current(stage).await?.into_values() {
        if let Some([Some(last), ..]) = steps(past, &unit).await? {
            if last == step {
                let start = Start::shown(past, stage, None, None).await?;
                let made = trace(past, start).await?;
                let training = training(past, &made, None).await?;
                return Ok(made.lineage(asked, training));
            }
            known.push(format!("{stage}@{last}"));
        }
    }
    let hint = match known.is_empty() {
        true => format!("`{stage}` has none: is it a stage that trains?"),
        false => format!("there is {}; a training that is done keeps its end only", known.join(", ")),
    };
    Err(CommandError::Usage { message: format!("there is no checkpoint or model `{asked}`"), hint: Some(hint) })
}

/// What a unit read of tokens.
async fn tokens(past: &mut Past<'_>, read: &PortRead) -> Result<Option<Data>, CommandError> {
    let table = past.table(&read.stage, &read.from).filter(|table| table.table == TokenizedSample::NAME).cloned();
    let Some(table) = table else { return Ok(None) };
    let Some((version, _)) = past.history(&table).await?.showing(&read.attempts) else { return Ok(None) };
    let name = format!("\"{}\".\"{}@v{version}\"", table.stage, table.port);
    let partitions: Vec<String> = read.attempts.keys().map(|partition| super::past::literal(partition)).collect();
    let sql = format!(
        "select count(*) as rows, sum(cardinality(input_ids)) as tokens, sum(trained_tokens) as trained, \
         array_agg(distinct tokenizer) as tokenizers from {name} where partition in ({})",
        partitions.join(", ")
    );
    let rows = past.rows(&sql).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let number = |column: &str| row[column].as_u64().unwrap_or_default();
    let tokenizers = row["tokenizers"].as_array().into_iter().flatten().filter_map(Value::as_str);
    Ok(Some(Data {
        table: format!("{}.{}@v{version}", table.stage, table.port),
        rows: number("rows"),
        tokens: number("tokens"),
        trained_tokens: number("trained"),
        tokenizers: tokenizers.map(str::to_owned).collect(),
    }))
}

/// The last step of a training, and the tokens and trained tokens of all its steps.
async fn steps(past: &mut Past<'_>, unit: &UnitRecord) -> Result<Option<[Option<u64>; 3]>, CommandError> {
    let written = unit.tables.iter().find(|table| table.table == TrainingStep::NAME && table.rows > 0);
    let Some(table) = written.and_then(|written| past.table(&unit.stage, &written.port)).cloned() else {
        return Ok(None);
    };
    let sql = format!(
        "select max(step) as step, sum(tokens) as tokens, sum(trained_tokens) as trained from {} where partition = {}",
        place(&table),
        super::past::literal(&unit.partition)
    );
    let rows = past.rows(&sql).await?;
    Ok(rows.first().map(|row| ["step", "tokens", "trained"].map(|column| row[column].as_u64())))
}

impl Training {
    fn told(&self) -> Branch {
        let of = self.steps.map(|steps| format!(" of {steps}")).unwrap_or_default();
        let step = self.step.map(|step| format!("step {step}{of}")).unwrap_or_else(|| "no steps".to_owned());
        let what = match self.checkpoint_bytes {
            Some(bytes) => format!("a checkpoint, {bytes} bytes, saved by attempt {}", self.attempt),
            None => "a model".to_owned(),
        };
        let mut branch = Branch::leaf(format!("{what}: {} in run {}, {step}", self.stage, self.run));
        for data in &self.data {
            branch.push(Branch::leaf(format!(
                "trained on {}: {}, {} ({} trained), tokenizer {}",
                data.table,
                counted(data.rows, "row"),
                counted(data.tokens, "token"),
                data.trained_tokens,
                data.tokenizers.join(" and ")
            )));
        }
        if let (Some(seen), Some(trained)) = (self.tokens_seen, self.trained_tokens_seen) {
            branch.push(Branch::leaf(format!("its steps saw {} ({trained} trained)", counted(seen, "token"))));
        }
        branch
    }
}
