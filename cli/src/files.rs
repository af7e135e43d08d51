//! Files that `check` or `bench` was asked for: each as a whole or not at all.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::exit::Failure;

/// Says now of the files what would otherwise be said when the work is done.
pub(crate) fn writable(files: [&Option<PathBuf>; 3]) -> Result<(), Failure> {
    for file in files.into_iter().flatten() {
        let tried = match beside(file) {
            Some(new) => fs::File::create(&new).and_then(|_| fs::remove_file(new)),
            None if file.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            // What reads a pipe would take a trial for the end.
            None => Ok(()),
        };
        tried.map_err(|error| Failure::Usage(format!("cannot write {}: {error}", file.display())))?;
    }
    Ok(())
}

/// Writes one of them, if it was asked for.
pub(crate) fn write<F>(file: Option<&PathBuf>, text: F) -> Result<(), Failure>
where
    F: FnOnce() -> Result<String, Failure>,
{
    let Some(file) = file else { return Ok(()) };
    let text = text()?;
    let written = match beside(file) {
        Some(new) => fs::write(&new, text).and_then(|()| fs::rename(new, file)),
        None => fs::write(file, text),
    };
    written.map_err(Failure::system(format!("cannot write {}", file.display())))
}

/// Where a file is written before it takes its place; none for a device, a pipe or a link, which stays what it is.
fn beside(file: &Path) -> Option<PathBuf> {
    let stays = file.symlink_metadata().is_ok_and(|there| !there.is_file());
    (!stays).then(|| file.with_added_extension("new"))
}
