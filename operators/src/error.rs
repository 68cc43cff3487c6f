//! Errors of operators: whose fault, whether to try again, what happened, how to mend it.

use std::error::Error;

use schemas::RowError;
use serde::{Deserialize, Serialize};
use tools::ToolError;

/// Whose fault an error is; the job system decides by it whether to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The input data or the parameters: trying again gives the same.
    Input,
    /// The machine lacks something: a sandbox, a library, disk space, a permission.
    Environment,
    /// Storage answered with an error that may pass.
    Storage,
    /// The unit was asked to stop; what it had saved counts.
    Interrupted,
    /// A bug of ours.
    Internal,
}

impl ErrorKind {
    /// Whether another attempt may succeed.
    pub fn is_transient(self) -> bool {
        self == Self::Storage
    }

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Environment => "environment",
            Self::Storage => "storage",
            Self::Interrupted => "interrupted",
            Self::Internal => "internal",
        }
    }
}

/// An error of a unit.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct OperatorError {
    /// Whose fault.
    pub kind: ErrorKind,
    /// What happened, lower case, without final dot.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// The cause.
    #[source]
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl OperatorError {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, source: None }
    }
    /// The input data or the parameters are at fault.
    pub fn input(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Input, message)
    }
    /// The machine lacks something.
    pub fn environment(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Environment, message)
    }
    /// A bug of ours.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }
    /// The unit was asked to stop.
    pub fn interrupted() -> Self {
        Self::new(ErrorKind::Interrupted, "stopped on request")
    }
    /// Adds what to do about it.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
    /// Adds the cause.
    pub fn because(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The message and its causes in one line.
    pub fn chain(&self) -> String {
        let mut text = self.message.clone();
        let mut cause = self.source();
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

impl From<RowError> for OperatorError {
    fn from(error: RowError) -> Self {
        Self::internal(error.to_string()).because(error)
    }
}

impl From<ToolError> for OperatorError {
    fn from(error: ToolError) -> Self {
        match error {
            ToolError::Sandbox(error) => Self::environment(error.to_string()).hint(error.hint.clone()).because(error),
            ToolError::Search(error) => Self::internal("the search failed").because(error),
        }
    }
}

/// Local files: the scratch folder and what is read from it.
impl From<std::io::Error> for OperatorError {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let (kind, hint) = match error.kind() {
            Io::StorageFull | Io::QuotaExceeded => (ErrorKind::Environment, Some("free disk space, then `coa resume`")),
            Io::PermissionDenied => (ErrorKind::Environment, Some("give this user access, then `coa resume`")),
            Io::ReadOnlyFilesystem => (ErrorKind::Environment, Some("the file system is mounted read-only")),
            _ => (ErrorKind::Environment, None),
        };
        let mut converted = Self::new(kind, error.to_string()).because(error);
        converted.hint = hint.map(str::to_owned);
        converted
    }
}
