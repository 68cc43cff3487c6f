//! Deleting garbage.

use std::collections::{BTreeSet, HashSet};
use std::path::Path as LocalPath;

use futures::{StreamExt, TryStreamExt};

use super::{Garbage, Item, Kind, Place};
use crate::error::{StoreError, StoreErrorKind};
use crate::paths;
use crate::record::UnitWant;
use crate::s3::{S3, abort_upload};
use crate::store::{READERS, Store};

/// What a sweep has deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// How many pieces.
    pub count: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Pieces that were left to the next sweep, because a run has begun since the survey.
    pub left: usize,
}

/// Deletes what a survey has found.
pub async fn sweep(store: &Store, garbage: &Garbage) -> Result<Swept, StoreError> {
    let mut swept = Swept::default();
    let began = begun_since(store, garbage).await?;
    // One after the other, each unit's own record after those of its attempts.
    for record in garbage.items.iter().filter(|item| item.kind == Kind::Record) {
        if began {
            swept.left += 1;
        } else {
            delete(store, record).await?;
            swept.add(record);
        }
    }
    let began = began || begun_since(store, garbage).await?;
    let (manifests, others): (Vec<&Item>, Vec<&Item>) = garbage
        .items
        .iter()
        .filter(|item| item.kind != Kind::Record)
        .partition(|item| item.kind == Kind::Checkpoint && item.uri.ends_with(".json"));
    for wave in [manifests, others] {
        let (left, gone): (Vec<&Item>, Vec<&Item>) =
            wave.into_iter().partition(|item| began && (item.superseded || item.kind == Kind::Checkpoint));
        swept.left += left.len();
        let deleting = gone.iter().map(|item| delete(store, item));
        futures::stream::iter(deleting).buffer_unordered(READERS).try_collect::<Vec<()>>().await?;
        gone.iter().for_each(|item| swept.add(item));
    }
    Ok(swept)
}

impl Swept {
    fn add(&mut self, item: &Item) {
        self.count += 1;
        self.bytes += item.bytes;
    }
}

async fn begun_since(store: &Store, garbage: &Garbage) -> Result<bool, StoreError> {
    Ok(store.run_numbers().await?.iter().any(|run| *run > garbage.newest_run))
}

async fn delete(store: &Store, item: &Item) -> Result<(), StoreError> {
    match &item.place {
        Place::Object(path) => store.delete(path).await,
        Place::Upload(upload) => {
            let bucket = store.url().host_str().unwrap_or_default().to_owned();
            abort_upload(S3::connect().await?.client(), &bucket, upload).await
        }
        Place::Local(path) => remove(path),
    }
}

fn remove(path: &LocalPath) -> Result<(), StoreError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            let error = object_store::Error::Generic { store: "local", source: Box::new(error) };
            Err(StoreError::object("delete", &path.display().to_string(), error))
        }
        _ => Ok(()),
    }
}

impl Store {
    /// Refuses to go on where one of these units is not done any more: `gc` may have forgotten it since it was read.
    pub async fn require_units(&self, wants: &[UnitWant]) -> Result<(), StoreError> {
        let stages: BTreeSet<&str> = wants.iter().map(|want| want.stage.as_str()).collect();
        let mut there = HashSet::new();
        for stage in stages {
            there.extend(self.list(&paths::units(stage)).await?.into_iter().map(|object| object.location));
        }
        match wants.iter().map(paths::unit).find(|path| !there.contains(path)) {
            Some(path) => Err(StoreError::new(StoreErrorKind::NotFound, format!("`{}` is gone", self.uri(&path)))
                .hint("it was there when the run was planned; its unit is done again by `coa run`")),
            None => Ok(()),
        }
    }
}
