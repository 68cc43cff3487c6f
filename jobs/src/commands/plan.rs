//! `coa plan`: the units that would run, with the reason, and how many are done.

use std::collections::BTreeMap;

use clap::Args;
use pipelines::Selection;
use serde_json::json;

use super::backfill::About;
use super::{PipelineArgs, current_folder, print};
use crate::error::CommandError;
use crate::plan::{self, UnitState, existing};

/// See the module documentation.
#[derive(Args)]
pub(super) struct Plan {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Only this stage; `STAGE+` with all after it, `+STAGE` with all before it. May be given several times.
    #[arg(long, short, value_name = "STAGE")]
    select: Vec<String>,
    #[command(flatten)]
    about: About,
    /// As if finished units were to be done again.
    #[arg(long)]
    force: bool,
    /// As JSON, one object a unit.
    #[arg(long)]
    json: bool,
}

impl Plan {
    pub(super) async fn execute(self) -> Result<(), CommandError> {
        let pipeline = self.pipeline.load()?;
        let selection = Selection::parse(&pipeline, &self.select)?;
        let store = existing(&self.pipeline.address(&pipeline)?).await?;
        let request = plan::Request {
            selection,
            partitions: self.about.partitions()?,
            which: self.about.which(),
            force: self.force,
            folder: current_folder()?,
        };
        let plan = plan::Plan::make(pipeline, request, store.as_ref()).await?;
        let text = if self.json { as_json(&plan) } else { as_text(&plan) };
        print(&text);
        Ok(())
    }
}

fn as_json(plan: &plan::Plan) -> String {
    let units: Vec<serde_json::Value> = (0..plan.units.len())
        .filter(|unit| plan.selected(*unit))
        .map(|unit| {
            let (state, reason) = match &plan.units[unit].state {
                UnitState::Done(_) => ("done", None),
                UnitState::Due(reason) => ("run", Some(reason.to_string())),
            };
            json!({
                "stage": plan.stage(unit).name,
                "partition": plan.units[unit].partition,
                "state": state,
                "reason": reason,
            })
        })
        .collect();
    serde_json::to_string_pretty(&units).expect("plain data")
}

/// One line for units of a stage that have the same state, with the partitions where they are few.
fn as_text(plan: &plan::Plan) -> String {
    let mut lines = Vec::new();
    if let Some(partitions) = &plan.request.partitions {
        lines.push(format!("partitions {partitions}"));
    }
    for (stage, passed_over) in plan.passed_over.iter().filter(|(_, passed_over)| !passed_over.is_empty()) {
        let counts: Vec<String> = passed_over.iter().map(|(reason, n)| format!("{n} {reason}")).collect();
        lines.push(format!("{stage:<16} objects passed over: {}", counts.join(", ")));
    }
    let (mut due, mut done) = (0, 0);
    for (index, stage) in plan.pipeline.stages.iter().enumerate() {
        if !plan.request.selection.contains(&stage.name) {
            continue;
        }
        let mut by_state: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for unit in plan.units_of(index) {
            let state = match &plan.units[unit].state {
                UnitState::Done(_) => {
                    done += 1;
                    "done".to_owned()
                }
                UnitState::Due(_) if !plan.selected(unit) => continue,
                UnitState::Due(reason) => {
                    due += 1;
                    format!("run: {reason}")
                }
            };
            by_state.entry(state).or_default().push(&plan.units[unit].partition);
        }
        for (state, partitions) in by_state {
            let which = match &partitions[..] {
                ["all"] => String::new(),
                [one] => format!(" ({one})"),
                [first, .., last] => format!(" ({} units, {first} to {last})", partitions.len()),
                [] => String::new(),
            };
            lines.push(format!("{:<16} {state}{which}", stage.name));
        }
    }
    lines.push(format!("{due} units to run, {done} done"));
    lines.join("\n")
}
