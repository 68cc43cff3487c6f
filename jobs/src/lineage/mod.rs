//! Lineage: where a table, a row or a model came from, told from the records in the store.
//!
//! Three questions are answered.
//!
//! - [`made`]: which units wrote a version of a table, or files of a stage; with which operator, parameters and seed, in
//!   which run of which pipeline text; and the same of all they read, down to the objects of sources.
//! - [`row`]: the tables that hold a row, the reason where it was turned down, who read it, and the place in the source
//!   that its record was read from.
//! - [`model`]: what a model or a checkpoint was trained with and on.
//!
//! [`what`] says which of them is asked, [`past`] knows the records, [`source`] compares objects with what they were, and
//! [`branch`] is the text that people read.

mod branch;
mod made;
mod model;
mod past;
mod row;
mod source;
mod what;

use serde_json::Value;
use store::Store;

use crate::error::CommandError;
pub(crate) use branch::Branch;
use past::Past;
use what::What;

/// An answer, as data and as text.
pub(crate) struct Lineage {
    /// For programs.
    pub(crate) json: Value,
    /// For people: one tree or several.
    pub(crate) text: Vec<Branch>,
}

/// Tells where something came from: `stage.port`, `stage.port@v3`, `stage`, `stage@STEP`, a row's id or its beginning,
/// or `SOURCE:LINE`.
pub(crate) async fn lineage(store: &Store, asked: &str) -> Result<Lineage, CommandError> {
    let mut past = Past::new(store).await?;
    match what::find(&mut past, asked).await? {
        What::Output { stage, port, version } => {
            let start = made::Start::shown(&mut past, &stage, port.as_deref(), version).await?;
            let made = made::trace(&mut past, start).await?;
            let training = model::training(&mut past, &made, None).await?;
            Ok(made.lineage(asked, training))
        }
        What::Step { stage, step } => model::step(&mut past, asked, &stage, step).await,
        What::Row { id } => row::trace(&mut past, &id).await,
        What::Quarantined { place } => row::quarantined(&mut past, place).await,
    }
}

/// A number with its noun: `1 row`, `2 rows`.
fn counted(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
