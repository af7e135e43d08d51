//! Power cuts: the server loses what was not synced. A small program runs it and keeps aside what was (`power.c`).
//!
//! A server runs so when its folder was prepared before its first start; what its data is at a start counts as synced.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::UNIX_EPOCH;

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use super::process::until;
use super::{Once, compiled, run};
use crate::verdict::{Context as _, Verdict};

const SHADOW: &str = "shadow";
/// From its first start on, the server in `folder` can lose its power.
///
/// # Errors
/// When the folder cannot be written.
pub fn prepare(folder: &Path) -> Verdict {
    Ok(std::fs::create_dir(folder.join(SHADOW))?)
}

/// What to put before the command that starts the server with its data in `folder/data`: nothing if it was not prepared.
///
/// # Errors
/// When the program cannot be built, or the data cannot be copied.
pub fn words(folder: &Path, data: &str) -> Verdict<Vec<OsString>> {
    let (shadow, data) = (folder.join(SHADOW), folder.join(data));
    if !shadow.is_dir() {
        return Ok(Vec::new());
    }
    std::fs::remove_dir_all(&shadow)?;
    std::fs::create_dir_all(&data)?;
    let (tree, objects) = (shadow.join("tree"), shadow.join("objects"));
    std::fs::create_dir_all(&objects)?;
    copy(&data, &tree)?;
    name_objects(&data, &tree, &objects)?;
    // The server may be another user.
    run(Command::new("chown").arg("-R").arg("--reference").args([&data, &shadow]))?;
    let (_, program) = PROGRAM.as_ref().map_err(Clone::clone)?;
    Ok(vec![program.into(), data.into(), shadow.into()])
}

/// Takes from the data in `folder/data` what was not synced. The server has been killed, or is about to end.
///
/// # Errors
/// When it does not end.
pub async fn lose(folder: &Path, data: &str) -> Verdict {
    let (shadow, data) = (folder.join(SHADOW), folder.join(data));
    // Held until the last process of the server has ended.
    let lock = std::fs::File::open(shadow.join("lock")).context("a server that was prepared for this")?;
    let ended = || async { Ok(flock(&lock, FlockOperation::NonBlockingLockExclusive)?) };
    until("the end of a server", ended).await?;
    std::fs::remove_dir_all(&data)?;
    copy(&shadow.join("tree"), &data)
}

fn copy(from: &Path, to: &Path) -> Verdict {
    run(Command::new("cp")
        .args(["-r", "--preserve=mode,ownership,timestamps", "--sparse=always"])
        .args([from, to]))
}

/// Gives the copy of each file the name by which `power.c` knows its object.
fn name_objects(data: &Path, tree: &Path, objects: &Path) -> Verdict {
    for entry in std::fs::read_dir(data)? {
        let entry = entry?;
        let (about, copy) = (entry.metadata()?, tree.join(entry.file_name()));
        if about.is_dir() {
            name_objects(&entry.path(), &copy, objects)?;
        } else if about.is_file() {
            let made = about.created()?.duration_since(UNIX_EPOCH)?;
            let name = format!("{}-{}-{}", about.ino(), made.as_secs(), made.subsec_nanos());
            std::fs::hard_link(copy, objects.join(name))?;
        }
    }
    Ok(())
}

static PROGRAM: Once<(TempDir, PathBuf)> =
    Once::new(|| compiled(include_str!("power.c"), "power", &["-O2", "-Wall", "-Werror"]));
