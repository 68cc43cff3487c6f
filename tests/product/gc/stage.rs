//! A stage whose units write several small files each.

use std::collections::BTreeMap;
use std::sync::Arc;

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::ArrowWriter;
use schemas::{Rejected, TableDef, encode};
use serde_json::{Value, json};
use store::{
    Created, Outcome, RunEnd, RunRecord, Scope, StageFold, Store, StoreError, StoredTable, UnitRecord, UnitWant,
};

use super::clocked::Clocked;

/// Rows of a table as the log of a version has them.
pub(super) type Rows = Vec<String>;

/// The stage, in a store of its own.
pub(super) struct Stage {
    pub(super) objects: Arc<Clocked>,
    pub(super) store: Store,
    attempts: u64,
}

pub(super) fn table() -> StoredTable {
    StoredTable { stage: "s".into(), port: "kept".into(), table: "rejected".into(), version: 1 }
}

fn want(partition: &str, source: u64) -> UnitWant {
    let [stage, fingerprint] = ["s", "f"].map(str::to_owned);
    UnitWant { stage, fingerprint, partition: partition.to_owned(), inputs: format!("{source}") }
}

/// The row ids of one file of a unit.
fn ids(partition: &str, source: u64, file: u64) -> Vec<String> {
    (0..2 + (source + file) % 3).map(|row| format!("{partition}.{source}.{file}.{row}")).collect()
}

/// How many files a unit writes.
fn files(source: u64) -> u64 {
    1 + source * 2 % 5
}

/// The rows of a unit, in order.
pub(super) fn unit_rows(partition: &str, source: u64) -> Rows {
    (0..files(source)).flat_map(|file| ids(partition, source, file)).collect()
}

impl Stage {
    pub(super) fn new() -> Self {
        let objects = Clocked::new();
        Self { store: objects.store(), objects, attempts: 0 }
    }

    pub(super) async fn begin_run(&self) -> Result<u64, StoreError> {
        let record: RunRecord = serde_json::from_value(json!({"version": 1, "run": 0, "pipeline": "p", "path": "",
            "folder": "", "text": "", "seed": 0, "resolved": null, "select": [], "partitions": null, "time_zone": null,
            "force": false, "resumes": null, "worker": "w", "started": ""}))
        .unwrap();
        Ok(self.store.begin_run(record).await?.run)
    }

    /// Writes the files of an attempt; nobody knows of them yet.
    pub(super) async fn write(&mut self, run: u64, partition: &str, source: u64) -> Result<UnitRecord, String> {
        self.attempts += 1;
        let attempt = format!("A{:04}", self.attempts);
        let mut data: Vec<Value> = Vec::new();
        for file in 0..files(source) {
            let row = |id: String| Rejected::new(id, None, "r", "");
            let rows: Vec<Rejected> = ids(partition, source, file).into_iter().map(row).collect();
            let batch = encode(&rows).unwrap();
            let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
            writer.write(&batch).unwrap();
            let bytes = writer.into_inner().unwrap();
            let xxh3 = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&bytes));
            let path = format!("partition={partition}/{attempt}-{file:05}.parquet");
            data.push(json!({"path": path, "bytes": bytes.len(), "rows": rows.len(), "xxh3": xxh3}));
            let place = Path::from(format!("store/tables/s/kept/rejected.v1/{path}"));
            self.objects.put(&place, bytes.into()).await.map_err(|error| error.to_string())?;
        }
        let want = want(partition, source);
        Ok(serde_json::from_value(json!({"version": 1, "unit": want.key(), "run": run, "stage": "s", "operator": "o",
            "operator_version": 1, "params": {}, "seed": null, "fingerprint": "f", "partition": partition,
            "inputs": want.inputs, "attempt": attempt, "worker": "w",
            "tables": [{"port": "kept", "table": "rejected", "table_version": 1,
                "rows": unit_rows(partition, source).len(), "files": data}],
            "files": [], "rows_in": {}, "counts": {}, "started": "", "finished": "", "seconds": 0.0}))
        .unwrap())
    }

    /// A run over these partitions of a source, each at some state of it.
    pub(super) async fn run(&mut self, sources: &BTreeMap<String, u64>) -> Result<(), String> {
        let said = |error: StoreError| error.chain();
        let run = self.begin_run().await.map_err(said)?;
        let mut units = Vec::new();
        for (partition, source) in sources {
            let unit = match self.store.unit(&want(partition, *source)).await.map_err(said)? {
                Some(done) => done,
                None => {
                    let record = self.write(run, partition, *source).await?;
                    match self.store.commit_unit(&record).await.map_err(said)? {
                        Created::Ours => record,
                        Created::Theirs(theirs) => theirs,
                    }
                }
            };
            units.push(Arc::new(unit));
        }
        self.fold(run, &units).await.map_err(said)?;
        let end = RunEnd { outcome: Outcome::Complete, ..RunEnd::not_begun(String::new()) };
        self.store.end_run(run, &end).await.map_err(said)
    }

    pub(super) async fn fold(&self, run: u64, units: &[Arc<UnitRecord>]) -> Result<(), StoreError> {
        let tables = [("kept", TableDef::of::<Rejected>())];
        let fold = StageFold { stage: "s", run, scope: Scope::Whole, units, tables: &tables, contended: false };
        self.store.fold_stage(&fold).await.map(|_| ())
    }

    /// The rows of a version, or of the table as it stands.
    pub(super) async fn rows(&self, version: Option<u64>) -> Result<Rows, String> {
        let at = version.map(|version| format!("@v{version}")).unwrap_or_default();
        let query = format!("select partition || '|' || row_id as id from s.kept{at} order by 1");
        let answer = jobs::sql::query(&self.store, &query).await.map_err(|error| error.to_string())?;
        let mut rows = Vec::new();
        for batch in &answer.batches {
            let ids = arrow::compute::cast(batch.column(0), &arrow::datatypes::DataType::Utf8).unwrap();
            let ids = arrow::array::AsArray::as_string::<i32>(&ids).clone();
            rows.extend(ids.iter().map(|id| id.unwrap().to_owned()));
        }
        Ok(rows)
    }

    /// The data files that lie in the store.
    pub(super) async fn data(&self) -> Vec<String> {
        let folder = Path::from("store/tables/s/kept/rejected.v1");
        let listed: Vec<_> = futures::StreamExt::collect(self.objects.list(Some(&folder))).await;
        let names = listed.into_iter().map(|object| object.unwrap().location.to_string());
        names.filter(|name| name.ends_with(".parquet") && !name.contains("_delta_log")).collect()
    }
}

/// What the table should have.
pub(super) fn expected(sources: &BTreeMap<String, u64>) -> Rows {
    let rows = |(partition, source): (&String, &u64)| {
        unit_rows(partition, *source).into_iter().map(|id| format!("{partition}|{id}")).collect::<Rows>()
    };
    let mut all: Rows = sources.iter().flat_map(rows).collect();
    all.sort();
    all
}
