//! The four filters of the Chain-of-Agents recipe, and the shape they share: rows in, kept and rejected rows out.
//!
//! Two of them shape the distribution rather than the set: `reflection_filter` keeps a share and `correction_upsample`
//! raises a weight. Which rows they touch is a function of the row and the seed alone, so the order of rows, the
//! number of workers and the cut into partitions change nothing.

pub mod complexity;
pub mod correction;
pub mod quality;
pub mod reflection;
mod row_filter;

pub use row_filter::{Filter, RowFilter, Verdict};
