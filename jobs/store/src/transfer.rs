//! Files between the local disk and the store.

use std::io::Read;
use std::path::{Path as LocalPath, PathBuf};

use object_store::path::Path;
use object_store::{ObjectStoreExt, WriteMultipart};
use operators::{ErrorKind, OperatorError};
use tokio::runtime::Handle;

use crate::error::StoreError;
use crate::store::Store;

/// Files up to this size are put in one request.
const ONE_PUT: u64 = 16 << 20;

/// Puts a local file into the store and checks that all of it arrived.
pub(crate) fn put_file(
    store: &Store,
    handle: &Handle,
    path: &Path,
    local: &LocalPath,
    bytes: u64,
) -> Result<(), OperatorError> {
    let failed = |error: object_store::Error| StoreError::object("write", &store.uri(path), error);
    if bytes <= ONE_PUT {
        let content = std::fs::read(local)?;
        handle.block_on(store.objects().put(path, content.into())).map_err(failed)?;
    } else {
        let mut file = std::fs::File::open(local)?;
        let upload = handle.block_on(store.objects().put_multipart(path)).map_err(failed)?;
        let mut writer = WriteMultipart::new(upload);
        let mut buffer = vec![0; 1 << 20];
        loop {
            let read = match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) => {
                    let _ = handle.block_on(writer.abort());
                    return Err(error.into());
                }
            };
            handle.block_on(writer.wait_for_capacity(8)).map_err(failed)?;
            let _inside = handle.enter();
            writer.write(&buffer[..read]);
        }
        // On an error `finish` aborts the upload, so no parts are left behind.
        handle.block_on(writer.finish()).map_err(failed)?;
    }
    let stored = handle.block_on(store.objects().head(path)).map_err(failed)?;
    if stored.size != bytes {
        let message = format!("`{}` has {} bytes in the store, {bytes} were written", store.uri(path), stored.size);
        return Err(OperatorError::new(ErrorKind::Storage, message));
    }
    Ok(())
}

/// Brings an object to the local disk: its own place for a local store, a copy in `scratch` otherwise.
pub(crate) fn fetch(
    store: &Store,
    handle: &Handle,
    path: &Path,
    scratch: &LocalPath,
) -> Result<PathBuf, OperatorError> {
    if let Some(root) = store.local() {
        let local = root.join(path.as_ref());
        if !local.is_file() {
            return Err(missing(store, path));
        }
        return Ok(local);
    }
    let local = scratch.join(format!("in-{:016x}", xxhash_rust::xxh3::xxh3_64(path.as_ref().as_bytes())));
    if !local.exists() {
        let bytes = handle.block_on(store.get_bytes(path))?.ok_or_else(|| missing(store, path))?;
        std::fs::write(&local, bytes)?;
    }
    Ok(local)
}

fn missing(store: &Store, path: &Path) -> OperatorError {
    OperatorError::input(format!("`{}` is gone although a finished unit names it", store.uri(path)))
        .hint("restore it from a copy, or run its stage again with `coa run FILE --select STAGE --force`")
}
