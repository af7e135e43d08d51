//! A clock that a test steps, for one program: a small library that is preloaded into it.
//!
//! It reaches what asks the C library for the time, as the servers do, and not the clients here, which ask the kernel.

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{Once, compiled};
use crate::verdict::{Context as _, Verdict};

const NAME: &str = "clock";

/// The clock of the server whose data is in a folder.
#[derive(Debug)]
pub struct SteppedClock {
    file: File,
}

impl SteppedClock {
    /// Gives the server in `folder` a clock of its own, which is right at first. Before it is started, with [`words`].
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn new(folder: &Path) -> Verdict<Self> {
        let file = File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(folder.join(NAME))
            .context("the file of a clock")?;
        // The server may be another user.
        file.set_permissions(Permissions::from_mode(0o644))?;
        file.write_all_at(&[0; 16], 0)?;
        Ok(Self { file })
    }

    /// From now on the wall clock is this many milliseconds ahead of the right time, or behind it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set_wall(&self, ahead: i64) -> Verdict {
        Ok(self.file.write_all_at(&(ahead * 1_000_000).to_ne_bytes(), 0)?)
    }
}

/// What to put before the command that starts the server in `folder`: nothing if it has no clock of its own.
///
/// # Errors
/// When the library cannot be built.
pub fn words(folder: &Path) -> Verdict<Vec<OsString>> {
    let clock = folder.join(NAME);
    if !clock.is_file() {
        return Ok(Vec::new());
    }
    let (_, library) = LIBRARY.as_ref().map_err(Clone::clone)?;
    let preload = format!("LD_PRELOAD={}", library.display());
    Ok(vec!["env".into(), preload.into(), format!("ONELOCK_CLOCK={}", clock.display()).into()])
}

static LIBRARY: Once<(TempDir, PathBuf)> = Once::new(|| {
    let options = ["-O2", "-Wall", "-Werror", "-shared", "-fPIC"];
    compiled(include_str!("clock_shim.c"), "shim.so", &options)
});
