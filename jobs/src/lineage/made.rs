//! What units made: their operator, settings and runs, what they read, and what made that.
//!
//! The answer is a list of *makings*. A making is some units of one stage, together with those of their output ports that
//! are asked for; it names what they read by the number of another making. The first is the one that was asked for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use store::{ObjectRead, PortRead, StoredTable, UnitRecord};

use super::branch::some;
use super::past::{Past, RunFacts};
use super::source::{Object, look};
use super::{Branch, Lineage, counted};
use crate::error::CommandError;

/// Some units of a stage, and those of their output ports that are in question.
#[derive(Serialize)]
pub(super) struct Making {
    pub(super) stage: String,
    pub(super) outputs: Vec<Output>,
    /// The units, by settings: there are several where some were done before a change.
    pub(super) work: Vec<Work>,
}

/// An output port.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Output {
    Table {
        port: String,
        table: String,
        table_version: u32,
        /// The first version of its log that shows these units; none where they have no rows.
        version: Option<u64>,
        /// The last one.
        until: Option<u64>,
        rows: u64,
    },
    Files {
        port: String,
        holds: String,
        files: Vec<File>,
    },
}

/// A file of a files port.
#[derive(Serialize)]
pub(super) struct File {
    name: String,
    uri: String,
    bytes: u64,
    sha256: String,
}

/// Units with the same settings.
#[derive(Serialize)]
pub(super) struct Work {
    operator: String,
    operator_version: u32,
    params: Value,
    seed: Option<u64>,
    fingerprint: String,
    units: Vec<Unit>,
    /// False where the records are of before it was noted what a unit reads: inputs are those that the run's settings
    /// bind, and objects of sources are not known.
    pub(super) reads_recorded: bool,
    pub(super) inputs: Vec<Input>,
    objects: Vec<Object>,
}

/// A unit.
#[derive(Serialize)]
struct Unit {
    unit: String,
    partition: String,
    run: u64,
    attempt: String,
    worker: String,
    started: String,
    finished: String,
    /// Digest of everything it read.
    inputs: String,
    rows_out: BTreeMap<String, u64>,
    rows_in: BTreeMap<String, u64>,
    counts: BTreeMap<String, u64>,
}

/// What units read from a making.
#[derive(Serialize)]
pub(super) struct Input {
    /// The number of the making, from 0.
    pub(super) making: usize,
    /// Input port and the output port that feeds it.
    pub(super) ports: BTreeMap<String, String>,
}

/// All makings, and the runs they were done in.
pub(super) struct Made {
    pub(super) makings: Vec<Making>,
    pub(super) runs: Vec<RunFacts>,
    /// The units of each making.
    pub(super) units: Vec<Vec<Arc<UnitRecord>>>,
}

/// Where to begin.
pub(super) struct Start {
    pub(super) stage: String,
    pub(super) ports: Vec<String>,
    pub(super) units: Vec<Arc<UnitRecord>>,
    /// The version that was asked for.
    pub(super) version: Option<u64>,
}

impl Start {
    /// What a stage's tables show, or one of its ports; a table also as it stood at a version.
    pub(super) async fn shown(
        past: &mut Past<'_>,
        stage: &str,
        port: Option<&str>,
        version: Option<u64>,
    ) -> Result<Self, CommandError> {
        let table = port.and_then(|port| past.table(stage, port).cloned());
        let start = |ports, units, version| Self { stage: stage.to_owned(), ports, units, version };
        let Some(table) = table else {
            let units: Vec<_> = past.current(stage).await?.into_values().collect();
            let ports = match port {
                Some(port) => vec![port.to_owned()],
                None => {
                    let tables = units.iter().flat_map(|unit| &unit.tables).map(|table| table.port.clone());
                    let files = units.iter().flat_map(|unit| &unit.files).map(|files| files.port.clone());
                    tables.chain(files).collect::<BTreeSet<String>>().into_iter().collect()
                }
            };
            return Ok(start(ports, units, None));
        };
        let history = past.history(&table).await?;
        let Some(at) = version.or(history.newest()) else { return Ok(start(vec![table.port], Vec::new(), version)) };
        let files = history.at(at);
        let known = past.stage(stage).await?;
        // Units without rows have no files: they are those that stood there then.
        let run = version.and_then(|version| history.last_run(version));
        let mut units = if version.is_some() && run.is_none() { BTreeMap::new() } else { known.units_at(run) };
        units.retain(|_, unit| unit.rows(&table.port) == 0);
        for (partition, attempt) in &files {
            if let Some(unit) = known.unit(attempt) {
                units.insert(partition.clone(), Arc::clone(unit));
            }
        }
        Ok(start(vec![table.port], units.into_values().collect(), version))
    }
}

/// Follows what units read to the sources.
pub(super) async fn trace(past: &mut Past<'_>, start: Start) -> Result<Made, CommandError> {
    let mut makings: Vec<Making> = Vec::new();
    let mut known: HashMap<(String, BTreeSet<String>), usize> = HashMap::new();
    let mut waiting = vec![(start.stage, start.ports, start.units)];
    let mut all_units: Vec<Vec<Arc<UnitRecord>>> = Vec::new();
    let mut next = 0;
    let mut runs = BTreeSet::new();
    while next < waiting.len() {
        let (stage, _, units) = waiting[next].clone();
        let work = group(past, &units, &mut known, &mut waiting).await?;
        runs.extend(units.iter().map(|unit| unit.run));
        all_units.push(units);
        makings.push(Making { stage, outputs: Vec::new(), work });
        next += 1;
    }
    for ((making, units), (stage, ports, _)) in makings.iter_mut().zip(&all_units).zip(&waiting) {
        for port in ports {
            making.outputs.push(output(past, stage, port, units).await?);
        }
    }
    if let (Some(asked), Some(Output::Table { version, until, .. })) =
        (start.version, makings.first_mut().and_then(|making| making.outputs.first_mut()))
    {
        (*version, *until) = (Some(asked), Some(asked));
    }
    Ok(Made { makings, runs: past.facts(runs), units: all_units })
}

type Waiting = Vec<(String, Vec<String>, Vec<Arc<UnitRecord>>)>;

/// Units by their settings, and what they read by making: new ones are put behind those that wait.
async fn group(
    past: &mut Past<'_>,
    units: &[Arc<UnitRecord>],
    known: &mut HashMap<(String, BTreeSet<String>), usize>,
    waiting: &mut Waiting,
) -> Result<Vec<Work>, CommandError> {
    let mut groups: Vec<Vec<&Arc<UnitRecord>>> = Vec::new();
    for unit in units {
        let same = |group: &&mut Vec<&Arc<UnitRecord>>| {
            let other = group[0];
            other.fingerprint == unit.fingerprint && other.operator == unit.operator
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(unit),
            None => groups.push(vec![unit]),
        }
    }
    let mut work = Vec::new();
    for group in groups {
        let mut recorded = true;
        let mut objects: BTreeMap<ObjectRead, Option<u64>> = BTreeMap::new();
        let mut ports: BTreeMap<(String, String, String), BTreeMap<String, String>> = BTreeMap::new();
        for unit in &group {
            let reads = past.reads(unit).await?;
            recorded &= reads.recorded;
            let alone = reads.objects.len() == 1;
            let records = unit.counts.get("records").copied().filter(|_| alone);
            objects.extend(reads.objects.into_iter().map(|object| (object, records)));
            for PortRead { port, stage, from, attempts } in reads.ports {
                ports.entry((stage, port, from)).or_default().extend(attempts);
            }
        }
        let mut inputs: Vec<Input> = Vec::new();
        for ((stage, port, from), attempts) in ports {
            let attempts: BTreeSet<String> = attempts.into_values().collect();
            let making = match known.get(&(stage.clone(), attempts.clone())) {
                Some(making) => *making,
                None => {
                    let past = past.stage(&stage).await?;
                    let mut units: Vec<_> = attempts.iter().filter_map(|attempt| past.unit(attempt).cloned()).collect();
                    units.sort_by(|a, b| a.partition.cmp(&b.partition));
                    known.insert((stage.clone(), attempts), waiting.len());
                    waiting.push((stage, Vec::new(), units));
                    waiting.len() - 1
                }
            };
            if !waiting[making].1.contains(&from) {
                waiting[making].1.push(from.clone());
            }
            match inputs.iter_mut().find(|input| input.making == making) {
                Some(input) => _ = input.ports.insert(port, from),
                None => inputs.push(Input { making, ports: BTreeMap::from([(port, from)]) }),
            }
        }
        let first = group[0];
        work.push(Work {
            operator: first.operator.clone(),
            operator_version: first.operator_version,
            params: first.params.clone(),
            seed: first.seed,
            fingerprint: first.fingerprint.clone(),
            units: group.iter().map(|unit| Unit::of(unit)).collect(),
            reads_recorded: recorded,
            inputs,
            objects: look(objects.into_iter().collect()).await,
        });
    }
    Ok(work)
}

async fn output(
    past: &mut Past<'_>,
    stage: &str,
    port: &str,
    units: &[Arc<UnitRecord>],
) -> Result<Output, CommandError> {
    let of_port = units.iter().flat_map(|unit| &unit.files).filter(|files| files.port == port);
    let files: Vec<_> = of_port.collect();
    if let Some(first) = files.first() {
        let url = past.store.url().as_str().trim_end_matches('/').to_owned();
        let file = |file: &store::StoredFile| File {
            name: file.name.clone(),
            uri: format!("{url}/{}", file.path),
            bytes: file.bytes,
            sha256: file.sha256.clone(),
        };
        let (holds, port) = (first.kind.clone(), port.to_owned());
        return Ok(Output::Files { port, holds, files: files.iter().flat_map(|f| &f.files).map(file).collect() });
    }
    let written = units.iter().flat_map(|unit| &unit.tables).find(|table| table.port == port);
    let known = past.table(stage, port).cloned();
    let table = match (written, known) {
        (Some(written), _) => StoredTable {
            stage: stage.to_owned(),
            port: port.to_owned(),
            table: written.table.clone(),
            version: written.table_version,
        },
        (None, Some(known)) => known,
        (None, None) => {
            return Ok(Output::Files { port: port.to_owned(), holds: "unknown".to_owned(), files: Vec::new() });
        }
    };
    let with_rows = units.iter().filter(|unit| unit.rows(port) > 0);
    let attempts = with_rows.map(|unit| (unit.partition.clone(), unit.attempt.clone())).collect();
    let versions = past.history(&table).await?.showing(&attempts);
    Ok(Output::Table {
        port: port.to_owned(),
        table: table.table,
        table_version: table.version,
        version: versions.map(|(first, _)| first),
        until: versions.map(|(_, last)| last),
        rows: units.iter().map(|unit| unit.rows(port)).sum(),
    })
}

impl Unit {
    fn of(unit: &UnitRecord) -> Self {
        Self {
            unit: unit.unit.clone(),
            partition: unit.partition.clone(),
            run: unit.run,
            attempt: unit.attempt.clone(),
            worker: unit.worker.clone(),
            started: unit.started.clone(),
            finished: unit.finished.clone(),
            inputs: unit.inputs.clone(),
            rows_out: unit.tables.iter().map(|table| (table.port.clone(), table.rows)).collect(),
            rows_in: unit.rows_in.clone(),
            counts: unit.counts.clone(),
        }
    }
}

/// Units, objects and files of a making that a text names; `--json` names all.
const SHOWN: usize = 4;

impl Made {
    /// The answer, with what is to be said of a training.
    pub(super) fn lineage(&self, asked: &str, training: Option<(Value, Branch)>) -> Lineage {
        let (training_json, training_text) = training.unzip();
        let json = json!({"asked": asked, "kind": "made", "training": training_json, "makings": self.makings,
            "runs": self.runs});
        let mut told = BTreeSet::new();
        let mut text: Vec<Branch> = training_text.into_iter().collect();
        text.push(self.branch(0, "", &mut told));
        text.push(runs_told(&self.runs));
        Lineage { json, text }
    }

    /// A making and what it was made from; one that was told already is only named.
    fn branch(&self, number: usize, before: &str, told: &mut BTreeSet<usize>) -> Branch {
        let making = &self.makings[number];
        let names: Vec<String> = making.outputs.iter().map(|output| output.told(&making.stage)).collect();
        let title = format!("{before}{}", names.join(" and "));
        if !told.insert(number) {
            return Branch::leaf(format!("{title}: see above"));
        }
        let mut branch = Branch::leaf(title);
        let files = making.outputs.iter().filter_map(|output| match output {
            Output::Files { files, .. } => Some(files),
            Output::Table { .. } => None,
        });
        let files: Vec<&File> = files.flatten().collect();
        let file = |file: &&File| Branch::leaf(format!("{}: {} bytes, sha256 {}", file.uri, file.bytes, file.sha256));
        some(files.iter().map(file), SHOWN).into_iter().for_each(|file| branch.push(file));
        for work in &making.work {
            branch.push(self.work(work, told));
        }
        branch
    }

    fn work(&self, work: &Work, told: &mut BTreeSet<usize>) -> Branch {
        let seed = work.seed.map(|seed| format!(", seed {seed}")).unwrap_or_default();
        let mut branch = Branch::leaf(format!(
            "by {} v{}, parameters {}{seed}, fingerprint {}",
            work.operator, work.operator_version, work.params, work.fingerprint
        ));
        let unit = |unit: &Unit| {
            let rows: Vec<String> = unit.rows_out.iter().map(|(port, rows)| format!("{port} {rows}")).collect();
            Branch::leaf(format!(
                "unit {} of partition {} in run {}, attempt {}: {}",
                unit.unit,
                unit.partition,
                unit.run,
                unit.attempt,
                if rows.is_empty() { "no tables".to_owned() } else { rows.join(", ") }
            ))
        };
        some(work.units.iter().map(unit), SHOWN).into_iter().for_each(|unit| branch.push(unit));
        if !work.reads_recorded {
            branch.push(Branch::leaf("what it read is not recorded: told from the settings of its run"));
            if let Some(source) = work.params["source"].as_str() {
                branch.push(Branch::leaf(format!("source {source}: which objects is not recorded")));
            }
        }
        let object = |object: &Object| Branch::leaf(format!("source {}", object.told()));
        some(work.objects.iter().map(object), SHOWN).into_iter().for_each(|object| branch.push(object));
        for input in &work.inputs {
            let ports: Vec<&str> = input.ports.keys().map(String::as_str).collect();
            branch.push(self.branch(input.making, &format!("{} from ", ports.join(" and ")), told));
        }
        branch
    }
}

/// Runs, one a line.
pub(super) fn runs_told(runs: &[RunFacts]) -> Branch {
    Branch::new("runs", some(runs.iter().map(|run| Branch::leaf(run.told())), SHOWN))
}

impl Output {
    /// `ingest.traces@v1 (traces v1, 2 rows)`
    fn told(&self, stage: &str) -> String {
        match self {
            Self::Files { port, holds, .. } => format!("{stage}.{port} (files: {holds})"),
            Self::Table { port, table, table_version, version, until, rows } => {
                let at = match (version, until) {
                    (Some(version), Some(until)) if until > version => format!("@v{version} to v{until}"),
                    (Some(version), _) => format!("@v{version}"),
                    (None, _) => String::new(),
                };
                format!("{stage}.{port}{at} ({table} v{table_version}, {})", counted(*rows, "row"))
            }
        }
    }
}
