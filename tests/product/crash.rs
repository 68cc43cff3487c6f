//! A store that stops taking writes after the n-th, for every n: whatever was written, a second run on a healthy store
//! ends where an undisturbed one does.

use std::fmt;
use std::path::Path as LocalPath;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use futures::stream::BoxStream;
use jobs::plan::{Plan, Request};
use jobs::{registry, run_plan};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result,
};
use pipelines::{Pipeline, Selection, compile};
use store::Store;

use crate::coa::{Place, filters, record};

/// Refuses every write after the first `left`.
#[derive(Debug)]
struct Failing {
    inner: Arc<InMemory>,
    left: AtomicU64,
    /// Whether a refused write happens all the same: the answer is lost, not the write.
    lossy: bool,
    writes: AtomicU64,
}

impl Failing {
    fn new(inner: &Arc<InMemory>, left: u64, lossy: bool) -> Arc<Self> {
        Arc::new(Self { inner: Arc::clone(inner), left: AtomicU64::new(left), lossy, writes: AtomicU64::new(0) })
    }

    fn take(&self) -> bool {
        self.writes.fetch_add(1, Ordering::SeqCst);
        self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
    }
}

fn refused(path: &Path) -> object_store::Error {
    object_store::Error::PermissionDenied { path: path.to_string(), source: "the store takes no more writes".into() }
}

impl fmt::Display for Failing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("failing store")
    }
}

#[async_trait]
impl ObjectStore for Failing {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        if self.take() {
            return self.inner.put_opts(path, payload, options).await;
        }
        if self.lossy {
            let _ = self.inner.put_opts(path, payload, options).await;
        }
        Err(refused(path))
    }
    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        if self.take() { self.inner.put_multipart_opts(path, options).await } else { Err(refused(path)) }
    }
    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(path, options).await
    }
    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
    }
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }
    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }
    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        if self.take() { self.inner.copy_opts(from, to, options).await } else { Err(refused(to)) }
    }
}

fn pipeline(place: &Place) -> Arc<Pipeline> {
    place.write("a.jsonl", format!("{}\n{}\n{{\n", record("a1", 4), record("a2", 6)));
    place.write("b.jsonl", format!("{}\n", record("b1", 7)));
    let source = place.path("*.jsonl");
    let text = filters(source.to_str().unwrap(), 5);
    Arc::new(compile("p.toml", &text, &registry(), None).unwrap())
}

fn open(objects: Arc<dyn ObjectStore>) -> Store {
    Store::over(objects, Path::from("store"), url::Url::parse("memory:///store").unwrap())
}

async fn run(pipeline: &Arc<Pipeline>, store: &Store, queue: &LocalPath) -> std::result::Result<(), String> {
    let about = Request::of(Selection::all(pipeline));
    let plan = Plan::make(Arc::clone(pipeline), about, Some(store)).await.map_err(|e| e.to_string())?;
    run_plan(plan, store, queue, 2).await.map_err(|error| error.to_string())
}

/// Rows of every table as text.
async fn rows(store: &Store) -> Vec<String> {
    let mut all = Vec::new();
    for query in [
        "select task_id, steps, line from ingest.traces order by 1",
        "select code, line from ingest.quarantine order by 1",
        "select trace_id, step_id, observation from ingest.steps order by 1, 2",
        "select trajectory_id, interactions from convert.trajectories order by 1",
        "select row_id, reason from convert.rejected order by 1",
        "select trajectory_id from complexity.kept order by 1",
        "select row_id, reason from complexity.rejected order by 1",
    ] {
        let answer = jobs::sql::query(store, query).await.unwrap_or_else(|error| panic!("{query}: {error}"));
        all.push(format!("{:?}", answer.batches));
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_stops_taking_writes_at_any_point() {
    let place = Place::new();
    let pipeline = pipeline(&place);
    let whole = Arc::new(InMemory::new());
    let counting = Failing::new(&whole, u64::MAX, false);
    let undisturbed = open(Arc::<Failing>::clone(&counting));
    run(&pipeline, &undisturbed, &place.path("queue.sqlite")).await.unwrap();
    let expected = rows(&undisturbed).await;
    let writes = counting.writes.load(Ordering::SeqCst);
    assert!((25..200).contains(&writes), "{writes} writes");

    for lossy in [false, true] {
        for allowed in 0..writes {
            let objects = Arc::new(InMemory::new());
            let broken = open(Failing::new(&objects, allowed, lossy));
            let ended = run(&pipeline, &broken, &place.path("queue.sqlite")).await;
            assert!(ended.is_err() || lossy, "{allowed} of {writes} writes were enough");
            let healthy = open(Failing::new(&objects, u64::MAX, false));
            let again = run(&pipeline, &healthy, &place.path("queue.sqlite")).await;
            again.unwrap_or_else(|error| panic!("after {allowed} writes: {error}"));
            assert_eq!(rows(&healthy).await, expected, "after {allowed} writes, answers lost: {lossy}");
        }
    }
}
