//! `coa gc` and `coa compact`: what they take away is what nothing needs, and no row with it.

mod clocked;
mod commands;
mod stage;
mod versions;

pub(crate) use commands::{collects, scene_for_servers};
