//! Addresses: a path, `file://…` or `s3://bucket/prefix`, to an object store and a prefix in it.

use std::path::{Component, Path as LocalPath, PathBuf};
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use operators::address::{Address, AddressError};
use url::Url;

use crate::error::{StoreError, StoreErrorKind};
use crate::s3::S3;

/// An address that was understood; nothing was looked at yet.
#[derive(Clone, Debug)]
pub(crate) enum Location {
    /// A local folder or file, absolute.
    Local(PathBuf),
    /// A bucket and a prefix in it.
    S3 {
        /// The bucket.
        bucket: String,
        /// The key, or the beginning of keys, as it is.
        prefix: String,
    },
}

impl Location {
    /// Understands an address; a relative path starts at the current directory.
    pub(crate) fn parse(address: &str) -> Result<Self, StoreError> {
        Self::parse_at(address, LocalPath::new(""))
    }

    /// Understands an address; a relative path starts at `folder`.
    pub(crate) fn parse_at(address: &str, folder: &LocalPath) -> Result<Self, StoreError> {
        let error = |what: String| StoreError::new(StoreErrorKind::Address, what).hint(AddressError::HINT);
        let bad = |why: &str| error(format!("`{address}` is no usable address: {why}"));
        let local = |path: &LocalPath| -> Result<Self, StoreError> {
            let absolute = resolved(path).map_err(|error| bad("the path cannot be made absolute").because(error))?;
            Ok(Self::Local(absolute))
        };
        match Address::parse(address).map_err(|bad| error(bad.to_string()))? {
            Address::Path(path) => local(&folder.join(path)),
            Address::FileUrl(url) => {
                let url = Url::parse(url).map_err(|error| bad("it is not a URL").because(error))?;
                let path = url.to_file_path().map_err(|()| bad("a file URL has no host and an absolute path"))?;
                local(&path)
            }
            Address::S3 { bucket, prefix } => Ok(Self::S3 { bucket: bucket.to_owned(), prefix: prefix.to_owned() }),
        }
    }

    /// The address as a URL without slash at its end.
    pub(crate) fn url(&self) -> Url {
        match self {
            Self::Local(path) => Url::from_file_path(path).expect("the path is absolute"),
            Self::S3 { bucket, prefix } => {
                let mut url = Url::parse(&format!("s3://{bucket}")).expect("a bucket makes a URL");
                url.set_path(prefix.trim_matches('/'));
                url
            }
        }
    }

    /// The object store that the address's URL is relative to (the file system, or a bucket), and the prefix of this
    /// location in it. With `create` a local folder is made where it is missing.
    pub(crate) async fn open(&self, create: bool) -> Result<(Arc<dyn ObjectStore>, Path), StoreError> {
        match self {
            Self::Local(path) => {
                let shown = path.display().to_string();
                if create {
                    std::fs::create_dir_all(path).map_err(|error| {
                        let kind = match error.kind() {
                            std::io::ErrorKind::AlreadyExists | std::io::ErrorKind::NotADirectory => {
                                StoreErrorKind::Address
                            }
                            std::io::ErrorKind::StorageFull => StoreErrorKind::Full,
                            _ => StoreErrorKind::Denied,
                        };
                        StoreError::new(kind, format!("cannot create the folder `{shown}`"))
                            .hint("choose a `store` this user may write to")
                            .because(error)
                    })?;
                }
                if !path.exists() {
                    return Err(StoreError::new(StoreErrorKind::NotFound, format!("there is no store at `{shown}`"))
                        .hint("`coa run FILE` makes it; `--store` names another"));
                }
                if !path.is_dir() {
                    return Err(StoreError::new(StoreErrorKind::Address, format!("`{shown}` is not a folder"))
                        .hint("a store is a folder"));
                }
                let prefix = Path::from_absolute_path(path).map_err(|error| {
                    StoreError::new(StoreErrorKind::Address, format!("`{shown}` is no usable path")).because(error)
                })?;
                Ok((Arc::new(LocalFileSystem::new()), prefix))
            }
            Self::S3 { bucket, prefix } => {
                let url = self.url();
                let store = S3::connect().await?.bucket(bucket);
                let store = store.map_err(|error| StoreError::object("open", url.as_str(), error))?;
                let prefix = Path::parse(prefix.trim_matches('/')).map_err(|error| {
                    StoreError::new(StoreErrorKind::Address, format!("`{url}` is no usable prefix")).because(error)
                })?;
                Ok((Arc::new(store), prefix))
            }
        }
    }
}

/// The path without `.`, `..` and links, as far as it exists: keys of an object store know none of these.
fn resolved(path: &LocalPath) -> std::io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    let mut missing: Vec<Component<'_>> = Vec::new();
    let mut existing = absolute.as_path();
    loop {
        match existing.canonicalize() {
            Ok(mut found) => {
                for part in missing.into_iter().rev() {
                    match part {
                        Component::ParentDir => {
                            found.pop();
                        }
                        part => found.push(part),
                    }
                }
                return Ok(found);
            }
            Err(error) => {
                let (Some(parent), Some(last)) = (existing.parent(), existing.components().next_back()) else {
                    return Err(error);
                };
                missing.push(last);
                existing = parent;
            }
        }
    }
}

/// Whether an address can be used as a store; nothing is written or changed.
pub fn parse_store(address: &str) -> Result<(), StoreError> {
    Location::parse(address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let url = |address: &str| Location::parse(address).map(|location| location.url().to_string());
        assert_eq!(url("s3://bucket/a/b/").unwrap(), "s3://bucket/a/b");
        assert_eq!(url("file:///data/x").unwrap(), "file:///data/x");
        assert!(url("data/x").unwrap().ends_with("/data/x"));
        assert!(url("./data/../other/x").unwrap().ends_with("/other/x"));
        for bad in ["", "s3://", "gopher://x", "file://host/x"] {
            assert_eq!(url(bad).unwrap_err().kind, StoreErrorKind::Address, "{bad}");
        }
    }
}
