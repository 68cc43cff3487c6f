//! What every kind of store must do, tried on memory, a local folder, Ceph's gateway and moto.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::join_all;
use jobs::plan::{Plan, Request};
use jobs::{registry, run_plan};
use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use pipelines::{Selection, compile};
use store::{AttemptRecord, Created, RunRecord, Store, UnitRecord, UnitWant};

use super::server::{S3, fresh_bucket};
use crate::coa::{Place, filters, record};

fn want(partition: &str) -> UnitWant {
    let text = |text: &str| text.to_owned();
    UnitWant { stage: text("s"), fingerprint: text("f"), partition: text(partition), inputs: text("0") }
}

fn unit(attempt: &str) -> UnitRecord {
    serde_json::from_value(serde_json::json!({"version": 1, "unit": "u", "run": 1, "stage": "s", "operator": "o",
        "operator_version": 1, "params": {}, "seed": null, "fingerprint": "f", "partition": "p", "inputs": "0",
        "attempt": attempt, "worker": "w", "tables": [], "files": [], "rows_in": {}, "counts": {}, "started": "",
        "finished": "", "seconds": 0.0}))
    .unwrap()
}

fn attempt(partition: &str, id: String) -> AttemptRecord {
    AttemptRecord {
        version: 1,
        attempt: id,
        number: 0,
        want: want(partition),
        run: 1,
        worker: "w".into(),
        started: String::new(),
    }
}

fn begun(worker: usize) -> RunRecord {
    serde_json::from_value(serde_json::json!({"version": 1, "run": 0, "pipeline": "p", "path": "", "folder": "",
        "text": "", "seed": 0, "resolved": {}, "select": [], "partitions": null, "time_zone": null, "force": false,
        "resumes": null, "worker": worker.to_string(), "started": ""}))
    .unwrap()
}

/// Everything that is asked of a store.
async fn conforms(open: impl Fn(&str) -> Store) {
    let store = open("races");
    store.require_create_once().await.unwrap();

    // Of eight attempts that finish a unit at the same moment one wins, and all others see it.
    let results = join_all((0..8).map(|n| {
        let store = store.clone();
        async move { store.commit_unit(&unit(&n.to_string())).await.unwrap() }
    }))
    .await;
    let winners: Vec<usize> =
        results.iter().enumerate().filter(|(_, made)| matches!(made, Created::Ours)).map(|(n, _)| n).collect();
    assert_eq!(winners.len(), 1, "{winners:?}");
    let kept = store.unit(&want("p")).await.unwrap().unwrap();
    assert_eq!(kept.attempt, winners[0].to_string());
    for made in &results {
        assert!(matches!(made, Created::Ours) || matches!(made, Created::Theirs(theirs) if *theirs == kept));
    }

    // Runs that begin at the same moment have numbers of their own; so have attempts at one unit.
    let numbers = join_all((0..8).map(|n| store.begin_run(begun(n)))).await;
    let numbers: BTreeSet<u64> = numbers.into_iter().map(|run| run.unwrap().run).collect();
    assert_eq!(numbers, (1..=8).collect());
    let numbers = join_all((0..8).map(|n| store.begin_attempt(attempt("one", n.to_string())))).await;
    let numbers: BTreeSet<u32> = numbers.into_iter().map(|attempt| attempt.unwrap().number).collect();
    assert_eq!(numbers, (1..=8).collect());

    // More than one page of a listing.
    let many: Vec<String> = (0..1050).map(|n| format!("p{n:05}")).collect();
    for some in many.chunks(64) {
        let begun = join_all(some.iter().map(|partition| store.begin_attempt(attempt(partition, "x".into())))).await;
        assert!(begun.iter().all(Result::is_ok));
    }
    assert_eq!(store.attempts().await.unwrap().len(), many.len() + 8);

    two_committers(open("folds")).await;
}

/// Two runs of one pipeline fold the same tables at the same moment.
async fn two_committers(store: Store) {
    let place = Place::new();
    for part in ["a", "b", "c"] {
        let lines: String = (0..4).map(|n| format!("{}\n", record(&format!("{part}{n}"), 4 + n))).collect();
        place.write(&format!("{part} +%=#ü.jsonl"), format!("{lines}{{\n"));
    }
    let source = place.path("*.jsonl");
    let text = filters(source.to_str().unwrap(), 5);
    let pipeline = Arc::new(compile("p.toml", &text, &registry(), None).unwrap());
    let run = |name: &'static str| {
        let (store, pipeline, queue) = (store.clone(), Arc::clone(&pipeline), place.path(name));
        async move {
            let about = Request::of(Selection::all(&pipeline));
            let plan = Plan::make(pipeline, about, Some(&store)).await.unwrap();
            run_plan(plan, &store, &queue, 2).await
        }
    };
    let (one, two) = tokio::join!(run("q1.sqlite"), run("q2.sqlite"));
    one.unwrap();
    two.unwrap();
    let count = async |query: &str| {
        let answer = jobs::sql::query(&store, query).await.unwrap_or_else(|error| panic!("{query}: {error}"));
        format!("{:?}", answer.batches[0].column(0))
    };
    let traces = count("select concat(count(*), ' ', count(distinct trace_id)) from ingest.traces").await;
    assert!(traces.contains("12 12"), "{traces}");
    let rest = count(
        "select concat((select count(*) from ingest.quarantine), ' ', (select count(*) from complexity.kept), ' ', \
         (select count(*) from complexity.rejected))",
    )
    .await;
    assert!(rest.contains("3 9 3"), "{rest}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory() {
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    conforms(|name| {
        let url = url::Url::parse(&format!("memory:///{name}")).unwrap();
        Store::over(Arc::clone(&objects), Path::from(name), url)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local() {
    let place = Place::new();
    let objects: Arc<dyn ObjectStore> = Arc::new(LocalFileSystem::new());
    conforms(|name| {
        let folder = place.path(name);
        std::fs::create_dir_all(&folder).unwrap();
        let prefix = Path::from_absolute_path(&folder).unwrap();
        Store::over(Arc::clone(&objects), prefix, url::Url::from_file_path(folder).unwrap())
    })
    .await;
}

async fn on_server(variable: &str) {
    let Some(server) = S3::named(variable) else { return };
    let bucket = fresh_bucket();
    let mut place = Place::new();
    server.is_used_by(&mut place);
    let examined = place.coa(&["doctor", "--store", &format!("s3://{bucket}/x"), "--mend"]);
    assert!(examined.out.contains("was created"), "{}\n{}", examined.out, examined.err);
    let objects = AmazonS3Builder::new()
        .with_bucket_name(&bucket)
        .with_region("us-east-1")
        .with_endpoint(&server.endpoint)
        .with_allow_http(true)
        .with_access_key_id(&server.key)
        .with_secret_access_key(&server.secret)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .build()
        .unwrap();
    let objects: Arc<dyn ObjectStore> = Arc::new(objects);
    // Keys as people have them.
    for key in ["a b", "a%b", "a+b", "a=b", "a#b", "ü/é", "x//y"] {
        let path = Path::parse(key).unwrap_or_else(|_| Path::from(key));
        objects.put(&path, key.as_bytes().to_vec().into()).await.unwrap();
        assert_eq!(objects.get(&path).await.unwrap().bytes().await.unwrap(), key.as_bytes(), "{key}");
    }
    conforms(|name| {
        let url = url::Url::parse(&format!("s3://{bucket}/{name}")).unwrap();
        Store::over(Arc::clone(&objects), Path::from(name), url)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ceph() {
    on_server("COA_TEST_RGW").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moto() {
    on_server("COA_TEST_MOTO").await;
}
