//! The store itself: typed access to its records.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::error::{StoreError, StoreErrorKind, says};
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
    /// What no other store has, whatever its address.
    id: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct StoreRecord {
    version: u32,
    pipeline: String,
    /// Stores of before have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
}

/// How often the creation of a record is tried while the store does not answer.
const CREATE_TRIES: u32 = 6;
/// How many records are read at the same time.
pub(crate) const READERS: usize = 32;

impl Store {
    /// Opens the store of `pipeline`, making it where there is none.
    pub async fn create(address: &str, pipeline: &str) -> Result<Self, StoreError> {
        let mut store = Self::at(address, true).await?;
        let id = Some(ulid::Ulid::new().to_string());
        let mut record = StoreRecord { version: RECORD_VERSION, pipeline: pipeline.to_owned(), id };
        if let Created::Theirs(theirs) = store.create_json(&Path::from(paths::STORE), &record).await? {
            record = theirs;
        }
        if record.pipeline != pipeline {
            return Err(StoreError::new(
                StoreErrorKind::Address,
                format!("the store `{}` belongs to the pipeline `{}`, not to `{pipeline}`", store.url, record.pipeline),
            )
            .hint("give this pipeline a `store` of its own, or its old `name` back"));
        }
        store.id = record.id;
        Ok(store)
    }

    /// Opens a store that exists.
    pub async fn open(address: &str) -> Result<Self, StoreError> {
        let store = Self::at(address, false).await?;
        match store.get_json::<StoreRecord>(&Path::from(paths::STORE)).await? {
            Some(record) => Ok(Self { id: record.id, ..store }),
            None => Err(StoreError::new(StoreErrorKind::NotFound, format!("there is no store at `{}`", store.url))
                .hint("`coa run FILE` makes it; `--store` names another")),
        }
    }

    async fn at(address: &str, create: bool) -> Result<Self, StoreError> {
        let location = Location::parse(address)?;
        let (root, prefix) = location.open(create).await?;
        let local = match &location {
            Location::Local(path) => Some(path.clone()),
            Location::S3 { .. } => None,
        };
        Ok(Self { local, ..Self::over(root, prefix, location.url()) })
    }

    /// A store below a prefix of any object store, such as one that counts or fails. `url` is the prefix's address.
    pub fn over(root: Arc<dyn ObjectStore>, prefix: Path, url: Url) -> Self {
        let objects = Arc::new(PrefixStore::new(Arc::clone(&root), prefix.clone()));
        Self { root, objects, prefix, url, local: None, id: None }
    }

    /// Its address.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// What no other store has, whatever its address: another endpoint may have a bucket of the same name.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
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
            Err(error @ object_store::Error::NotFound { .. }) if !says(&error, "NoSuchBucket") => Ok(None),
            Err(error) => Err(StoreError::object("read", &self.uri(path), error)),
        }
    }

    pub(crate) async fn get_json<T: DeserializeOwned>(&self, path: &Path) -> Result<Option<T>, StoreError> {
        let Some(bytes) = self.get_bytes(path).await? else { return Ok(None) };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            StoreError::corrupt(format!("`{}` is damaged", self.uri(path)))
                .hint("restore it from a copy, or delete it: what it speaks of is then done again")
                .because(error)
        })
    }

    /// A record that only tells what happened: a damaged one is passed over with a warning, nothing depends on it.
    async fn get_history<T: DeserializeOwned>(&self, path: &Path) -> Result<Option<T>, StoreError> {
        match self.get_json(path).await {
            Err(error) if error.kind == StoreErrorKind::Corrupt => {
                tracing::warn!("{}; it is passed over", error.chain());
                Ok(None)
            }
            other => other,
        }
    }

    /// Creates an object that must not exist yet. Storage may answer "exists already" to our own retried write, so the
    /// caller gets what is there and compares.
    pub(crate) async fn create_json<T: Serialize + DeserializeOwned>(
        &self,
        path: &Path,
        value: &T,
    ) -> Result<Created<T>, StoreError> {
        let payload = PutPayload::from(serde_json::to_vec(value).expect("records are plain data"));
        let mut tries = 0;
        loop {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            let error = match self.objects.put_opts(path, payload.clone(), options).await {
                Ok(_) => return Ok(Created::Ours),
                Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                    return match self.get_json(path).await? {
                        Some(theirs) => Ok(Created::Theirs(theirs)),
                        None => Err(StoreError::corrupt(format!("`{}` exists but cannot be read", self.uri(path)))),
                    };
                }
                Err(error) => StoreError::object("write", &self.uri(path), error),
            };
            // The client does not repeat every write of its own. This one may be repeated: if it was done and only its
            // answer was lost, what is found is ours.
            tries += 1;
            if error.kind != StoreErrorKind::Unreachable || tries == CREATE_TRIES {
                return Err(error);
            }
            tracing::debug!(error = error.chain(), tries, "a record is written again");
            tokio::time::sleep(Duration::from_millis(50 << tries)).await;
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

    /// Which of these prefixes have an object below them.
    pub(crate) async fn have_something(&self, prefixes: Vec<Path>) -> Result<Vec<bool>, StoreError> {
        let looks = prefixes.into_iter().map(|prefix| async move {
            let first = self.objects.list(Some(&prefix)).try_next().await;
            Ok(first.map_err(|error| StoreError::object("list", &self.uri(&prefix), error))?.is_some())
        });
        futures::stream::iter(looks).buffered(READERS).try_collect().await
    }

    pub(crate) async fn get_all<T: DeserializeOwned + Send>(&self, paths: Vec<Path>) -> Result<Vec<T>, StoreError> {
        let read = paths.into_iter().map(|path| async move { self.get_json::<T>(&path).await });
        let found: Vec<Option<T>> = futures::stream::iter(read).buffered(READERS).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// The record of a unit, if it is done.
    pub async fn unit(&self, want: &UnitWant) -> Result<Option<UnitRecord>, StoreError> {
        self.get_json(&paths::unit(want)).await
    }

    /// The records of these units, in their order; an error where one is not there.
    pub async fn unit_records(&self, wants: &[UnitWant]) -> Result<Vec<UnitRecord>, StoreError> {
        let read = wants.iter().map(|want| async move {
            let path = paths::unit(want);
            let found = self.get_json::<UnitRecord>(&path).await?;
            found.ok_or_else(|| {
                StoreError::new(StoreErrorKind::NotFound, format!("`{}` is gone", self.uri(&path)))
                    .hint("its unit is done again by `coa run`")
            })
        });
        futures::stream::iter(read).buffered(READERS).try_collect().await
    }

    /// All records of all stages.
    pub async fn all_units(&self) -> Result<Vec<UnitRecord>, StoreError> {
        let listed = self.list(&paths::all_units()).await?;
        self.get_all(listed.into_iter().map(|object| object.location).collect()).await
    }

    /// Records a finished unit, unless another attempt already did.
    pub async fn commit_unit(&self, record: &UnitRecord) -> Result<Created<UnitRecord>, StoreError> {
        let created = self.create_json(&paths::unit(&record.want()), record).await?;
        Ok(match created {
            // Our own write, retried by the client after an answer that got lost.
            Created::Theirs(theirs) if theirs.attempt == record.attempt => Created::Ours,
            other => other,
        })
    }

    /// Forgets the units of a stage under one fingerprint, so that they are done again from nothing: their records,
    /// attempts and checkpoints. Their data stays.
    pub async fn forget_units(&self, stage: &str, fingerprint: &str) -> Result<(), StoreError> {
        let units = self.list(&paths::units_of(stage, fingerprint)).await?;
        let attempts = self.list(&paths::attempts_of(stage, fingerprint)).await?;
        let tried: HashSet<UnitWant> = attempts
            .iter()
            .filter_map(|object| Some(paths::parse_attempt(&object.location)?.0))
            .chain(units.iter().filter_map(|object| paths::parse_unit(&object.location)))
            .collect();
        // Records last: cut short, this leaves units that are done, and not such as go on from what was to be forgotten.
        for want in tried {
            self.forget_checkpoints(&want.key()).await?;
        }
        for object in attempts.into_iter().chain(units) {
            self.delete(&object.location).await?;
        }
        Ok(())
    }

    /// Deletes the checkpoints of a unit, so that the next attempt begins anew.
    pub async fn forget_checkpoints(&self, unit: &str) -> Result<(), StoreError> {
        let mut found = self.list(&paths::checkpoints(unit)).await?;
        // Manifests first: without them the files are invisible.
        found.sort_by_key(|object| paths::parse_checkpoint(&object.location).is_none());
        for object in found {
            self.delete(&object.location).await?;
        }
        Ok(())
    }

    /// Deletes an object that may be gone already.
    pub(crate) async fn delete(&self, path: &Path) -> Result<(), StoreError> {
        match self.objects.delete(path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(StoreError::object("delete", &self.uri(path), error)),
        }
    }

    /// Records a run that begins, under the next free number.
    pub async fn begin_run(&self, mut record: RunRecord) -> Result<RunRecord, StoreError> {
        record.run = self.run_numbers().await?.last().copied().unwrap_or(0) + 1;
        loop {
            match self.create_json(&paths::run(record.run), &record).await? {
                Created::Theirs(theirs) if theirs != record => record.run += 1,
                _ => return Ok(record),
            }
        }
    }

    /// Records how a run ended.
    pub async fn end_run(&self, run: u64, end: &RunEnd) -> Result<(), StoreError> {
        self.create_json(&paths::run_end(run), end).await.map(|_| ())
    }

    /// The numbers of all runs, in order.
    pub async fn run_numbers(&self) -> Result<Vec<u64>, StoreError> {
        let listed = self.list(&paths::runs()).await?;
        Ok(listed.iter().filter_map(|object| paths::parse_run(&object.location)).collect())
    }

    /// The numbers of runs that have no end yet: they are still going, or died.
    pub async fn open_runs(&self) -> Result<Vec<u64>, StoreError> {
        let listed = self.list(&paths::runs()).await?;
        let ended: HashSet<&Path> = listed.iter().map(|object| &object.location).collect();
        let begun = listed.iter().filter_map(|object| paths::parse_run(&object.location));
        Ok(begun.filter(|run| !ended.contains(&paths::run_end(*run))).collect())
    }

    /// A run, if there is one of this number, and how it ended.
    pub async fn run(&self, run: u64) -> Result<Option<(RunRecord, Option<RunEnd>)>, StoreError> {
        let Some(record) = self.get_json(&paths::run(run)).await? else { return Ok(None) };
        Ok(Some((record, self.get_history(&paths::run_end(run)).await?)))
    }

    /// The run with the highest number whose record can be read, and how it ended.
    pub async fn last_run(&self) -> Result<Option<(RunRecord, Option<RunEnd>)>, StoreError> {
        for run in self.run_numbers().await?.into_iter().rev() {
            if let Some(record) = self.get_history(&paths::run(run)).await? {
                return Ok(Some((record, self.get_history(&paths::run_end(run)).await?)));
            }
        }
        Ok(None)
    }

    /// All runs with how they ended, in order.
    pub async fn runs(&self) -> Result<Vec<(RunRecord, Option<RunEnd>)>, StoreError> {
        let read = self.run_numbers().await?.into_iter().map(|run| async move {
            let Some(record) = self.get_history(&paths::run(run)).await? else { return Ok(None) };
            Ok::<_, StoreError>(Some((record, self.get_history(&paths::run_end(run)).await?)))
        });
        let found: Vec<_> = futures::stream::iter(read).buffered(READERS).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Asks a run to end, wherever it runs.
    pub async fn cancel_run(&self, run: u64) -> Result<(), StoreError> {
        self.create_json(&paths::run_cancel(run), &serde_json::json!({ "version": RECORD_VERSION })).await.map(|_| ())
    }

    /// Whether a run was asked to end.
    pub async fn is_cancelled(&self, run: u64) -> Result<bool, StoreError> {
        Ok(self.get_bytes(&paths::run_cancel(run)).await?.is_some())
    }

    /// Begins an attempt at a unit: takes the next number and with it the unit from whoever had it.
    pub async fn begin_attempt(&self, mut record: AttemptRecord) -> Result<AttemptRecord, StoreError> {
        record.number = 1;
        loop {
            match self.create_json(&paths::attempt(&record.want, record.number), &record).await {
                Ok(Created::Theirs(theirs)) if theirs.attempt != record.attempt => record.number += 1,
                // What cannot be read has its number nonetheless.
                Err(error) if error.kind == StoreErrorKind::Corrupt => record.number += 1,
                Ok(_) => return Ok(record),
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether a later attempt at the same unit has begun.
    pub async fn is_superseded(&self, attempt: &AttemptRecord) -> Result<bool, StoreError> {
        Ok(self.get_bytes(&paths::attempt(&attempt.want, attempt.number + 1)).await?.is_some())
    }

    /// Records that an attempt ended without finishing its unit.
    pub async fn end_attempt(&self, record: &AttemptRecord, end: &AttemptEnd) -> Result<(), StoreError> {
        self.create_json(&paths::attempt_end(&record.want, record.number), end).await.map(|_| ())
    }

    /// The attempts right before this one that ended without a word and left no checkpoint: newest first. Their process
    /// died, or their machine.
    pub async fn silent_attempts(&self, attempt: &AttemptRecord) -> Result<Vec<AttemptRecord>, StoreError> {
        let saved = self.newest_checkpoint(&attempt.want.key()).await?;
        let mut silent = Vec::new();
        for number in (1..attempt.number).rev() {
            if self.get_bytes(&paths::attempt_end(&attempt.want, number)).await?.is_some() {
                break;
            }
            let Some(before) = self.get_history::<AttemptRecord>(&paths::attempt(&attempt.want, number)).await? else {
                break;
            };
            if saved.as_ref().is_some_and(|manifest| manifest.attempt == before.attempt) {
                break;
            }
            silent.push(before);
        }
        Ok(silent)
    }

    /// All attempts with how they ended where they failed.
    pub async fn attempts(&self) -> Result<Vec<(AttemptRecord, Option<AttemptEnd>)>, StoreError> {
        let listed = self.list(&paths::attempts()).await?;
        let (mut begun, mut ended) = (Vec::new(), HashSet::new());
        for (want, number, end) in listed.iter().filter_map(|object| paths::parse_attempt(&object.location)) {
            if end {
                ended.insert((want, number));
            } else {
                begun.push((want, number));
            }
        }
        let ended = &ended;
        let read = begun.into_iter().map(|(want, number)| async move {
            let record = self.get_history::<AttemptRecord>(&paths::attempt(&want, number)).await?;
            let end = match ended.contains(&(want.clone(), number)) {
                true => self.get_history(&paths::attempt_end(&want, number)).await?,
                false => None,
            };
            Ok::<_, StoreError>(record.map(|record| (record, end)))
        });
        let found: Vec<_> = futures::stream::iter(read).buffered(READERS).try_collect().await?;
        let mut found: Vec<(AttemptRecord, Option<AttemptEnd>)> = found.into_iter().flatten().collect();
        found.sort_by(|a, b| (a.0.run, &a.0.attempt).cmp(&(b.0.run, &b.0.attempt)));
        Ok(found)
    }

    /// How the last attempt at each unit of a stage stands that has begun: with its end where it has one.
    pub async fn last_attempts(
        &self,
        stage: &str,
        fingerprint: &str,
    ) -> Result<HashMap<UnitWant, (u32, Option<AttemptEnd>)>, StoreError> {
        let mut last: HashMap<UnitWant, (u32, bool)> = HashMap::new();
        for object in self.list(&paths::attempts_of(stage, fingerprint)).await? {
            let Some((want, number, end)) = paths::parse_attempt(&object.location) else { continue };
            let entry = last.entry(want).or_default();
            *entry = (*entry).max((number, end));
        }
        let read = last.into_iter().map(|(want, (number, ended))| async move {
            let end = match ended {
                true => self.get_history(&paths::attempt_end(&want, number)).await?,
                false => None,
            };
            Ok::<_, StoreError>((want, (number, end)))
        });
        futures::stream::iter(read).buffered(READERS).try_collect().await
    }
}
