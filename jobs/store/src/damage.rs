//! Which file of a table is not what was written: looked for when reading the table failed, to say so in one line.
//!
//! A query engine that stumbles over a damaged file seldom knows its name. The store does: the log is text that can be
//! read line by line, and unit records hold a digest of every data file.

use std::collections::HashMap;

use futures::TryStreamExt;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use xxhash_rust::xxh3::Xxh3;

use crate::delta::{StoredTable, checkpoint_version, commit_version, live_files, log_folder, table_folder};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::Store;

/// The first data file of a table, as it stood at `version`, that is gone or whose bytes are not those that were written.
pub async fn damaged_file(store: &Store, table: &StoredTable, version: u64) -> Result<Option<StoreError>, StoreError> {
    let folder = table_folder(table);
    let mut digests: HashMap<String, String> = HashMap::new();
    for unit in store.all_units().await?.into_iter().filter(|unit| unit.stage == table.stage) {
        let outputs = unit.tables.into_iter().filter(|output| output.port == table.port);
        digests.extend(outputs.flat_map(|output| output.files).map(|file| (file.path, file.xxh3)));
    }
    let hint =
        format!("restore it from a copy, or run its stage again with `coa run FILE --select {} --force`", table.stage);
    for (file, size) in live_files(store, table, version).await? {
        let path = Path::from(format!("{folder}/{file}"));
        let (bytes, digest) = match digest_of(store, &path).await {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => {
                let what = format!("`{}` is gone although the table names it", store.uri(&path));
                return Ok(Some(StoreError::new(StoreErrorKind::NotFound, what).hint(hint)));
            }
            Err(error) => return Err(StoreError::object("read", &store.uri(&path), error)),
        };
        if bytes != size || digests.get(&file).is_some_and(|written| *written != digest) {
            let what = format!("`{}` is damaged: its bytes are not those that were written", store.uri(&path));
            return Ok(Some(StoreError::corrupt(what).hint(hint)));
        }
    }
    Ok(None)
}

async fn digest_of(store: &Store, path: &Path) -> Result<(u64, String), object_store::Error> {
    let mut content = store.objects().get(path).await?.into_stream();
    let (mut hash, mut bytes) = (Xxh3::new(), 0);
    while let Some(part) = content.try_next().await? {
        hash.update(&part);
        bytes += part.len() as u64;
    }
    Ok((bytes, format!("{:016x}", hash.digest())))
}

/// The first entry of a table's log that cannot be read, or is missing between others.
pub(crate) async fn damaged_log(store: &Store, table: &StoredTable) -> Result<Option<StoreError>, StoreError> {
    let folder = log_folder(table);
    let hint = format!(
        "restore it from a copy, or delete the folder `{}` and `coa run FILE`: finished units are not done again, the \
         newest state of the table is written anew, older versions of it are lost",
        store.uri(&folder)
    );
    let entries = store.list(&folder).await?;
    let checkpoint = entries.iter().filter_map(|entry| checkpoint_version(&entry.location)).min();
    let mut expected = Some(0);
    for object in entries {
        let Some(version) = commit_version(&object.location) else { continue };
        let uri = store.uri(&object.location);
        // Entries before a checkpoint may be cleared away.
        if expected.is_some_and(|expected| version > expected && checkpoint.is_none_or(|first| version > first + 1)) {
            let what = format!("the entry before `{uri}` is gone from the table's log");
            return Ok(Some(StoreError::corrupt(what).hint(hint)));
        }
        expected = Some(version + 1);
        let bytes = store.get_bytes(&object.location).await?.unwrap_or_default();
        if let Some(line) = first_bad_line(&bytes) {
            let what = format!("`{uri}` is damaged: line {line} is not a JSON object");
            return Ok(Some(StoreError::corrupt(what).hint(hint)));
        }
    }
    Ok(None)
}

/// The first line that is no JSON object, from 1; of no bytes at all, the first.
fn first_bad_line(bytes: &[u8]) -> Option<usize> {
    let lines = bytes.strip_suffix(b"\n").unwrap_or(bytes).split(|byte| *byte == b'\n');
    let is_object = |line: &[u8]| serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(line).is_ok();
    lines.enumerate().find(|(_, line)| !is_object(line)).map(|(number, _)| number + 1)
}

#[cfg(test)]
mod tests {
    use super::first_bad_line;

    #[test]
    fn an_entry_is_json_objects_one_a_line() {
        assert_eq!(first_bad_line(b"{}\n{\"a\": 1}\n"), None);
        assert_eq!(first_bad_line(b"{}"), None);
        assert_eq!(first_bad_line(b""), Some(1));
        assert_eq!(first_bad_line(b"{}\n{\"a\": "), Some(2));
        assert_eq!(first_bad_line(b"{}\n[1]\n{}"), Some(2));
        assert_eq!(first_bad_line(b"{}\n\0\0\0"), Some(2));
    }
}
