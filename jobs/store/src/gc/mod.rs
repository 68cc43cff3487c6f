//! Collecting what nothing refers to.
//!
//! [`survey`] finds *garbage*; [`sweep`] deletes it. The survey lists what there is first and looks at what is needed
//! after that, so that what comes to be needed meanwhile is seen. Needed is
//!
//! - what the record of a unit names, unless the unit is *superseded*: a later run was about its partition and shows
//!   another one there, or none;
//! - what a table version within the retention has: the current one, and what was removed since;
//! - what an attempt may still be writing. While a run is at work, its attempts are not told from those of the dead, and
//!   records it has planned with may not go: so then only what failed attempts have left is garbage.
//!
//! Whatever is younger than the retention stays in any case. Ages are told by the store's own clock: an object's time of
//! modification against that of an object written now.
//!
//! Superseded units are forgotten before their files are deleted, and their files only if no run has begun since it
//! was found out that none is at work. A run that was planned before and begins after that finds that a record it relies on is gone
//! ([`Store::require_units`]) and ends. So a survey that ends too early, two at once, and one that is killed halfway
//! leave at worst some garbage for the next.

mod needed;
mod sweep;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use chrono::{DateTime, TimeDelta, Utc};
use object_store::ObjectMeta;
use object_store::path::Path;

use crate::doctor::store_time;
use crate::error::StoreError;
use crate::paths;
use crate::record::UnitWant;
use crate::s3::{S3, Upload, uploads};
use crate::store::Store;

pub use sweep::{Swept, sweep};

use needed::Needed;

/// What a survey goes by.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// What was written or removed within this time stays.
    pub retention: TimeDelta,
    /// The number of the newest run when it was found out whether one is at work; 0 where there is none.
    pub newest_run: u64,
    /// Whether one of the runs up to that one may be at work.
    pub at_work: bool,
}

/// What kind of thing is garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The record of a superseded unit, or of an attempt at it.
    Record,
    /// A data file of a table.
    Data,
    /// A file of an output port.
    File,
    /// A checkpoint, or a file of one.
    Checkpoint,
    /// An upload that was begun and not completed; its bytes are not known.
    Upload,
    /// A file that was half written to a local store.
    Partial,
    /// What an examination of the store left behind.
    Probe,
}

impl Kind {
    /// For people and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Record => "record",
            Self::Data => "data file",
            Self::File => "output file",
            Self::Checkpoint => "checkpoint",
            Self::Upload => "unfinished upload",
            Self::Partial => "half-written file",
            Self::Probe => "probe",
        }
    }
}

/// Where a piece of garbage is.
#[derive(Clone, Debug)]
enum Place {
    Object(Path),
    Upload(Upload),
    Local(PathBuf),
}

/// A piece of garbage.
#[derive(Clone, Debug)]
pub struct Item {
    /// What it is.
    pub kind: Kind,
    /// Its address.
    pub uri: String,
    /// Its size; 0 where that is not known.
    pub bytes: u64,
    place: Place,
    /// Whether a superseded unit names it: then it goes after the unit's record.
    superseded: bool,
}

/// What a survey has found.
#[derive(Debug)]
pub struct Garbage {
    /// What would be deleted, in the order in which it is.
    pub items: Vec<Item>,
    newest_run: u64,
}

/// Finds what nothing refers to.
pub async fn survey(store: &Store, rules: Rules) -> Result<Garbage, StoreError> {
    let (root, prefix) = store.root();
    let now = store_time(root, prefix).await;
    let now = now.map_err(|error| StoreError::object("write", store.url().as_str(), error))?;
    let survey = Survey { store, before: now - rules.retention };
    let mut items = Vec::new();
    let data = survey.old(&paths::all_tables()).await?;
    let files = survey.old(&paths::all_files()).await?;
    let checkpoints = store.list(&paths::all_checkpoints()).await?;
    let needed = Needed::find(store, rules, survey.before).await?;
    for (want, record) in &needed.superseded {
        items.extend(survey.unit(want, record).await?);
    }
    for object in data {
        let Some((_, file)) = paths::split_data_file(&object.location) else { continue };
        let name = paths::parse_data_file(&file);
        let attempt = name.as_ref().filter(|name| !name.merged).map(|name| name.attempt.as_str());
        let merged = name.as_ref().is_some_and(|name| name.merged);
        if !needed.names(&object.location) && (merged || needed.is_over(attempt)) {
            items.push(survey.item(Kind::Data, object, &needed));
        }
    }
    for object in files {
        let attempt = paths::attempt_of_file(&object.location);
        if !needed.names(&object.location) && needed.is_over(attempt.as_deref()) {
            items.push(survey.item(Kind::File, object, &needed));
        }
    }
    if !rules.at_work {
        items.extend(survey.checkpoints(checkpoints, &needed));
    }
    items.extend(survey.uploads(&needed).await?);
    items.extend(survey.partial()?);
    items.extend(survey.probes().await?);
    Ok(Garbage { items, newest_run: rules.newest_run })
}

struct Survey<'a> {
    store: &'a Store,
    /// What is younger than this stays.
    before: DateTime<Utc>,
}

/// Checkpoints of a unit that is not done which stay: those that are kept while it is being done.
const CHECKPOINTS: usize = crate::checkpoints::KEPT;

impl Survey<'_> {
    async fn old(&self, prefix: &Path) -> Result<Vec<ObjectMeta>, StoreError> {
        let listed = self.store.list(prefix).await?;
        Ok(listed.into_iter().filter(|object| object.last_modified <= self.before).collect())
    }

    fn item(&self, kind: Kind, object: ObjectMeta, needed: &Needed) -> Item {
        let superseded = needed.superseded_files.contains(&object.location);
        let uri = self.store.uri(&object.location);
        Item { kind, uri, bytes: object.size, place: Place::Object(object.location), superseded }
    }

    /// The records of a superseded unit, its own last: cut short, this leaves a unit that is done.
    async fn unit(&self, want: &UnitWant, record: &ObjectMeta) -> Result<Vec<Item>, StoreError> {
        let listed = self.store.list(&paths::attempts_of(&want.stage, &want.fingerprint)).await?;
        let of_unit =
            |object: &ObjectMeta| paths::parse_attempt(&object.location).is_some_and(|(other, ..)| other == *want);
        let objects = listed.into_iter().filter(of_unit).chain([record.clone()]);
        Ok(objects
            .map(|object| Item {
                kind: Kind::Record,
                uri: self.store.uri(&object.location),
                bytes: object.size,
                place: Place::Object(object.location),
                superseded: false,
            })
            .collect())
    }

    /// Of a unit that is done, or was forgotten, all checkpoints; of others those that newer ones have replaced, and
    /// what never became one. Manifests first: without them the files are invisible.
    fn checkpoints(&self, listed: Vec<ObjectMeta>, needed: &Needed) -> Vec<Item> {
        let mut kept: HashMap<String, Vec<u64>> = HashMap::new();
        for object in &listed {
            let (Some(unit), Some(step)) =
                (paths::unit_of_checkpoint(&object.location), paths::parse_checkpoint(&object.location))
            else {
                continue;
            };
            if needed.unfinished.contains(&unit) {
                kept.entry(unit).or_default().push(step);
            }
        }
        for steps in kept.values_mut() {
            steps.sort_unstable_by(|a, b| b.cmp(a));
            steps.truncate(CHECKPOINTS);
        }
        let is_kept = |path: &Path| {
            let step = paths::parse_checkpoint(path).or_else(|| paths::step_of_checkpoint_file(path));
            let unit = paths::unit_of_checkpoint(path);
            unit.and_then(|unit| kept.get(&unit)).zip(step).is_some_and(|(steps, step)| steps.contains(&step))
        };
        let old = listed.into_iter().filter(|object| object.last_modified <= self.before);
        let gone = old.filter(|object| !is_kept(&object.location));
        let mut items: Vec<Item> = gone.map(|object| self.item(Kind::Checkpoint, object, needed)).collect();
        items.sort_by_key(|item| matches!(&item.place, Place::Object(path) if paths::parse_checkpoint(path).is_none()));
        items
    }

    async fn uploads(&self, needed: &Needed) -> Result<Vec<Item>, StoreError> {
        let url = self.store.url();
        let (Some(bucket), "s3") = (url.host_str(), url.scheme()) else { return Ok(Vec::new()) };
        let s3 = S3::connect().await?;
        let prefix = match self.store.root().1.as_ref() {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        let found = uploads(s3.client(), bucket, &prefix).await?;
        let old = found.into_iter().filter(|upload| upload.was_begun_by(self.before));
        let over = old.filter(|upload| {
            let path = Path::from(upload.key.strip_prefix(&prefix).unwrap_or(&upload.key));
            let name = paths::split_data_file(&path).and_then(|(_, file)| paths::parse_data_file(&file));
            needed.is_over(name.map(|name| name.attempt).or_else(|| paths::attempt_of_file(&path)).as_deref())
        });
        Ok(over
            .map(|upload| Item {
                kind: Kind::Upload,
                uri: format!("s3://{bucket}/{}", upload.key),
                bytes: 0,
                place: Place::Upload(upload),
                superseded: false,
            })
            .collect())
    }

    /// Files that a local store writes under another name before they have theirs, and that have none yet.
    fn partial(&self) -> Result<Vec<Item>, StoreError> {
        let mut items = Vec::new();
        let Some(root) = self.store.local() else { return Ok(items) };
        let mut folders: Vec<PathBuf> = ["runs", "attempts", "units", "stages", "tables", "files", "checkpoints"]
            .map(|name| root.join(name))
            .into();
        while let Some(folder) = folders.pop() {
            let unreadable = |error: std::io::Error| {
                let source = Box::new(error);
                let generic = object_store::Error::Generic { store: "local", source };
                StoreError::object("list", &folder.display().to_string(), generic)
            };
            let entries = match std::fs::read_dir(&folder) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                entries => entries.map_err(unreadable)?,
            };
            for entry in entries {
                let entry = entry.map_err(unreadable)?;
                // What is gone by now is no garbage.
                let Ok(facts) = entry.metadata() else { continue };
                if facts.is_dir() {
                    folders.push(entry.path());
                    continue;
                }
                let modified: DateTime<Utc> = facts.modified().map_err(unreadable)?.into();
                if is_partial(&entry.file_name().to_string_lossy()) && modified <= self.before {
                    items.push(Item {
                        kind: Kind::Partial,
                        uri: entry.path().display().to_string(),
                        bytes: facts.len(),
                        place: Place::Local(entry.path()),
                        superseded: false,
                    });
                }
            }
        }
        Ok(items)
    }

    async fn probes(&self) -> Result<Vec<Item>, StoreError> {
        let listed = self.store.objects().list_with_delimiter(None).await;
        let listed = listed.map_err(|error| StoreError::object("list", self.store.url().as_str(), error))?;
        let is_probe = |object: &ObjectMeta| {
            let named = object.location.filename().is_some_and(|name| name.starts_with(paths::PROBE));
            named && object.last_modified <= self.before
        };
        let probes = listed.objects.into_iter().filter(is_probe);
        Ok(probes
            .map(|object| Item {
                kind: Kind::Probe,
                uri: self.store.uri(&object.location),
                bytes: object.size,
                place: Place::Object(object.location),
                superseded: false,
            })
            .collect())
    }
}

/// `part-00000.parquet#7`
fn is_partial(name: &str) -> bool {
    let number = name.rsplit_once('#').map(|(_, number)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

impl Garbage {
    /// How many there are of each kind, and their bytes.
    pub fn by_kind(&self) -> BTreeMap<Kind, (usize, u64)> {
        let mut kinds: BTreeMap<Kind, (usize, u64)> = BTreeMap::new();
        for item in &self.items {
            let (count, bytes) = kinds.entry(item.kind).or_default();
            *count += 1;
            *bytes += item.bytes;
        }
        kinds
    }
}
