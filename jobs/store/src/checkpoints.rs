//! Checkpoints of long units: files of an attempt, made visible together by a manifest that is created last.
//!
//! A checkpoint belongs to the unit, not to the attempt: the next attempt goes on from the newest one, whoever saved
//! it. The two newest are kept; a torn one has no manifest and is never seen.

use std::collections::BTreeSet;
use std::path::{Path as LocalPath, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use object_store::path::Path;
use operators::{Checkpoint, ErrorKind, OperatorError};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use crate::error::StoreError;
use crate::paths;
use crate::record::{AttemptRecord, RECORD_VERSION};
use crate::store::{Created, Store};
use crate::transfer::{Checksum, Stored, fetch, put_file};

/// The checkpoints of one unit.
pub struct Checkpoints {
    store: Store,
    handle: Handle,
    unit: String,
    attempt: String,
    scratch: PathBuf,
    used: AtomicBool,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Manifest {
    version: u32,
    step: u64,
    /// The attempt that saved it.
    pub(crate) attempt: String,
    files: Vec<ManifestFile>,
}

#[derive(Serialize, Deserialize)]
struct ManifestFile {
    name: String,
    bytes: u64,
    xxh3: String,
}

/// A checkpoint that is there, and the attempt that saved it.
#[derive(Clone, Debug)]
pub struct SavedStep {
    /// The step.
    pub step: u64,
    /// The size of its files.
    pub bytes: u64,
    /// The attempt that saved it.
    pub attempt: AttemptRecord,
}

/// How many checkpoints of a unit are kept.
pub(crate) const KEPT: usize = 2;

impl Checkpoints {
    /// The checkpoints of a unit, as an attempt sees them.
    pub fn new(store: &Store, handle: &Handle, unit: &str, attempt: &str, scratch: &LocalPath) -> Self {
        Self {
            store: store.clone(),
            handle: handle.clone(),
            unit: unit.to_owned(),
            attempt: attempt.to_owned(),
            scratch: scratch.to_owned(),
            used: AtomicBool::new(false),
        }
    }

    /// Whether any checkpoint was saved or found.
    pub fn used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// The newest checkpoint, its files brought to the local disk and checked.
    pub fn newest(&self) -> Result<Option<Checkpoint>, OperatorError> {
        let Some(manifest) = self.handle.block_on(self.store.newest_checkpoint(&self.unit))? else { return Ok(None) };
        self.used.store(true, Ordering::Relaxed);
        let step = manifest.step;
        let folder = self.scratch.join(format!("checkpoint-{step}"));
        std::fs::create_dir_all(&folder)?;
        for file in &manifest.files {
            let path = paths::checkpoint_file(&self.unit, step, &manifest.attempt, &file.name);
            let stored = Stored { path, bytes: file.bytes, digest: Checksum::Xxh3(file.xxh3.clone()) };
            let local = fetch(&self.store, &self.handle, &stored, &self.scratch).map_err(|error| {
                let manifest = self.store.uri(&paths::checkpoint(&self.unit, step));
                if error.kind == ErrorKind::Input {
                    error.hint(format!("delete `{manifest}` to go on from the checkpoint before"))
                } else {
                    error
                }
            })?;
            std::fs::copy(&local, folder.join(&file.name))?;
        }
        Ok(Some(Checkpoint { step, folder }))
    }

    /// Saves the files of a folder as the checkpoint at `step`.
    pub fn save(&self, step: u64, folder: &LocalPath) -> Result<(), OperatorError> {
        self.used.store(true, Ordering::Relaxed);
        let mut files = Vec::new();
        let mut entries: Vec<PathBuf> =
            std::fs::read_dir(folder)?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
        entries.sort();
        for local in entries {
            let name = local.file_name().expect("a folder's entries have names").to_string_lossy().into_owned();
            let content = std::fs::read(&local)?;
            let bytes = content.len() as u64;
            let path = paths::checkpoint_file(&self.unit, step, &self.attempt, &name);
            put_file(&self.store, &self.handle, &path, &local, bytes)?;
            files.push(ManifestFile { name, bytes, xxh3: hash(&content) });
        }
        let manifest = Manifest { version: RECORD_VERSION, step, attempt: self.attempt.clone(), files };
        let created = self.handle.block_on(self.store.create_json(&paths::checkpoint(&self.unit, step), &manifest))?;
        if let Created::Theirs(theirs) = created {
            // Another attempt at the same unit saved the same step: the same bits, so theirs will do.
            tracing::debug!(unit = self.unit, step, attempt = theirs.attempt, "checkpoint exists");
        }
        self.forget_old()
    }

    fn forget_old(&self) -> Result<(), OperatorError> {
        let manifests = self.handle.block_on(self.store.checkpoint_manifests(&self.unit))?;
        for (step, path) in manifests.iter().rev().skip(KEPT) {
            let manifest: Option<Manifest> = self.handle.block_on(self.store.get_json(path))?;
            let Some(manifest) = manifest else { continue };
            // The manifest goes first: without it the files are invisible.
            let mut gone = vec![path.clone()];
            gone.extend(
                manifest
                    .files
                    .iter()
                    .map(|file| paths::checkpoint_file(&self.unit, *step, &manifest.attempt, &file.name)),
            );
            for path in gone {
                self.handle.block_on(self.store.delete(&path))?;
            }
        }
        Ok(())
    }
}

impl Store {
    /// The checkpoints that units of a stage have, by step: a finished unit has none.
    pub async fn saved_steps(&self, stage: &str) -> Result<Vec<SavedStep>, StoreError> {
        let mut saved = Vec::new();
        let mut attempts: Vec<AttemptRecord> = self.attempts().await?.into_iter().map(|(attempt, _)| attempt).collect();
        attempts.retain(|attempt| attempt.want.stage == stage);
        let units: BTreeSet<String> = attempts.iter().map(|attempt| attempt.want.key()).collect();
        for unit in units {
            for (step, path) in self.checkpoint_manifests(&unit).await? {
                let Some(manifest) = self.get_json::<Manifest>(&path).await? else { continue };
                let attempt = attempts.iter().find(|attempt| attempt.attempt == manifest.attempt);
                let bytes = manifest.files.iter().map(|file| file.bytes).sum();
                saved.extend(attempt.map(|attempt| SavedStep { step, bytes, attempt: attempt.clone() }));
            }
        }
        saved.sort_by_key(|saved| saved.step);
        Ok(saved)
    }

    /// Step and place of every manifest of a unit, oldest first.
    async fn checkpoint_manifests(&self, unit: &str) -> Result<Vec<(u64, Path)>, StoreError> {
        let listed = self.list(&paths::checkpoints(unit)).await?;
        let mut found: Vec<(u64, Path)> = listed
            .into_iter()
            .filter_map(|object| Some((paths::parse_checkpoint(&object.location)?, object.location)))
            .collect();
        found.sort();
        Ok(found)
    }

    /// The manifest of a unit's newest checkpoint.
    pub(crate) async fn newest_checkpoint(&self, unit: &str) -> Result<Option<Manifest>, StoreError> {
        match self.checkpoint_manifests(unit).await?.pop() {
            Some((_, path)) => self.get_json(&path).await,
            None => Ok(None),
        }
    }
}

fn hash(bytes: &[u8]) -> String {
    format!("{:016x}", xxhash_rust::xxh3::xxh3_64(bytes))
}
