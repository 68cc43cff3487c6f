//! Tests of the product through what its users touch: the command line, pipeline files and the store.

mod bad_input;
mod cases;
mod check;
mod coa;
mod collections;
mod crash;
mod kill;
mod plan;
mod queries;
mod tidy;
