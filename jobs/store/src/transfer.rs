//! Files between the local disk and the store.

use std::io::{Read, Write};
use std::path::{Path as LocalPath, PathBuf};

use futures::stream::FuturesUnordered;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStoreExt};
use operators::{ErrorKind, OperatorError};
use sha2::{Digest as _, Sha256};
use tokio::runtime::Handle;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::error::StoreError;
use crate::store::Store;

/// Files up to this size are put in one request.
const ONE_PUT: u64 = 16 << 20;
/// Larger ones are put in parts of this size; S3 takes 10,000 of them.
const PART: usize = 8 << 20;
/// Parts on their way at the same time.
const AT_ONCE: usize = 8;

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
        let file = std::fs::File::open(local)?;
        let mut upload = handle.block_on(store.objects().put_multipart(path)).map_err(failed)?;
        if let Err(error) = handle.block_on(put_parts(upload.as_mut(), file)) {
            // Its parts would be stored, and paid for, without being seen.
            if let Err(left) = handle.block_on(upload.abort()) {
                tracing::warn!(error = %left, uri = store.uri(path), "an upload is left unfinished");
            }
            return Err(match error {
                PartsError::Local(error) => error.into(),
                PartsError::Store(error) => failed(error).into(),
            });
        }
    }
    let stored = handle.block_on(store.objects().head(path)).map_err(failed)?;
    if stored.size != bytes {
        let message = format!("`{}` has {} bytes in the store, {bytes} were written", store.uri(path), stored.size);
        return Err(OperatorError::new(ErrorKind::Storage, message));
    }
    Ok(())
}

/// Why a file could not be put in parts.
enum PartsError {
    Local(std::io::Error),
    Store(object_store::Error),
}

/// Puts a file in parts, some at the same time, and completes the upload. The first part that fails ends it.
async fn put_parts(upload: &mut dyn MultipartUpload, mut file: std::fs::File) -> Result<(), PartsError> {
    let mut parts = FuturesUnordered::new();
    loop {
        let mut part = Vec::with_capacity(PART);
        let read = (&mut file).take(PART as u64).read_to_end(&mut part).map_err(PartsError::Local)?;
        if read == 0 {
            break;
        }
        parts.push(upload.put_part(part.into()));
        while parts.len() >= AT_ONCE {
            parts.try_next().await.map_err(PartsError::Store)?;
        }
    }
    while parts.try_next().await.map_err(PartsError::Store)?.is_some() {}
    drop(parts);
    upload.complete().await.map_err(PartsError::Store)?;
    Ok(())
}

/// A file of the store, as the record that names it knows it.
pub(crate) struct Stored {
    pub(crate) path: Path,
    pub(crate) bytes: u64,
    pub(crate) digest: Checksum,
}

/// What a file's bytes come to, in hexadecimal.
pub(crate) enum Checksum {
    Xxh3(String),
    Sha256(String),
}

/// A digest on its way.
enum Hash {
    Xxh3(Box<Xxh3>),
    Sha256(Box<Sha256>),
}

impl Checksum {
    fn hash(&self) -> Hash {
        match self {
            Self::Xxh3(_) => Hash::Xxh3(Box::new(Xxh3::new())),
            Self::Sha256(_) => Hash::Sha256(Box::new(Sha256::new())),
        }
    }

    fn is(&self, hash: Hash) -> bool {
        match (self, hash) {
            (Self::Xxh3(digest), Hash::Xxh3(hash)) => *digest == format!("{:016x}", hash.digest()),
            (Self::Sha256(digest), Hash::Sha256(hash)) => *digest == hexadecimal(&hash.finalize()),
            _ => false,
        }
    }
}

impl Hash {
    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Xxh3(hash) => hash.update(bytes),
            Self::Sha256(hash) => hash.update(bytes),
        }
    }
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Brings a file to the local disk: its own place for a local store, a copy in `scratch` otherwise. Its bytes are those
/// that were written, or it is an error.
pub(crate) fn fetch(
    store: &Store,
    handle: &Handle,
    file: &Stored,
    scratch: &LocalPath,
) -> Result<PathBuf, OperatorError> {
    let path = &file.path;
    let (mut hash, mut bytes) = (file.digest.hash(), 0);
    let local = match store.local() {
        Some(root) => {
            let local = root.join(path.as_ref());
            let mut content = match std::fs::File::open(&local) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(missing(store, path)),
                opened => opened?,
            };
            let mut buffer = vec![0; 256 << 10];
            loop {
                let read = content.read(&mut buffer)?;
                if read == 0 {
                    break;
                }
                hash.update(&buffer[..read]);
                bytes += read as u64;
            }
            local
        }
        None => {
            let local = scratch.join(format!("in-{:016x}", xxh3_64(path.as_ref().as_bytes())));
            if local.exists() {
                return Ok(local);
            }
            let partial = local.with_extension("partial");
            let mut copy = std::fs::File::create(&partial)?;
            let failed = |error: object_store::Error| match error {
                object_store::Error::NotFound { .. } => missing(store, path),
                error => StoreError::object("read", &store.uri(path), error).into(),
            };
            let mut content = handle.block_on(store.objects().get(path)).map_err(failed)?.into_stream();
            while let Some(part) = handle.block_on(content.next()) {
                let part = part.map_err(failed)?;
                hash.update(&part);
                bytes += part.len() as u64;
                copy.write_all(&part)?;
            }
            std::fs::rename(&partial, &local)?;
            local
        }
    };
    if bytes == file.bytes && file.digest.is(hash) {
        return Ok(local);
    }
    if store.local().is_none() {
        std::fs::remove_file(&local)?;
    }
    Err(OperatorError::input(format!("`{}` is damaged: its bytes are not those that were written", store.uri(path)))
        .hint("restore it from a copy, or run its stage again with `coa run FILE --select STAGE --force`"))
}

fn missing(store: &Store, path: &Path) -> OperatorError {
    OperatorError::input(format!("`{}` is gone although a finished unit names it", store.uri(path)))
        .hint("restore it from a copy, or run its stage again with `coa run FILE --select STAGE --force`")
}
