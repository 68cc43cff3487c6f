//! Filters that look at one row at a time.

use schemars::JsonSchema;
use schemas::{Rejected, Table};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::context::UnitContext;
use crate::error::OperatorError;
use crate::operator::Operator;
use crate::params::ParamsError;
use crate::port::{In, Out, Port};

/// What a filter makes of a row.
pub enum Verdict<R> {
    /// The row goes on, perhaps with another weight.
    Keep(R),
    /// The row does not go on.
    Reject {
        /// A word for grouping.
        reason: &'static str,
        /// For a person.
        detail: String,
    },
}

impl<R> Verdict<R> {
    /// A rejection.
    pub fn reject(reason: &'static str, detail: impl Into<String>) -> Self {
        Self::Reject { reason, detail: detail.into() }
    }
}

/// A filter: one row in, one verdict out. [`Filter`] makes an operator of it.
pub trait RowFilter: Sized + Send + Sync + 'static {
    /// [`Operator::NAME`].
    const NAME: &'static str;
    /// [`Operator::VERSION`].
    const VERSION: u32;
    /// [`Operator::ABOUT`].
    const ABOUT: &'static str;
    /// [`Operator::SEEDED`].
    const SEEDED: bool = false;
    /// The rows it judges.
    type Row: Table;
    /// [`Operator::Params`].
    type Params: DeserializeOwned + Serialize + JsonSchema + Send + Sync;

    /// [`Operator::new`].
    fn new(params: Self::Params) -> Result<Self, ParamsError>;
    /// The row's key and the task it belongs to.
    fn identify(row: &Self::Row) -> (String, Option<String>);
    /// Judges a row. `seed` is the pipeline's and may be used only where `SEEDED`.
    fn judge(&self, row: Self::Row, seed: u64) -> Verdict<Self::Row>;
}

/// A [`RowFilter`] as an operator: `rows` in, `kept` and `rejected` out.
pub struct Filter<F>(F);

impl<F: RowFilter> Filter<F> {
    const ROWS: In<F::Row> = In::new("rows", "the rows to judge");
    const KEPT: Out<F::Row> = Out::new("kept", "the rows that go on");
    const REJECTED: Out<Rejected> = Out::new("rejected", "the rows that do not, with the reason");
}

impl<F: RowFilter> Operator for Filter<F> {
    const NAME: &'static str = F::NAME;
    const VERSION: u32 = F::VERSION;
    const ABOUT: &'static str = F::ABOUT;
    const INPUTS: &'static [Port] = &[Self::ROWS.port()];
    const OUTPUTS: &'static [Port] = &[Self::KEPT.port(), Self::REJECTED.port()];
    const SEEDED: bool = F::SEEDED;
    type Params = F::Params;

    fn new(params: F::Params) -> Result<Self, ParamsError> {
        F::new(params).map(Filter)
    }

    fn run(&self, cx: &UnitContext<'_>) -> Result<(), OperatorError> {
        cx.progress.begin(None, "rows");
        let mut done = 0;
        while let Some(rows) = cx.next(&Self::ROWS)? {
            cx.check_stop()?;
            done += rows.len() as u64;
            let (mut kept, mut rejected) = (Vec::new(), Vec::new());
            for row in rows {
                let (row_id, task_id) = F::identify(&row);
                match self.0.judge(row, cx.pipeline_seed) {
                    Verdict::Keep(row) => kept.push(row),
                    Verdict::Reject { reason, detail } => {
                        rejected.push(Rejected::new(row_id, task_id, reason, detail));
                    }
                }
            }
            cx.append(&Self::KEPT, &kept)?;
            cx.append(&Self::REJECTED, &rejected)?;
            cx.progress.at(done, "");
        }
        Ok(())
    }
}
