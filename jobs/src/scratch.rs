//! Where attempts keep temporary files.
//!
//! A process has one folder below the machine's folder for temporary files (`TMPDIR`), held by a lock on a file in it.
//! A process that was killed leaves its folder; the lock is gone with the process, so the next one clears it away.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use operators::{ErrorKind, OperatorError};
use tempfile::TempDir;

/// What the names of folders begin with.
const PREFIX: &str = "coa-scratch-";
/// The file that is locked.
const LOCK: &str = ".lock";

/// The folder of this process.
pub(crate) struct Scratch {
    folder: TempDir,
    _lock: File,
}

impl Scratch {
    /// Makes the folder, and clears away those of dead processes.
    pub(crate) fn open() -> io::Result<Self> {
        Self::open_in(&std::env::temp_dir())
    }

    fn open_in(parent: &Path) -> io::Result<Self> {
        for folder in abandoned(parent) {
            // Somebody else's, or being cleared away by another process: not ours to worry about.
            let _ = std::fs::remove_dir_all(folder);
        }
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        // Under its name only when it is locked: without it the folder is left alone.
        let unnamed = folder.path().join(".new");
        let lock = File::create(&unnamed)?;
        lock.lock()?;
        std::fs::rename(unnamed, folder.path().join(LOCK))?;
        Ok(Self { folder, _lock: lock })
    }

    /// Folders that dead processes have left; making one's own clears them away.
    pub(crate) fn abandoned() -> Vec<PathBuf> {
        abandoned(&std::env::temp_dir())
    }

    /// A folder for one attempt.
    pub(crate) fn attempt(&self) -> io::Result<TempDir> {
        tempfile::tempdir_in(self.folder.path())
    }

    /// Where temporary files go.
    pub(crate) fn place(&self) -> &Path {
        self.folder.path().parent().unwrap_or_else(|| self.folder.path())
    }
}

/// Folders whose process is dead: the lock is there and free. One without a lock is being made at this moment.
fn abandoned(parent: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    let free = |folder: &PathBuf| match File::open(folder.join(LOCK)) {
        Ok(lock) => !matches!(lock.try_lock(), Err(TryLockError::WouldBlock | TryLockError::Error(_))),
        Err(_) => false,
    };
    named.map(|entry| entry.path()).filter(free).collect()
}

/// Says where temporary files go, if their place being full is what is wrong.
pub(crate) fn explain(error: OperatorError, place: &Path) -> OperatorError {
    let io = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<io::Error>());
    let full = io.is_some_and(|io| matches!(io.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded));
    if error.kind == ErrorKind::Environment && full {
        let place = place.display();
        return error.hint(format!("free space in `{place}`, or let TMPDIR name another place; then `coa resume`"));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_the_dead_are_cleared_away_and_those_of_the_living_stay() {
        let parent = tempfile::tempdir().unwrap();
        let alive = Scratch::open_in(parent.path()).unwrap();
        let dead = parent.path().join("coa-scratch-dead");
        std::fs::create_dir(&dead).unwrap();
        std::fs::write(dead.join(LOCK), "").unwrap();
        std::fs::write(dead.join("rest"), "bytes").unwrap();
        let foreign = parent.path().join("somebody-else");
        std::fs::create_dir(&foreign).unwrap();
        let second = Scratch::open_in(parent.path()).unwrap();
        assert!(!dead.exists());
        assert!(foreign.exists() && alive.folder.path().exists() && second.folder.path().exists());
        assert_eq!(second.place(), parent.path());
    }
}
