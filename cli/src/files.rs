//! Files that `check` or `bench` was asked for.

use std::fs;
use std::path::PathBuf;

use crate::exit::Failure;

/// Says now of the files what would otherwise be said when the work is done.
pub(crate) fn writable(files: [&Option<PathBuf>; 3]) -> Result<(), Failure> {
    // What reads a pipe would take a trial for the end.
    let special = |file: &&PathBuf| file.exists() && !file.is_file() && !file.is_dir();
    for file in files.into_iter().flatten().filter(|file| !special(file)) {
        let new = file.symlink_metadata().is_err();
        let tried = fs::OpenOptions::new().append(true).create(true).open(file);
        // An empty file would look like a result.
        let tried = tried.and_then(|_| if new { fs::remove_file(file) } else { Ok(()) });
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
