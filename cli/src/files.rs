//! Files that `check` or `bench` was asked for.

use std::fs;
use std::path::PathBuf;

use crate::exit::Failure;

/// Says now of the files what would otherwise be said when the work is done.
pub(crate) fn writable(files: [&Option<PathBuf>; 3]) -> Result<(), Failure> {
    // What reads a pipe would take a trial for the end.
    for file in files.into_iter().flatten().filter(|file| file.is_file() || !file.exists()) {
        let new = file.symlink_metadata().is_err();
        let mut tried = fs::OpenOptions::new().append(true).create(true).open(file).map(drop);
        if new && tried.is_ok() {
            // An empty file would look like a result.
            tried = fs::remove_file(file);
        }
        tried.map_err(|error| Failure::Usage(format!("cannot write {}: {error}", file.display())))?;
    }
    Ok(())
}

/// Writes one of them, if it was asked for, where it is: a link, a device or a mount stays what it is.
pub(crate) fn write<F>(file: Option<&PathBuf>, text: F) -> Result<(), Failure>
where
    F: FnOnce() -> Result<String, Failure>,
{
    let Some(file) = file else { return Ok(()) };
    fs::write(file, text()?).map_err(Failure::system(format!("cannot write {}", file.display())))
}
