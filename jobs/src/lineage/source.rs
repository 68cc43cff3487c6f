//! Objects of sources: what they were when they were read, and whether they still are.

use futures::StreamExt;
use serde::Serialize;
use store::{ObjectRead, look_at};

/// An object that was read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Object {
    /// Its address.
    pub(super) uri: String,
    /// Its size when it was read.
    pub(super) bytes: u64,
    /// What changes with its content, when it was read.
    pub(super) version: String,
    /// Records read from it; none where its unit read others too and counted them together.
    pub(super) records: Option<u64>,
    /// How it is now.
    pub(super) now: Now,
}

/// How an object is now.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(super) enum Now {
    /// As it was.
    Unchanged,
    /// Another one.
    Changed {
        /// Its size.
        bytes: u64,
        /// What changes with its content.
        version: String,
    },
    /// There is none at this address.
    Gone,
    /// It could not be looked at.
    Unknown {
        /// Why.
        why: String,
    },
}

/// Objects looked at the same time.
const LOOKS: usize = 16;

/// Looks how objects are now. That one cannot be looked at is told and no error.
pub(super) async fn look(objects: Vec<(ObjectRead, Option<u64>)>) -> Vec<Object> {
    let looks = objects.into_iter().map(|(object, records)| async move {
        let now = match look_at(&object.uri).await {
            Ok(Some((_, version))) if version == object.version => Now::Unchanged,
            Ok(Some((bytes, version))) => Now::Changed { bytes, version },
            Ok(None) => Now::Gone,
            Err(error) => Now::Unknown { why: error.chain() },
        };
        Object { uri: object.uri, bytes: object.bytes, version: object.version, records, now }
    });
    futures::stream::iter(looks).buffered(LOOKS).collect().await
}

impl Object {
    /// In one line.
    pub(super) fn told(&self) -> String {
        let records =
            self.records.map(|records| format!(", {}", super::counted(records, "record"))).unwrap_or_default();
        format!("{}: {} bytes, version {}{records}; {}", self.uri, self.bytes, self.version, self.now.told())
    }
}

impl Now {
    /// In a few words.
    pub(super) fn told(&self) -> String {
        match self {
            Self::Unchanged => "unchanged since".to_owned(),
            Self::Changed { bytes, version } => format!("changed since: now {bytes} bytes, version {version}"),
            Self::Gone => "gone since: moved or deleted".to_owned(),
            Self::Unknown { why } => format!("whether it has changed since is not known: {why}"),
        }
    }
}
