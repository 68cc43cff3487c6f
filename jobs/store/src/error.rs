//! Errors of the store: what happened to which object, and what to do.

use operators::{ErrorKind, OperatorError};

use crate::s3::CLOCK_HINT;

/// What kind of error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreErrorKind {
    /// The object does not exist.
    NotFound,
    /// The object exists although it must not.
    AlreadyExists,
    /// The store refuses access.
    Denied,
    /// The store does not answer, or answers with an error that may pass.
    Unreachable,
    /// No space is left.
    Full,
    /// An object of a source is not the one that was listed.
    Changed,
    /// What is stored is not what should be.
    Corrupt,
    /// The address cannot be used.
    Address,
}

/// An error of the store.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct StoreError {
    /// What kind.
    pub kind: StoreErrorKind,
    /// What happened, with the object's address.
    pub what: String,
    /// What to do.
    pub hint: Option<String>,
    /// The cause.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl StoreError {
    pub(crate) fn new(kind: StoreErrorKind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into(), hint: None, source: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::Corrupt, what)
    }

    /// An error of the object store about `uri`.
    pub(crate) fn object(doing: &str, uri: &str, error: object_store::Error) -> Self {
        use object_store::Error as E;
        if says(&error, "NoSuchBucket") {
            return Self::new(StoreErrorKind::NotFound, format!("cannot {doing} `{uri}`: there is no such bucket"))
                .hint("`coa doctor --store s3://BUCKET/PREFIX --mend` creates it");
        }
        let io = io_kind(&error);
        let (kind, hint) = match &error {
            _ if says(&error, "RequestTimeTooSkewed") => (StoreErrorKind::Denied, Some(CLOCK_HINT)),
            E::NotFound { .. } => (StoreErrorKind::NotFound, None),
            E::AlreadyExists { .. } | E::Precondition { .. } => (StoreErrorKind::AlreadyExists, None),
            E::PermissionDenied { .. } | E::Unauthenticated { .. } => {
                (StoreErrorKind::Denied, Some("check the credentials and the rights of this user"))
            }
            _ if io == Some(std::io::ErrorKind::PermissionDenied) => {
                (StoreErrorKind::Denied, Some("check the rights of this user on the folder"))
            }
            _ if io == Some(std::io::ErrorKind::ReadOnlyFilesystem) => (
                StoreErrorKind::Denied,
                Some("the file system is mounted read-only: name a `store` that can be written"),
            ),
            _ if matches!(io, Some(std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)) => {
                (StoreErrorKind::Full, Some("free disk space, then `coa resume`"))
            }
            _ if matches!(io, Some(std::io::ErrorKind::NotADirectory | std::io::ErrorKind::IsADirectory)) => {
                (StoreErrorKind::Address, Some("a file stands where a folder is meant, or the other way round"))
            }
            _ => (StoreErrorKind::Unreachable, Some("check that the store answers at this address")),
        };
        let mut converted = Self::new(kind, format!("cannot {doing} `{uri}`")).because(error);
        converted.hint = hint.map(str::to_owned);
        converted
    }

    /// The message and its causes in one line.
    pub fn chain(&self) -> String {
        let mut text = self.what.clone();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let part = error.to_string();
            if !text.contains(&part) {
                text.push_str(": ");
                text.push_str(&part);
            }
            cause = error.source();
        }
        text
    }
}

/// Whether a server says this in the body of its answer.
pub(crate) fn says(error: &(dyn std::error::Error + 'static), code: &str) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.to_string().contains(code) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The kind of the I/O error behind an error of the object store, if there is one.
fn io_kind(error: &(dyn std::error::Error + 'static)) -> Option<std::io::ErrorKind> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return Some(io.kind());
        }
        cause = error.source();
    }
    None
}

impl From<StoreError> for OperatorError {
    fn from(error: StoreError) -> Self {
        let kind = match error.kind {
            StoreErrorKind::Unreachable => ErrorKind::Storage,
            StoreErrorKind::Denied | StoreErrorKind::Full | StoreErrorKind::Address => ErrorKind::Environment,
            StoreErrorKind::NotFound | StoreErrorKind::Corrupt | StoreErrorKind::Changed => ErrorKind::Input,
            StoreErrorKind::AlreadyExists => ErrorKind::Internal,
        };
        let mut converted = OperatorError::new(kind, error.what.clone());
        converted.hint = error.hint.clone();
        converted.because(error)
    }
}
