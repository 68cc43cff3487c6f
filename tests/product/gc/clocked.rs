//! A store whose clock the test moves, and that may stop taking writes and deletions.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use chrono::DateTime;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result,
};
use store::Store;

#[derive(Debug)]
pub(super) struct Clocked {
    inner: InMemory,
    /// Seconds.
    now: AtomicI64,
    written: Mutex<HashMap<Path, i64>>,
    /// Writes and deletions that are still taken.
    left: AtomicU64,
}

impl Clocked {
    pub(super) fn new() -> Arc<Self> {
        let left = AtomicU64::new(u64::MAX);
        Arc::new(Self { inner: InMemory::new(), now: AtomicI64::new(1_700_000_000), written: Mutex::default(), left })
    }

    pub(super) fn store(self: &Arc<Self>) -> Store {
        let objects: Arc<dyn ObjectStore> = Arc::<Self>::clone(self);
        Store::over(objects, Path::from("store"), url::Url::parse("memory:///store").unwrap())
    }

    pub(super) fn now(&self) -> i64 {
        self.now.load(Ordering::SeqCst)
    }

    pub(super) fn days_pass(&self, days: i64) {
        self.now.fetch_add(days * 86_400, Ordering::SeqCst);
    }

    /// From now on this many writes and deletions are taken.
    pub(super) fn takes(&self, left: u64) {
        self.left.store(left, Ordering::SeqCst);
    }

    fn take(&self, path: &Path) -> Result<()> {
        let taken = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        let path = path.to_string();
        let refused = |_| object_store::Error::PermissionDenied { path, source: "no more is taken".into() };
        taken.map(|_| ()).map_err(refused)
    }

    fn dated(&self, mut object: ObjectMeta) -> ObjectMeta {
        let written = self.written.lock().unwrap().get(&object.location).copied().unwrap_or_default();
        object.last_modified = DateTime::from_timestamp(written, 0).unwrap();
        object
    }
}

impl fmt::Display for Clocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("clocked store")
    }
}

#[async_trait]
impl ObjectStore for Clocked {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.take(path)?;
        let put = self.inner.put_opts(path, payload, options).await?;
        self.written.lock().unwrap().insert(path.clone(), self.now());
        Ok(put)
    }
    async fn put_multipart_opts(&self, path: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        panic!("`{path}` is small")
    }
    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let mut got = self.inner.get_opts(path, options).await?;
        got.meta = self.dated(got.meta);
        Ok(got)
    }
    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let taken = self.take(&Path::from("deletion"));
        match taken {
            Ok(()) => self.inner.delete_stream(paths),
            Err(error) => futures::stream::once(async { Err(error) }).boxed(),
        }
    }
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let listed: Vec<Result<ObjectMeta>> = futures::executor::block_on(self.inner.list(prefix).collect());
        let dated: Vec<Result<ObjectMeta>> = listed.into_iter().map(|object| Ok(self.dated(object?))).collect();
        futures::stream::iter(dated).boxed()
    }
    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut listed = self.inner.list_with_delimiter(prefix).await?;
        listed.objects = listed.objects.into_iter().map(|object| self.dated(object)).collect();
        Ok(listed)
    }
    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.take(to)?;
        self.inner.copy_opts(from, to, options).await
    }
}
