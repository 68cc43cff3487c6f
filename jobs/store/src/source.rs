//! Sources: the objects that a pattern names, outside the store, and the partitions they make.
//!
//! A pattern is a path or URL. Within one part `*` stands for any text, as a whole part `**` stands for any parts, and
//! `{name}` stands for any text that is a *key*: `s3://raw/oagents/{date}/*.jsonl`. With a format a key is a time, such
//! as `{date:%Y-%m-%d}` or `{hour:%Y-%m-%dT%H}`, in UTC. Objects with the same keys make one partition, named after them;
//! in a pattern without keys every object makes its own. The marker of a folder that has all keys in its name makes a
//! partition too, without objects where there are none.
//!
//! Keys of objects are taken as they are: blanks, `%`, `+`, `#` and `//` in them mean themselves.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path as LocalPath, PathBuf};

use operators::{Pattern, SourceObject};
use tokio::runtime::Handle;
use url::Url;

use crate::error::{StoreError, StoreErrorKind};
use crate::location::Location;
use crate::paths::partition_name;
use crate::s3::{S3, sdk_error};

/// A partition of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourcePartition {
    /// Its name.
    pub name: String,
    /// The keys it has in common, in the order of the pattern.
    pub keys: Vec<(String, String)>,
    /// Its objects in order of name.
    pub objects: Vec<SourceObject>,
}

/// What a pattern names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceListing {
    /// The partitions, in order of name.
    pub partitions: Vec<SourcePartition>,
    /// Objects that were passed over, by reason: `not_matching`, `marker` (of a folder), `hidden` (a name begins with `.`
    /// or `_`), `temporary` (`.tmp`).
    pub passed_over: BTreeMap<&'static str, u64>,
}

/// Lists what a pattern names. Relative paths start at `folder`. Nothing at all is an error.
pub async fn list_source(wild: &Pattern, folder: &LocalPath) -> Result<SourceListing, StoreError> {
    let pattern = wild.text();
    let nothing = || {
        StoreError::new(StoreErrorKind::NotFound, format!("no object matches `{pattern}`"))
            .hint(format!("check the path; relative ones start at `{}`", folder.display()))
    };
    let location = Location::parse_at(wild.fixed(), folder)?;
    let found = match location {
        Location::Local(path) if wild.is_fixed() => one_file(pattern, &path)?,
        Location::Local(path) => files(wild, &path)?,
        Location::S3 { bucket, prefix } => objects(wild, &bucket, &prefix).await?,
    };
    let mut listing = SourceListing::default();
    let mut partitions: BTreeMap<String, SourcePartition> = BTreeMap::new();
    for object in found {
        // What is named in full is meant.
        let reason = if wild.is_fixed() { None } else { leftover(&object.name, object.size) };
        let (keys, is_data) = match (reason, wild.matches(&object.name)) {
            (None, Some(keys)) => (keys, true),
            (reason, _) => {
                *listing.passed_over.entry(reason.unwrap_or("not_matching")).or_default() += 1;
                match wild.folder_keys(&object.name) {
                    Some(keys) if reason == Some("marker") => (keys, false),
                    _ => continue,
                }
            }
        };
        let text = match keys.is_empty() {
            true => object.name.clone(),
            false => keys.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join("."),
        };
        let partition = partition_name(&text);
        let entry = partitions.entry(partition.clone());
        let entry = entry.or_insert_with(|| SourcePartition { name: partition, keys, objects: Vec::new() });
        if is_data {
            entry.objects.push(object);
        }
    }
    for partition in partitions.values_mut() {
        partition.objects.sort_by(|a, b| a.name.cmp(&b.name));
    }
    listing.partitions = partitions.into_values().collect();
    if listing.partitions.is_empty() {
        return Err(nothing());
    }
    Ok(listing)
}

/// Why an object is not data, although the pattern names it.
fn leftover(name: &str, size: u64) -> Option<&'static str> {
    // Of what writes to S3 as to a file system, some leave `folder/`, others `folder_$folder$`.
    if size == 0 && (name.is_empty() || name.ends_with('/') || name.ends_with("_$folder$")) {
        return Some("marker");
    }
    let mut parts = name.split('/');
    if parts.any(|part| part.starts_with(['.', '_'])) {
        return Some("hidden");
    }
    name.ends_with(".tmp").then_some("temporary")
}

fn one_file(pattern: &str, path: &LocalPath) -> Result<Vec<SourceObject>, StoreError> {
    if path.is_dir() {
        return Err(StoreError::new(StoreErrorKind::Address, format!("`{pattern}` is a folder"))
            .hint(format!("name its files: `{}/*`", pattern.trim_end_matches('/'))));
    }
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(file(path, name)?.into_iter().collect())
}

/// A file; nothing where it does not exist or is none.
fn file(path: &LocalPath, name: String) -> Result<Option<SourceObject>, StoreError> {
    let failed = |error: std::io::Error| {
        let kind = if error.kind() == std::io::ErrorKind::NotFound {
            StoreErrorKind::NotFound
        } else {
            StoreErrorKind::Denied
        };
        StoreError::new(kind, format!("cannot look at `{}`", path.display())).because(error)
    };
    let facts = match path.metadata() {
        Ok(facts) if facts.is_file() => facts,
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let uri = Url::from_file_path(path).expect("the path is absolute").to_string();
    Ok(Some(SourceObject { name, uri, size: facts.len(), version: version_of(&facts) }))
}

/// Changes with every way to change a file's content.
fn version_of(facts: &Metadata) -> String {
    format!("{}-{}.{:09}-{}", facts.len(), facts.mtime(), facts.mtime_nsec(), facts.ino())
}

/// The files below a folder that a pattern may name; folders that it cannot name are not looked into.
fn files(wild: &Pattern, folder: &LocalPath) -> Result<Vec<SourceObject>, StoreError> {
    let mut found = Vec::new();
    let mut folders: Vec<(PathBuf, String)> = vec![(folder.to_owned(), String::new())];
    while let Some((folder, below)) = folders.pop() {
        let failed = |error: std::io::Error| {
            StoreError::new(StoreErrorKind::Denied, format!("cannot list `{}`", folder.display()))
                .hint("give this user the right to read it")
                .because(error)
        };
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => continue,
            Err(error) => return Err(failed(error)),
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            // Keys are text: a name that is none can be named by no pattern.
            let Ok(last) = entry.file_name().into_string() else { continue };
            let name = if below.is_empty() { last } else { format!("{below}/{last}") };
            let path = entry.path();
            if path.is_dir() {
                if wild.may_hold(&name) {
                    folders.push((path, name));
                }
            } else {
                found.extend(file(&path, name)?);
            }
        }
    }
    Ok(found)
}

/// The objects below a prefix, page by page until there is no further page.
async fn objects(wild: &Pattern, bucket: &str, prefix: &str) -> Result<Vec<SourceObject>, StoreError> {
    let s3 = S3::connect().await?;
    let uri = format!("s3://{bucket}/{prefix}");
    let below = if prefix.is_empty() || wild.is_fixed() { prefix.to_owned() } else { format!("{prefix}/") };
    let mut listing = s3.client().list_objects_v2().bucket(bucket).prefix(&below);
    // With one part left to match there is no need to see what lies deeper.
    if wild.is_flat() {
        listing = listing.delimiter("/");
    }
    let mut pages = listing.into_paginator().send();
    let mut found = Vec::new();
    while let Some(page) = pages.next().await {
        let page = page.map_err(|error| sdk_error("list", &uri, &error))?;
        for object in page.contents() {
            let Some(key) = object.key() else { continue };
            let name = match wild.is_fixed() {
                true if key == prefix => key.rsplit('/').next().unwrap_or(key).to_owned(),
                true => continue,
                false => key.strip_prefix(&below).unwrap_or(key).to_owned(),
            };
            let size = u64::try_from(object.size().unwrap_or(0)).unwrap_or(0);
            let version = object.e_tag().unwrap_or_default().to_owned();
            found.push(SourceObject { name, uri: format!("s3://{bucket}/{key}"), size, version });
        }
    }
    Ok(found)
}

/// Size and version of the object at an address as it is now; nothing where there is none.
pub async fn look_at(uri: &str) -> Result<Option<(u64, String)>, StoreError> {
    match Location::parse_at(uri, LocalPath::new("/"))? {
        Location::Local(path) => Ok(file(&path, String::new())?.map(|object| (object.size, object.version))),
        Location::S3 { bucket, prefix: key } => {
            let s3 = S3::connect().await?;
            match s3.client().head_object().bucket(bucket).key(key).send().await {
                Ok(facts) => {
                    let size = u64::try_from(facts.content_length().unwrap_or(0)).unwrap_or(0);
                    Ok(Some((size, facts.e_tag().unwrap_or_default().to_owned())))
                }
                Err(error) => match sdk_error("look at", uri, &error) {
                    error if error.kind == StoreErrorKind::NotFound => Ok(None),
                    error => Err(error),
                },
            }
        }
    }
}

/// Opens a source object for reading from its start.
pub(crate) fn open_source(object: &SourceObject, handle: &Handle) -> Result<Box<dyn Read + Send>, StoreError> {
    match Location::parse_at(&object.uri, LocalPath::new("/"))? {
        Location::Local(path) => {
            let file = std::fs::File::open(&path).map_err(|error| {
                let kind = match error.kind() {
                    std::io::ErrorKind::NotFound => StoreErrorKind::NotFound,
                    _ => StoreErrorKind::Denied,
                };
                StoreError::new(kind, format!("cannot open `{}`", path.display())).because(error)
            })?;
            if file.metadata().is_ok_and(|facts| version_of(&facts) != object.version) {
                return Err(changed(&object.uri));
            }
            Ok(Box::new(file))
        }
        Location::S3 { bucket, prefix: key } => Ok(Box::new(S3Reader {
            uri: object.uri.clone(),
            bucket,
            key,
            handle: handle.clone(),
            at: 0,
            size: object.size,
            tag: object.version.clone(),
            body: None,
        })),
    }
}

fn changed(uri: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Changed, format!("`{uri}` has changed since it was listed"))
        .hint("run again: the plan looks at it anew")
}

/// Reads an object of S3 from start to end; where a connection breaks, on from there, as long as it is the same object.
struct S3Reader {
    uri: String,
    bucket: String,
    key: String,
    handle: Handle,
    at: u64,
    size: u64,
    tag: String,
    body: Option<Body>,
}

struct Body {
    stream: aws_sdk_s3::primitives::ByteStream,
    rest: bytes::Bytes,
}

/// How often in a row a broken connection is made anew without a byte having come.
const RECONNECTS: u32 = 8;

impl S3Reader {
    async fn open(&mut self) -> Result<Body, StoreError> {
        let s3 = S3::connect().await?;
        let mut get = s3.client().get_object().bucket(&self.bucket).key(&self.key);
        if !self.tag.is_empty() {
            get = get.if_match(&self.tag);
        }
        if self.at > 0 {
            get = get.range(format!("bytes={}-", self.at));
        }
        let got = get.send().await.map_err(|error| {
            match error.raw_response().map(|response| response.status().as_u16()) {
                Some(412) => changed(&self.uri),
                _ => sdk_error("read", &self.uri, &error),
            }
        })?;
        Ok(Body { stream: got.body, rest: bytes::Bytes::new() })
    }

    async fn fill(&mut self) -> std::io::Result<()> {
        for attempt in 0.. {
            let error = match self.body.take() {
                None => match self.open().await {
                    Ok(body) => {
                        self.body = Some(body);
                        continue;
                    }
                    Err(error) if error.kind != StoreErrorKind::Unreachable => {
                        return Err(std::io::Error::other(error));
                    }
                    Err(error) => std::io::Error::other(error),
                },
                Some(mut body) => match body.stream.next().await {
                    Some(Ok(bytes)) => {
                        self.at += bytes.len() as u64;
                        body.rest = bytes;
                        self.body = Some(body);
                        return Ok(());
                    }
                    None if self.at >= self.size => {
                        self.body = Some(body);
                        return Ok(());
                    }
                    None => std::io::Error::from(std::io::ErrorKind::UnexpectedEof),
                    Some(Err(error)) => std::io::Error::other(error),
                },
            };
            if attempt >= RECONNECTS {
                return Err(error);
            }
            tracing::warn!(uri = self.uri, at = self.at, %error, "reading on after a broken connection");
            tokio::time::sleep(std::time::Duration::from_millis(50 << attempt)).await;
        }
        unreachable!("the loop ends by itself")
    }
}

impl Read for S3Reader {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.body.as_ref().is_none_or(|body| body.rest.is_empty()) {
            let handle = self.handle.clone();
            handle.block_on(self.fill())?;
        }
        let Some(body) = &mut self.body else { return Ok(0) };
        let part = body.rest.split_to(body.rest.len().min(into.len()));
        into[..part.len()].copy_from_slice(&part);
        Ok(part.len())
    }
}
