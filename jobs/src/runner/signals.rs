//! The signals that ask a process to leave.

use crate::error::CommandError;

/// SIGINT and SIGTERM.
pub(crate) struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    pub(crate) fn new() -> Result<Self, CommandError> {
        use tokio::signal::unix::{SignalKind, signal};
        let failed = |source| CommandError::Io { what: "cannot listen for signals".to_owned(), source };
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
        })
    }

    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
