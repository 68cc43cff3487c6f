//! The store itself: typed access to its records.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::error::{StoreError, StoreErrorKind};
use crate::location::Location;
use crate::paths;
use crate::record::{AttemptEnd, AttemptRecord, RECORD_VERSION, RunEnd, RunRecord, UnitRecord, UnitWant};

/// What came of creating an object that must not exist yet.
#[derive(Clone, Debug, PartialEq)]
pub enum Created<T> {
    /// It is ours.
    Ours,
    /// It was there already: this is it.
    Theirs(T),
}

/// An open store.
#[derive(Clone, Debug)]
pub struct Store {
    /// What the URL is relative to: the file system, or a bucket.
    root: Arc<dyn ObjectStore>,
    /// The store's own objects: the root below the store's prefix.
    objects: Arc<dyn ObjectStore>,
    prefix: Path,
    url: Url,
    local: Option<std::path::PathBuf>,
}

#[derive(Serialize, Deserialize)]
struct StoreRecord {
    version: u32,
    pipeline: String,
}

/// How many records are read at the same time.
const READERS: usize = 32;

impl Store {
    /// Opens the store of `pipeline`, making it where there is none.
    pub async fn create(address: &str, pipeline: &str) -> Result<Self, StoreError> {
        let store = Self::at(address, true)?;
        let record = StoreRecord { version: RECORD_VERSION, pipeline: pipeline.to_owned() };
        if let Created::Theirs(theirs) = store.create_json(&Path::from(paths::STORE), &record).await?
            && theirs.pipeline != pipeline
        {
            return Err(StoreError::new(
                StoreErrorKind::Address,
                format!("the store `{}` belongs to the pipeline `{}`, not to `{pipeline}`", store.url, theirs.pipeline),
            )
            .hint("give this pipeline a `store` of its own, or its old `name` back"));
        }
        Ok(store)
    }

    /// Opens a store that exists.
    pub async fn open(address: &str) -> Result<Self, StoreError> {
        let store = Self::at(address, false)?;
        match store.get_json::<StoreRecord>(&Path::from(paths::STORE)).await? {
            Some(_) => Ok(store),
            None => Err(StoreError::new(StoreErrorKind::NotFound, format!("there is no store at `{}`", store.url))
                .hint("`coa run FILE` makes it; `--store` names another")),
        }
    }

    fn at(address: &str, create: bool) -> Result<Self, StoreError> {
        let location = Location::parse(address)?;
        let (root, prefix) = location.open(create)?;
        let local = match &location {
            Location::Local(path) => Some(path.clone()),
            Location::S3 { .. } => None,
        };
        Ok(Self { local, ..Self::over(root, prefix, location.url()) })
    }

    /// A store below a prefix of any object store, such as one that counts or fails. `url` is the prefix's address.
    pub fn over(root: Arc<dyn ObjectStore>, prefix: Path, url: Url) -> Self {
        let objects = Arc::new(PrefixStore::new(Arc::clone(&root), prefix.clone()));
        Self { root, objects, prefix, url, local: None }
    }

    /// Its address.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Its folder, where it is a local one.
    pub fn local(&self) -> Option<&std::path::Path> {
        self.local.as_deref()
    }

    pub(crate) fn objects(&self) -> &Arc<dyn ObjectStore> {
        &self.objects
    }

    /// What the URL is relative to, and the store's prefix in it.
    pub(crate) fn root(&self) -> (&Arc<dyn ObjectStore>, &Path) {
        (&self.root, &self.prefix)
    }

    /// The address of an object, for messages.
    pub(crate) fn uri(&self, path: &Path) -> String {
        format!("{}/{path}", self.url.as_str().trim_end_matches('/'))
    }

    pub(crate) async fn get_bytes(&self, path: &Path) -> Result<Option<Bytes>, StoreError> {
        let fetched = match self.objects.get(path).await {
            Ok(fetched) => fetched.bytes().await,
            Err(error) => Err(error),
        };
        match fetched {
            Ok(bytes) => Ok(Some(bytes)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(StoreError::object("read", &self.uri(path), error)),
        }
    }

    pub(crate) async fn get_json<T: DeserializeOwned>(&self, path: &Path) -> Result<Option<T>, StoreError> {
        let Some(bytes) = self.get_bytes(path).await? else { return Ok(None) };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            StoreError::corrupt(format!("`{}` is damaged", self.uri(path)))
                .hint("restore it from a copy, or delete it to have its unit done again")
                .because(error)
        })
    }

    /// Creates an object that must not exist yet. Storage may answer "exists already" to our own retried write, so the
    /// caller gets what is there and compares.
    pub(crate) async fn create_json<T: Serialize + DeserializeOwned>(
        &self,
        path: &Path,
        value: &T,
    ) -> Result<Created<T>, StoreError> {
        let payload = PutPayload::from(serde_json::to_vec(value).expect("records are plain data"));
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.objects.put_opts(path, payload, options).await {
            Ok(_) => Ok(Created::Ours),
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                match self.get_json(path).await? {
                    Some(theirs) => Ok(Created::Theirs(theirs)),
                    None => Err(StoreError::corrupt(format!("`{}` exists but cannot be read", self.uri(path)))),
                }
            }
            Err(error) => Err(StoreError::object("write", &self.uri(path), error)),
        }
    }

    pub(crate) async fn list(&self, prefix: &Path) -> Result<Vec<ObjectMeta>, StoreError> {
        let mut found: Vec<ObjectMeta> = self
            .objects
            .list(Some(prefix))
            .try_collect()
            .await
            .map_err(|error| StoreError::object("list", &self.uri(prefix), error))?;
        found.sort_by(|a, b| a.location.cmp(&b.location));
        Ok(found)
    }

    /// The folders right below a prefix.
    pub(crate) async fn folders(&self, prefix: &Path) -> Result<Vec<Path>, StoreError> {
        let listed = self.objects.list_with_delimiter(Some(prefix)).await;
        let listed = listed.map_err(|error| StoreError::object("list", &self.uri(prefix), error))?;
        Ok(listed.common_prefixes)
    }

    async fn get_all<T: DeserializeOwned + Send>(&self, paths: Vec<Path>) -> Result<Vec<T>, StoreError> {
        let read = paths.into_iter().map(|path| async move { self.get_json::<T>(&path).await });
        let found: Vec<Option<T>> = futures::stream::iter(read).buffered(READERS).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// The record of a unit, if it is done.
    pub async fn unit(&self, want: &UnitWant) -> Result<Option<UnitRecord>, StoreError> {
        self.get_json(&paths::unit(&want.stage, &want.fingerprint, &want.partition, &want.inputs)).await
    }

    /// All records of a stage, of every fingerprint.
    pub async fn units(&self, stage: &str) -> Result<Vec<UnitRecord>, StoreError> {
        let listed = self.list(&paths::units(stage)).await?;
        self.get_all(listed.into_iter().map(|object| object.location).collect()).await
    }

    /// All records of all stages.
    pub async fn all_units(&self) -> Result<Vec<UnitRecord>, StoreError> {
        let listed = self.list(&paths::all_units()).await?;
        self.get_all(listed.into_iter().map(|object| object.location).collect()).await
    }

    /// Records a finished unit, unless another attempt already did.
    pub async fn commit_unit(&self, record: &UnitRecord) -> Result<Created<UnitRecord>, StoreError> {
        let path = paths::unit(&record.stage, &record.fingerprint, &record.partition, &record.inputs);
        let created = self.create_json(&path, record).await?;
        Ok(match created {
            // Our own write, retried by the client after an answer that got lost.
            Created::Theirs(theirs) if theirs.attempt == record.attempt => Created::Ours,
            other => other,
        })
    }

    /// Forgets the finished units of a stage under one fingerprint, so that they are done again. Their data stays.
    pub async fn forget_units(&self, stage: &str, fingerprint: &str) -> Result<(), StoreError> {
        for object in self.list(&paths::units_of(stage, fingerprint)).await? {
            match self.objects.delete(&object.location).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(StoreError::object("delete", &self.uri(&object.location), error)),
            }
        }
        Ok(())
    }

    /// Records a run that begins.
    pub async fn begin_run(&self, record: &RunRecord) -> Result<(), StoreError> {
        self.create_json(&paths::run(&record.run), record).await.map(|_| ())
    }

    /// Records how a run ended.
    pub async fn end_run(&self, run: &str, end: &RunEnd) -> Result<(), StoreError> {
        self.create_json(&paths::run_end(run), end).await.map(|_| ())
    }

    /// All runs with how they ended, oldest first.
    pub async fn runs(&self) -> Result<Vec<(RunRecord, Option<RunEnd>)>, StoreError> {
        let listed = self.list(&paths::runs()).await?;
        let runs = listed.into_iter().map(|object| object.location);
        let runs = runs.filter(|path| !path.as_ref().ends_with(".end.json")).collect();
        let mut found = Vec::new();
        for record in self.get_all::<RunRecord>(runs).await? {
            let end = self.get_json(&paths::run_end(&record.run)).await?;
            found.push((record, end));
        }
        Ok(found)
    }

    /// Records an attempt that begins.
    pub async fn begin_attempt(&self, record: &AttemptRecord) -> Result<(), StoreError> {
        let path = paths::attempt(&record.run, &record.stage, &record.partition, &record.attempt);
        self.create_json(&path, record).await.map(|_| ())
    }

    /// Records that an attempt ended without finishing its unit.
    pub async fn end_attempt(&self, record: &AttemptRecord, end: &AttemptEnd) -> Result<(), StoreError> {
        let path = paths::attempt_end(&record.run, &record.stage, &record.partition, &record.attempt);
        self.create_json(&path, end).await.map(|_| ())
    }

    /// All attempts with how they ended where they failed, oldest first.
    pub async fn attempts(&self) -> Result<Vec<(AttemptRecord, Option<AttemptEnd>)>, StoreError> {
        self.attempts_below(&paths::attempts()).await
    }

    /// The attempts of one run.
    pub async fn attempts_of(&self, run: &str) -> Result<Vec<(AttemptRecord, Option<AttemptEnd>)>, StoreError> {
        self.attempts_below(&paths::attempts_of(run)).await
    }

    async fn attempts_below(&self, prefix: &Path) -> Result<Vec<(AttemptRecord, Option<AttemptEnd>)>, StoreError> {
        let listed = self.list(prefix).await?;
        let (ends, begins): (Vec<Path>, Vec<Path>) =
            listed.into_iter().map(|object| object.location).partition(|path| path.as_ref().ends_with(".end.json"));
        let ends: HashSet<Path> = ends.into_iter().collect();
        let records = self.get_all::<AttemptRecord>(begins).await?;
        let mut found = Vec::new();
        for record in records {
            let path = paths::attempt_end(&record.run, &record.stage, &record.partition, &record.attempt);
            let end = if ends.contains(&path) { self.get_json(&path).await? } else { None };
            found.push((record, end));
        }
        found.sort_by(|a, b| a.0.attempt.cmp(&b.0.attempt));
        Ok(found)
    }
}
