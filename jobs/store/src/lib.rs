//! The store: tables, files, records and checkpoints of one pipeline, in an object store or a local folder.
//!
//! What is done is decided here and nowhere else. One primitive carries it: creating an object that must not exist yet.
//!
//! 1. An attempt writes its data under names of its own. Nobody reads them.
//! 2. The unit's record is created under a name that depends on the stage's fingerprint, the partition and the inputs
//!    alone. The first attempt wins, whatever the job queue believes; a second one, or one that was taken for dead and
//!    wakes, finds the record there and changes nothing.
//! 3. When all units of a stage are done, a fold brings each of its Delta tables in line with the records, in one log
//!    entry. It works out the difference afresh every time, so running it early, late or twice is harmless. Where runs
//!    overlap, a partition belongs to the newest run about it ([`stage`]).
//!
//! Stages read their inputs from unit records; people and SQL read the Delta tables. What neither refers to any more is
//! deleted by [`gc`], and only by that.
//!
//! Only [`paths`] formats a key of the store, and only this crate knows Delta Lake.

mod attempt;
mod checkpoints;
mod compact;
mod damage;
mod delta;
pub mod doctor;
mod error;
pub mod gc;
mod history;
mod location;
mod parquet_io;
mod paths;
mod record;
mod s3;
mod source;
mod stage;
mod store;
mod transfer;

pub use attempt::{AttemptIo, InputPort, UnitPlace};
pub use checkpoints::{Checkpoints, SavedStep};
pub use compact::{Compacted, compact};
pub use damage::damaged_file;
pub use delta::{OpenTable, StoredTable, open, tables, versions};
pub use error::{StoreError, StoreErrorKind};
pub use history::{StagePast, TableHistory, table_history};
pub use location::parse_store;
pub use record::{
    AttemptEnd, AttemptRecord, DataFile, FilesOutput, ObjectRead, Outcome, PortRead, RunEnd, RunRecord, StageEnd,
    StageOutcome, StageRecord, StoredFile, TableOutput, UnitRead, UnitRecord, UnitWant,
};
pub use s3::S3;
pub use source::{SourceListing, SourcePartition, list_source, look_at};
pub use stage::{Scope, StageFold, StageUnits};
pub use store::{Created, Store};
