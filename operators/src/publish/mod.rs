//! The operator `publish`: rows of any table as a data set in Hugging Face's layout.
//!
//! What it writes is a folder that `datasets.load_dataset(FOLDER)` loads, and whose Parquet files any reader takes:
//!
//! | file | what it is |
//! |---|---|
//! | `README.md` | the *card*: a YAML header that names configuration, splits, columns and size, and a text for people |
//! | `manifest.json` | the *lineage*: what was read, with what parameters; rows, bytes and SHA-256 of every other file |
//! | `data/train-00000-of-00002.parquet` | a *shard*: some of the rows of a split |
//!
//! A *group* is the rows that go to the same split together: those of one task. Which split that is depends on the
//! pipeline's seed and the group's name alone, so two stages with one seed and one share agree on it.
//!
//! A split into which no row fell is left out: `datasets` refuses a whole data set for the sake of one. Of no rows at
//! all, an empty shard of `train` remains, which tells the columns.

mod card;
mod columns;
mod manifest;
mod shards;

use std::num::NonZeroU64;

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch};
use arrow::compute::{filter_record_batch, not};
use arrow::datatypes::DataType;
use schemars::JsonSchema;
use schemas::TableDef;
use serde::{Deserialize, Serialize};

use crate::context::{UnitContext, share};
use crate::error::OperatorError;
use crate::operator::{Operator, Split};
use crate::params::{Fraction, ParamsError};
use crate::port::{AnyIn, FilesOut, Port};

use columns::Published;
use manifest::Manifest;
use shards::{Shard, ShardWriter};

/// Parameters of `publish`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The share of groups that go to `validation`, from 0 to less than 1; the others go to `train`. With 0 there is
    /// no `validation`.
    #[serde(default = "none")]
    pub validation: Fraction,
    /// The text column whose equal values never fall into both splits; rows without a value go by their own id. By
    /// default the row's task: `task_id`, `question_id` or `trace_id`, whichever the table has.
    #[serde(default)]
    pub group: Option<String>,
    /// A shard is closed before its rows would take more bytes than this, at least 100 KB. Only a larger row makes a
    /// larger one.
    #[serde(default = "half_a_gigabyte")]
    pub max_shard_bytes: NonZeroU64,
    /// The name of the configuration in the card.
    #[serde(default = "default_config")]
    pub config: String,
    /// The data set's title in the card.
    #[serde(default)]
    pub pretty_name: Option<String>,
    /// The id of its licence in the card, such as `apache-2.0`.
    #[serde(default)]
    pub license: Option<String>,
}

fn none() -> Fraction {
    Fraction::new(0.0)
}
fn half_a_gigabyte() -> NonZeroU64 {
    NonZeroU64::new(500_000_000).expect("not 0")
}
fn default_config() -> String {
    "default".to_owned()
}

/// Shards cannot be bounded more tightly: what a file says about itself would count for more than its rows.
const LEAST_SHARD_BYTES: u64 = 100_000;

/// Columns that name a row's task, where a table has them.
const TASKS: [&str; 3] = ["task_id", "question_id", "trace_id"];

/// The operator.
pub struct Publish {
    params: Params,
}

const ROWS: AnyIn = AnyIn::new("rows", "the rows to publish");
const DATASET: FilesOut = FilesOut::new("dataset", "dataset", "README.md, manifest.json and data/*.parquet");

impl Operator for Publish {
    const NAME: &'static str = "publish";
    const VERSION: u32 = 1;
    const ABOUT: &'static str = "Writes the rows of any table as a data set in Hugging Face's layout: Parquet shards of a \
                                 train and a validation split that share no task, a card, and a manifest.";
    const INPUTS: &'static [Port] = &[ROWS.port()];
    const OUTPUTS: &'static [Port] = &[DATASET.port()];
    const SEEDED: bool = true;
    type Params = Params;

    fn new(params: Params) -> Result<Self, ParamsError> {
        if params.validation.get() >= 1.0 {
            return Err(ParamsError::at("validation", "out of range: 1 leaves nothing to train on"));
        }
        if params.max_shard_bytes.get() < LEAST_SHARD_BYTES {
            return Err(ParamsError::at("max_shard_bytes", format!("out of range: the least is {LEAST_SHARD_BYTES}")));
        }
        plain_word("config", &params.config)?;
        params.license.as_deref().map_or(Ok(()), |license| plain_word("license", license))?;
        if params.pretty_name.as_ref().is_some_and(|name| name.trim().is_empty() || name.contains(char::is_control)) {
            return Err(ParamsError::at("pretty_name", "expected one line of text"));
        }
        Ok(Self { params })
    }

    fn split(&self) -> Split {
        Split::Whole
    }

    fn run(&self, cx: &UnitContext<'_>) -> Result<(), OperatorError> {
        let origin = cx.origin(&ROWS)?;
        let published = Published::of(&origin.table);
        let groups = Groups::new(&self.params, &origin.table, cx.seed("split"))?;
        let writer = |split| ShardWriter::new(cx.scratch, split, published.schema(), self.params.max_shard_bytes.get());
        let mut train = writer("train");
        let mut validation = writer("validation");

        let expected: u64 = origin.units.iter().map(|unit| unit.rows).sum();
        cx.progress.begin(Some(expected), "rows");
        let mut read = 0;
        while let Some(batch) = cx.next_of(&ROWS, &origin.table)? {
            cx.check_stop()?;
            read += batch.num_rows() as u64;
            let held_out = groups.held_out(&batch);
            let batch = published.convert(&batch)?;
            train.write(
                &filter_record_batch(&batch, &not(&held_out).map_err(shards::failed)?).map_err(shards::failed)?,
            )?;
            validation.write(&filter_record_batch(&batch, &held_out).map_err(shards::failed)?)?;
            cx.progress.at(read, "");
        }

        if read == 0 {
            train.begin()?;
        }
        let mut splits = vec![("train", train.finish()?), ("validation", validation.finish()?)];
        splits.retain(|(_, shards)| !shards.is_empty());
        let written: u64 = splits.iter().flat_map(|(_, shards)| shards).map(|shard| shard.rows).sum();
        if read != expected || written != read {
            let message = format!("the input has {expected} rows, {read} were read and {written} written");
            return Err(OperatorError::internal(message));
        }
        for (split, shards) in &splits {
            cx.io.count(&format!("{split}_rows"), shards.iter().map(|shard| shard.rows).sum());
            for shard in shards {
                cx.put_file(&DATASET, &shard.name, &shard.path)?;
            }
        }
        let card = card::card(&self.params, &origin, &published, &groups.columns, &splits);
        cx.put_bytes(&DATASET, "README.md", card.as_bytes())?;
        let manifest =
            Manifest::new(&self.params, cx.pipeline_seed, &origin, &published, &groups.columns, &splits, &card);
        cx.put_bytes(&DATASET, "manifest.json", manifest.to_json().as_bytes())
    }
}

/// Names that stand in a YAML header and become parts of paths.
fn plain_word(key: &'static str, word: &str) -> Result<(), ParamsError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if word.is_empty() || !word.starts_with(|c: char| c.is_ascii_alphanumeric()) || !word.chars().all(plain) {
        return Err(ParamsError::at(key, format!("`{word}`: expected letters, digits, `-`, `_` and `.`")));
    }
    Ok(())
}

/// Tells which split a row goes to.
struct Groups {
    /// The share of groups that are held out.
    share: f64,
    /// What each draw is made from.
    seed: u64,
    /// The columns that name a row's group: the first that has a value.
    columns: Vec<String>,
}

impl Groups {
    fn new(params: &Params, table: &TableDef, seed: u64) -> Result<Self, OperatorError> {
        let share = params.validation.get();
        let schema = table.schema();
        let is_text = |name: &str| schema.field_with_name(name).is_ok_and(|field| field.data_type() == &DataType::Utf8);
        let texts = || {
            let names = schema.fields().iter().map(|field| field.name()).filter(|name| is_text(name.as_str()));
            let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        let mut columns: Vec<&str> = match &params.group {
            Some(group) if !is_text(group) => {
                let message = format!("`group`: rows of `{}` have no text column `{group}`", table.name);
                return Err(OperatorError::input(message).hint(format!("its text columns are {}", texts())));
            }
            Some(group) => vec![group],
            None => TASKS.into_iter().filter(|name| is_text(name)).collect(),
        };
        columns.extend(table.key.filter(|key| is_text(key) && !columns.contains(key)));
        if columns.is_empty() && share > 0.0 {
            let message = format!("rows of `{}` have neither task nor id that splits could be made by", table.name);
            let hint =
                format!("name a column with `group`, or leave out `validation`; its text columns are {}", texts());
            return Err(OperatorError::input(message).hint(hint));
        }
        Ok(Self { share, seed, columns: columns.into_iter().map(str::to_owned).collect() })
    }

    /// For each row, whether it goes to `validation`.
    fn held_out(&self, batch: &RecordBatch) -> BooleanArray {
        let columns = self.columns.iter().filter_map(|name| batch.column_by_name(name));
        let columns: Vec<_> = columns.filter_map(|column| column.as_string_opt::<i32>()).collect();
        let draw = |row: usize| {
            // Rows without any name are one group.
            let name = columns.iter().find(|column| column.is_valid(row)).map_or("", |column| column.value(row));
            Some(self.share > 0.0 && share(self.seed, name) < self.share)
        };
        (0..batch.num_rows()).map(draw).collect()
    }
}

/// A split and its shards.
type SplitShards = (&'static str, Vec<Shard>);

#[cfg(test)]
mod tests;
