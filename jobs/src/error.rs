//! Errors of commands: what a person reads at the end of one, and the exit code.

use pipelines::{Diagnostics, SelectionError};
use store::StoreError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The pipeline file has mistakes.
    #[error("{0}")]
    Pipeline(#[from] Diagnostics),
    /// The command line does not fit.
    #[error("{message}")]
    Usage {
        /// What.
        message: String,
        /// What to do.
        hint: Option<String>,
    },
    /// The store.
    #[error("{}", .0.chain())]
    Store(#[from] StoreError),
    /// Units failed; what and why was told already.
    #[error("{0}")]
    Failed(String),
    /// The command was interrupted.
    #[error("{0}")]
    Interrupted(String),
    /// The job queue.
    #[error("the job queue does not work: {0}")]
    Queue(String),
    /// A query.
    #[error("{0}")]
    Query(String),
    /// Local files.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

impl CommandError {
    /// A command line that does not fit.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), hint: None }
    }

    /// Exit code: 1 something failed, 2 a mistake in a pipeline file or on the command line, 130 interrupted.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Pipeline(_) | Self::Usage { .. } => 2,
            Self::Interrupted(_) => 130,
            _ => 1,
        }
    }

    /// Whether it is a disk without space left.
    pub(crate) fn is_disk_full(&self) -> bool {
        // What SQLite says; the database's crate passes it on as text.
        matches!(self, Self::Queue(error) if error.contains("disk is full"))
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Usage { hint, .. } => hint.clone(),
            Self::Store(error) => error.hint.clone(),
            Self::Queue(error) if error.starts_with("`postgres") => {
                Some("check that the server runs and takes this user; nothing is lost with a queue".to_owned())
            }
            Self::Queue(error) if error.contains("disk is full") => {
                Some("free disk space, then `coa resume`; nothing is lost with a queue".to_owned())
            }
            Self::Queue(_) => Some(
                "check that this user may write there, or name another with --queue; nothing is lost with a queue"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

impl From<SelectionError> for CommandError {
    fn from(error: SelectionError) -> Self {
        Self::usage(error.to_string())
    }
}
