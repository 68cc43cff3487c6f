//! Tests of the product through what its users touch: the command line, pipeline files and the store.

mod backfill;
mod bad_input;
mod bucket;
mod cases;
mod check;
mod coa;
mod collections;
mod columns;
mod crash;
mod damage;
mod faults;
mod gc;
mod kill;
mod lineage;
mod old;
mod plan;
mod publish;
mod queries;
mod report;
mod sql;
mod sql_shell;
mod telemetry;
mod tidy;
