//! Sources: the objects that a pattern names, outside the store.

use futures::TryStreamExt;
use object_store::path::Path;
use operators::SourceObject;

use crate::error::{StoreError, StoreErrorKind};
use crate::location::Location;
use crate::paths::partition_name;

/// An object of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceListing {
    /// The object.
    pub object: SourceObject,
    /// The partition it makes.
    pub partition: String,
    /// Changes when its content does: size and entity tag.
    pub version: String,
}

/// The objects that match a pattern, in order of name.
///
/// The pattern is a path or URL; `*` stands for any text within one part, `**` for any parts. Objects that are
/// leftovers rather than data are passed over: names that begin with `.` or `_`, and `.tmp` files.
pub async fn list_source(pattern: &str) -> Result<Vec<SourceListing>, StoreError> {
    let (fixed, wild) = split_pattern(pattern);
    let location = Location::parse(fixed)?;
    let none = || {
        StoreError::new(StoreErrorKind::NotFound, format!("no object matches `{pattern}`"))
            .hint("check the path; relative ones start at the current directory")
    };
    if wild.is_empty() {
        return single(pattern, location).await?.map(|found| vec![found]).ok_or_else(none);
    }
    if let Location::Local(folder) = &location
        && !folder.is_dir()
    {
        return Err(none());
    }
    let (objects, prefix) = location.open(false)?;
    let listing = objects.list(Some(&prefix)).try_collect::<Vec<_>>().await;
    let mut found = Vec::new();
    for object in listing.map_err(|error| StoreError::object("list", fixed, error))? {
        let name = match object.location.prefix_match(&prefix) {
            Some(parts) => parts.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>(),
            None => continue,
        };
        let last = name.last().map(String::as_str).unwrap_or_default();
        let leftover = name.iter().any(|part| part.starts_with(['.', '_'])) || last.ends_with(".tmp");
        let parts: Vec<&str> = name.iter().map(String::as_str).collect();
        if leftover || !matches(&wild.split('/').collect::<Vec<_>>(), &parts) {
            continue;
        }
        let name = name.join("/");
        let uri = format!("{}/{name}", location.url());
        found.push(listing_of(uri, name, object.size, object.e_tag.as_deref()));
    }
    found.sort_by(|a, b| a.object.name.cmp(&b.object.name));
    if found.is_empty() {
        return Err(none());
    }
    Ok(found)
}

async fn single(pattern: &str, location: Location) -> Result<Option<SourceListing>, StoreError> {
    let url = location.url().to_string();
    let (objects, path) = match &location {
        Location::Local(path) => {
            if path.is_dir() {
                return Err(StoreError::new(StoreErrorKind::Address, format!("`{pattern}` is a folder"))
                    .hint(format!("name its files: `{}/*`", pattern.trim_end_matches('/'))));
            }
            let Some(folder) = path.parent().filter(|folder| folder.is_dir()) else { return Ok(None) };
            let (objects, _) = Location::Local(folder.to_owned()).open(false)?;
            let path = Path::from_absolute_path(path).map_err(|error| {
                StoreError::new(StoreErrorKind::Address, format!("`{pattern}` is no usable path")).because(error)
            })?;
            (objects, path)
        }
        Location::S3 { .. } => location.open(false)?,
    };
    match object_store::ObjectStoreExt::head(&objects, &path).await {
        Ok(meta) => {
            let name = path.filename().unwrap_or_default().to_owned();
            Ok(Some(listing_of(url, name, meta.size, meta.e_tag.as_deref())))
        }
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(StoreError::object("look at", pattern, error)),
    }
}

fn listing_of(uri: String, name: String, size: u64, tag: Option<&str>) -> SourceListing {
    let version = format!("{size} {}", tag.unwrap_or_default());
    SourceListing { partition: partition_name(&name), object: SourceObject { uri, name, size }, version }
}

/// Opens a source object for reading from its start.
pub(crate) fn open_source(
    object: &SourceObject,
    handle: &tokio::runtime::Handle,
) -> Result<Box<dyn std::io::Read + Send>, StoreError> {
    match Location::parse(&object.uri)? {
        Location::Local(path) => {
            let file = std::fs::File::open(&path).map_err(|error| {
                let kind = match error.kind() {
                    std::io::ErrorKind::NotFound => StoreErrorKind::NotFound,
                    _ => StoreErrorKind::Denied,
                };
                StoreError::new(kind, format!("cannot open `{}`", path.display())).because(error)
            })?;
            Ok(Box::new(file))
        }
        location @ Location::S3 { .. } => {
            let (objects, path) = location.open(false)?;
            let fetched = handle
                .block_on(object_store::ObjectStoreExt::get(&objects, &path))
                .map_err(|error| StoreError::object("read", &object.uri, error))?;
            let stream = fetched.into_stream().map_err(std::io::Error::other);
            let reader = tokio_util::io::StreamReader::new(stream);
            Ok(Box::new(tokio_util::io::SyncIoBridge::new_with_handle(reader, handle.clone())))
        }
    }
}

/// The part of a pattern before its first wild part, and the rest.
fn split_pattern(pattern: &str) -> (&str, &str) {
    let Some(star) = pattern.find('*') else { return (pattern, "") };
    match pattern[..star].rfind('/') {
        Some(slash) => (&pattern[..slash], &pattern[slash + 1..]),
        None => (".", pattern),
    }
}

/// Whether the parts of a name match the parts of a pattern.
fn matches(pattern: &[&str], name: &[&str]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((&"**", rest)), _) => {
            matches(rest, name) || name.split_first().is_some_and(|(_, tail)| matches(pattern, tail))
        }
        (Some((part, rest)), Some((first, tail))) => {
            part_matches(part.as_bytes(), first.as_bytes()) && matches(rest, tail)
        }
        _ => false,
    }
}

fn part_matches(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|skip| part_matches(rest, &text[skip..])),
        Some((byte, rest)) => text.split_first().is_some_and(|(first, tail)| first == byte && part_matches(rest, tail)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let hit = |pattern: &str, name: &str| {
            matches(&pattern.split('/').collect::<Vec<_>>(), &name.split('/').collect::<Vec<_>>())
        };
        assert!(hit("*.jsonl", "a.jsonl"));
        assert!(!hit("*.jsonl", "x/a.jsonl"));
        assert!(hit("**/*.jsonl", "x/y/a.jsonl"));
        assert!(hit("**/*.jsonl", "a.jsonl"));
        assert!(hit("2026-*/part-*.jsonl", "2026-01/part-7.jsonl"));
        assert!(!hit("part-*", "part"));
        assert_eq!(split_pattern("s3://raw/oagents/*/a.jsonl"), ("s3://raw/oagents", "*/a.jsonl"));
        assert_eq!(split_pattern("*.jsonl"), (".", "*.jsonl"));
        assert_eq!(split_pattern("a/b.jsonl"), ("a/b.jsonl", ""));
    }
}
