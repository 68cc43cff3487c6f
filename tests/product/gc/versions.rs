//! Random histories on a store whose clock is moved: every version within the retention is whole, whatever was killed.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use chrono::TimeDelta;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use store::gc::{Garbage, Rules, Swept, survey, sweep};
use store::{AttemptEnd, AttemptRecord, Outcome, Store, StoreError, UnitRecord, compact, versions};

use super::stage::{Rows, Stage, expected, table, unit_rows};

async fn look(store: &Store, at_work: bool) -> Result<Garbage, StoreError> {
    let newest_run = store.run_numbers().await?.last().copied().unwrap_or_default();
    survey(store, Rules { retention: TimeDelta::days(7), newest_run, at_work }).await
}

async fn collect(store: &Store, at_work: bool) -> Result<Swept, StoreError> {
    sweep(store, &look(store, at_work).await?).await
}

/// Numbers that look random: the same for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// What every version had, and when it ceased to be the newest.
#[derive(Default)]
struct History {
    rows: BTreeMap<u64, Rows>,
    until: BTreeMap<u64, i64>,
}

impl History {
    async fn note(&mut self, stage: &Stage) {
        let now = stage.objects.now();
        let known = versions(&stage.store, &table()).await.unwrap();
        for version in known {
            let Entry::Vacant(new) = self.rows.entry(version) else { continue };
            new.insert(stage.rows(Some(version)).await.unwrap());
            if let Some(before) = version.checked_sub(1) {
                self.until.insert(before, now);
            }
        }
    }

    async fn holds(&self, stage: &Stage, seed: u64) {
        let now = stage.objects.now();
        for (version, rows) in &self.rows {
            let read = stage.rows(Some(*version)).await;
            let old = self.until.get(version).is_some_and(|until| *until <= now - 7 * 86_400);
            match read {
                Ok(read) => assert_eq!(read, *rows, "version {version}, seed {seed}"),
                Err(error) if old => assert!(error.contains("cannot be read any more"), "{error}"),
                Err(error) => panic!("version {version} is within the retention, seed {seed}: {error}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_history_of_runs_compactions_collections_and_kills_ends_as_an_undisturbed_one() {
    let scratch = tempfile::tempdir().unwrap();
    let (mut killed, mut merged, mut swept) = (0, 0, 0);
    for seed in 1..=12 {
        let mut dice = Dice(seed);
        let mut stage = Stage::new();
        let mut history = History::default();
        let mut sources: BTreeMap<String, u64> = ["a", "b.x", "c"].map(|name| (name.to_owned(), 1)).into();
        stage.run(&sources).await.unwrap();
        for _ in 0..10 {
            stage.objects.days_pass(dice.below(5) as i64);
            let kill = dice.below(3) == 0;
            if kill {
                stage.objects.takes(dice.below(12));
            }
            let result = match dice.below(4) {
                0 | 1 => {
                    let partition = ["a", "b.x", "c", "d"][dice.below(4) as usize];
                    match dice.below(5) {
                        0 if sources.len() > 1 => _ = sources.remove(partition),
                        _ => _ = sources.insert(partition.to_owned(), 1 + dice.below(4)),
                    }
                    let run = stage.run(&sources).await;
                    stage.objects.takes(u64::MAX);
                    // A run that was cut short is done again; it may find what the first one left.
                    if run.is_err() {
                        stage.run(&sources).await.unwrap();
                    }
                    run
                }
                2 => compact(&stage.store, &table(), scratch.path())
                    .await
                    .map(|done| merged += done.merged)
                    .map_err(|error| error.chain()),
                _ => collect(&stage.store, false).await.map(|done| swept += done.count).map_err(|error| error.chain()),
            };
            stage.objects.takes(u64::MAX);
            assert!(result.is_ok() || kill, "seed {seed}: {result:?}");
            killed += u64::from(result.is_err());
            assert_eq!(stage.rows(None).await.unwrap(), expected(&sources), "seed {seed}");
            history.note(&stage).await;
            history.holds(&stage, seed).await;
        }
        // In the end nothing is left but what records and the table name.
        stage.run(&sources).await.unwrap();
        stage.objects.days_pass(8);
        collect(&stage.store, false).await.unwrap();
        let again = collect(&stage.store, false).await.unwrap();
        assert_eq!((again.count, again.left), (0, 0), "seed {seed}");
        assert_eq!(stage.rows(None).await.unwrap(), expected(&sources), "seed {seed}");
        let before = stage.data().await;
        stage.run(&sources).await.unwrap();
        assert_eq!(stage.data().await, before, "a run has nothing to do, seed {seed}");
    }
    assert!(killed > 10 && merged > 25 && swept > 25, "{killed} killed, {merged} merged, {swept} swept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn merged_files_have_the_rows_in_their_order_and_give_way_to_a_new_unit() {
    let scratch = tempfile::tempdir().unwrap();
    let mut stage = Stage::new();
    let mut sources: BTreeMap<String, u64> = [("a".to_owned(), 2), ("b".to_owned(), 1)].into();
    stage.run(&sources).await.unwrap();
    assert_eq!(stage.data().await.len(), 5 + 3);
    let done = compact(&stage.store, &table(), scratch.path()).await.unwrap();
    assert_eq!((done.merged, done.into), (8, 2));
    let live: Vec<String> = stage.data().await.into_iter().filter(|name| name.matches('-').count() == 3).collect();
    assert_eq!(live.len(), 2, "{live:?}");
    let bytes = stage.objects.get(&Path::from(live[0].as_str())).await.unwrap().bytes().await.unwrap();
    let mut ids = Vec::new();
    for batch in ParquetRecordBatchReaderBuilder::try_new(bytes).unwrap().build().unwrap() {
        ids.extend(schemas::decode::<schemas::Rejected>(&batch.unwrap()).unwrap().into_iter().map(|row| row.row_id));
    }
    assert_eq!(ids, unit_rows("a", 2));
    // Again there is nothing to do, for a run neither.
    assert_eq!(compact(&stage.store, &table(), scratch.path()).await.unwrap().merged, 0);
    let before = versions(&stage.store, &table()).await.unwrap();
    stage.run(&sources).await.unwrap();
    assert_eq!(versions(&stage.store, &table()).await.unwrap(), before);
    // A superseded unit takes its merged file with it.
    sources.insert("a".to_owned(), 3);
    stage.run(&sources).await.unwrap();
    assert_eq!(stage.rows(None).await.unwrap(), expected(&sources));
    stage.objects.days_pass(8);
    collect(&stage.store, false).await.unwrap();
    // Two files of `a`, three of `b` and the one they were merged into.
    assert_eq!(stage.data().await.len(), 2 + 3 + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compactions_folds_and_collections_at_the_same_time() {
    let scratch = tempfile::tempdir().unwrap();
    for round in 1..=8 {
        let mut stage = Stage::new();
        let mut sources: BTreeMap<String, u64> = ["a", "b", "c"].map(|name| (name.to_owned(), 2)).into();
        stage.run(&sources).await.unwrap();
        stage.objects.days_pass(9);
        sources.insert("b".to_owned(), 1 + round % 4);
        let (store, place, table) = (stage.store.clone(), scratch.path(), table());
        let (one, two, run, three, four) = tokio::join!(
            compact(&store, &table, place),
            compact(&store, &table, place),
            stage.run(&sources),
            collect(&store, false),
            collect(&store, true),
        );
        run.unwrap();
        for compacted in [one, two] {
            compacted.unwrap();
        }
        for collected in [three, four] {
            collected.unwrap();
        }
        assert_eq!(stage.rows(None).await.unwrap(), expected(&sources), "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_slow_attempt_writes_stays_and_what_a_failed_one_left_goes() {
    let mut stage = Stage::new();
    let run = stage.begin_run().await.unwrap();
    let slow = stage.write(run, "a", 2).await.unwrap();
    let failed = stage.write(run, "b", 2).await.unwrap();
    let attempt = |record: &UnitRecord| AttemptRecord {
        version: 1,
        attempt: record.attempt.clone(),
        number: 0,
        want: record.want(),
        run,
        worker: "w".into(),
        started: String::new(),
    };
    stage.store.begin_attempt(attempt(&slow)).await.unwrap();
    let tried = stage.store.begin_attempt(attempt(&failed)).await.unwrap();
    let [kind, error, finished] = ["", "", ""].map(str::to_owned);
    let end = AttemptEnd { version: 1, outcome: Outcome::Failed, kind, error, hint: None, finished };
    stage.store.end_attempt(&tried, &end).await.unwrap();
    stage.objects.days_pass(6);
    assert_eq!(collect(&stage.store, false).await.unwrap().count, 0, "all of it is young");
    stage.objects.days_pass(30);
    let gone = collect(&stage.store, true).await.unwrap();
    assert_eq!(gone.count, 5, "the five files of the attempt that failed");
    stage.store.commit_unit(&slow).await.unwrap();
    stage.fold(run, &[Arc::new(slow)]).await.unwrap();
    assert_eq!(stage.rows(None).await.unwrap(), expected(&[("a".to_owned(), 2)].into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_begins_after_the_survey_keeps_what_it_was_planned_with() {
    let mut stage = Stage::new();
    let first: BTreeMap<String, u64> = [("a".to_owned(), 2)].into();
    stage.run(&first).await.unwrap();
    stage.run(&[("a".to_owned(), 3)].into()).await.unwrap();
    stage.objects.days_pass(8);
    let garbage = look(&stage.store, false).await.unwrap();
    assert!(garbage.items.len() >= 6, "a record and five files: {garbage:?}");
    stage.run(&first).await.unwrap();
    let swept = sweep(&stage.store, &garbage).await.unwrap();
    assert_eq!(swept.count, 0, "{swept:?}");
    assert_eq!(stage.rows(None).await.unwrap(), expected(&first));
}
