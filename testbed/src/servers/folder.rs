//! Folders for the servers' data. A folder is in use while its process keeps it locked: a process id would mean nothing to
//! a process in another PID namespace that shares `/dev/shm` or the folder for temporary files.

use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Mutex, Once, PoisonError};

use tempfile::TempDir;

use crate::verdict::{Context as _, Stop, Verdict};

/// Where a server keeps its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// In memory where there is such a file system, and without waiting for a disk where that can be told: a test does not
    /// lose power.
    #[default]
    Memory,
    /// In the folder for temporary files, with the durability that the server has by itself: commits cost what they do.
    Disk,
    /// In memory, and the server has a clock of its own that a test steps.
    Clock,
    /// On disk, and the server can lose its power with what it has not synced.
    Power,
}

const PREFIX: &str = "onelock-server-";

/// The folders of this process, open and locked. The kernel unlocks them when the process ends, however it ends.
static LOCKED: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// A folder for a server's data in memory: see [`Place::Memory`].
///
/// # Errors
/// When no folder can be made.
pub fn data_folder() -> Verdict<TempDir> {
    folder_in(Place::Memory)
}

/// A folder for a server's data.
///
/// # Errors
/// When no folder can be made.
pub fn folder_in(place: Place) -> Verdict<TempDir> {
    let (memory, disk) = (Path::new("/dev/shm"), std::env::temp_dir());
    let parent =
        if matches!(place, Place::Memory | Place::Clock) && memory.is_dir() { memory } else { &disk };
    static SWEPT: Once = Once::new();
    SWEPT.call_once(|| [memory, &disk].into_iter().for_each(sweep));
    // Another process may sweep the folder away before it is locked.
    for _ in 0..100 {
        let made = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent);
        let folder = made.context("a folder for the server's data")?;
        if let Some(lock) = lock(folder.path()) {
            let mut locked = LOCKED.lock().unwrap_or_else(PoisonError::into_inner);
            locked.retain(exists);
            locked.push(lock);
            return Ok(folder);
        }
    }
    Err(Stop::failed(format!("no folder in {} could be locked", parent.display())))
}

/// Locks a folder; `None` when another process has locked or removed it.
fn lock(folder: &Path) -> Option<File> {
    let file = File::open(folder).ok()?;
    match file.try_lock() {
        Ok(()) => exists(&file).then_some(file),
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => None,
    }
}

/// Whether an open folder has not been removed.
fn exists(folder: &File) -> bool {
    folder.metadata().is_ok_and(|about| about.nlink() > 0)
}

/// Removes the folders of processes that were killed and could not do it themselves.
fn sweep(parent: &Path) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        if let Some(_locked) = lock(&entry.path()) {
            // Another user's folder cannot be removed.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
