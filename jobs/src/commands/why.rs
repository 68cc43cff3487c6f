//! Why a run did a unit, or did not have to: told from the unit's record and the one before it.

use std::collections::BTreeMap;

use serde_json::Value;
use store::{RunRecord, UnitRecord};

/// How many of a stage's units there are for each reason.
pub(super) type Reasons = BTreeMap<String, usize>;

/// Counts the reasons of units; `all` are all units of their stage.
pub(super) fn reasons<'a>(
    run: &RunRecord,
    units: impl IntoIterator<Item = &'a UnitRecord>,
    all: &[UnitRecord],
) -> Reasons {
    let mut reasons = Reasons::new();
    for unit in units {
        let earlier = all.iter().filter(|other| other.partition == unit.partition && other.run < unit.run);
        let before = earlier.max_by(|a, b| a.run.cmp(&b.run).then_with(|| a.finished.cmp(&b.finished)));
        *reasons.entry(why(run, unit, before)).or_default() += 1;
    }
    reasons
}

fn why(run: &RunRecord, unit: &UnitRecord, before: Option<&UnitRecord>) -> String {
    if unit.run != run.run {
        return format!("reused from run {}", unit.run);
    }
    let Some(before) = before else {
        return if run.force { "run as forced" } else { "run as new" }.to_owned();
    };
    if before.operator != unit.operator {
        return format!("run again: operator `{}` was `{}`", unit.operator, before.operator);
    }
    if before.operator_version != unit.operator_version {
        return format!("run again: operator version {} -> {}", before.operator_version, unit.operator_version);
    }
    let mut changes = Vec::new();
    for (key, value) in unit.params.as_object().into_iter().flatten() {
        let was = before.params.get(key).unwrap_or(&Value::Null);
        if was != value {
            changes.push(format!("{key} {was} -> {value}"));
        }
    }
    if let (Some(was), Some(seed)) = (before.seed, unit.seed)
        && was != seed
    {
        changes.push(format!("seed {was} -> {seed}"));
    }
    match changes.is_empty() {
        true => "run again: inputs changed".to_owned(),
        false => format!("run again: parameters changed: {}", changes.join(", ")),
    }
}

/// `reused from run 1 (3 units), run as new (1 unit)`
pub(super) fn told(reasons: &Reasons) -> String {
    let part = |(reason, units): (&String, &usize)| match units {
        1 => reason.clone(),
        units => format!("{reason} ({units} units)"),
    };
    reasons.iter().map(part).collect::<Vec<String>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn unit(run: u64, params: Value) -> UnitRecord {
        serde_json::from_value(json!({"version": 1, "unit": "u", "run": run, "stage": "s", "operator": "o",
            "operator_version": 1, "params": params, "seed": null, "fingerprint": "f", "partition": "p", "inputs": "i",
            "attempt": "a", "worker": "w", "tables": [], "files": [], "rows_in": {}, "counts": {}, "started": "",
            "finished": "", "seconds": 0.0}))
        .unwrap()
    }

    fn run(number: u64) -> RunRecord {
        serde_json::from_value(
            json!({"version": 1, "run": number, "pipeline": "p", "path": "", "folder": "", "text": "",
            "seed": 0, "resolved": {}, "select": [], "partitions": null, "time_zone": null, "force": false,
            "resumes": null, "worker": "w", "started": ""}),
        )
        .unwrap()
    }

    #[test]
    fn each_unit_has_one_reason() {
        let all = [unit(1, json!({"least": 5})), unit(2, json!({"least": 6})), unit(3, json!({"least": 6}))];
        let of = |number: u64, which: usize| told(&reasons(&run(number), [&all[which]], &all));
        assert_eq!(of(1, 0), "run as new");
        assert_eq!(of(2, 0), "reused from run 1");
        assert_eq!(of(2, 1), "run again: parameters changed: least 5 -> 6");
        assert_eq!(of(3, 2), "run again: inputs changed");
    }
}
