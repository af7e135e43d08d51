//! The file as the operating system sees it: checked before SQLite touches it, and watched while it is open.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use lock_core::{Error, ErrorKind, Result};
use rustix::fs::Access;

/// Which file a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

/// What is at the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// No file, or an empty one, which SQLite takes for a new database.
    New,
    /// A file with something in it.
    Something,
}

/// Makes the path absolute: the working directory may change while the file is open.
pub(super) fn absolute(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path)
        .map_err(|e| Error::new(ErrorKind::InvalidConfig, format!("{} is no path: {e}", path.display())))?;
    // SQLite takes its file names as UTF-8.
    match path.to_str() {
        Some(text) if !text.contains('\0') => Ok(path),
        _ => Err(Error::new(ErrorKind::InvalidConfig, format!("{} is not UTF-8", path.display()))),
    }
}

/// Says clearly what SQLite would only call "unable to open database file".
pub(super) fn check(path: &Path) -> Result<Found> {
    let folder = path.parent().unwrap_or(path);
    match std::fs::metadata(folder) {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => return Err(unusable(folder, "is not a folder")),
        Err(e) => return Err(io_error(folder, "the folder", &e)),
    }
    check_local(folder)?;
    let found = match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() => return Err(unusable(path, "is a folder, not a file")),
        Ok(meta) if !meta.is_file() => return Err(unusable(path, "is not a regular file")),
        Ok(meta) if meta.len() == 0 => Found::New,
        Ok(_) => Found::Something,
        Err(e) if e.kind() == io::ErrorKind::NotFound => Found::New,
        Err(e) => return Err(io_error(path, "the file", &e)),
    };
    // SQLite puts its -wal and -shm files beside the file, so the folder must be writable too.
    allowed(folder, Access::WRITE_OK | Access::EXEC_OK)?;
    if path.exists() {
        allowed(path, Access::READ_OK | Access::WRITE_OK)?;
    }
    Ok(found)
}

fn allowed(path: &Path, access: Access) -> Result<()> {
    rustix::fs::access(path, access).map_err(|e| {
        let text = format!("{} cannot be written: {}", path.display(), io::Error::from(e));
        Error::new(ErrorKind::Denied, text)
    })
}

/// The file at the path now.
///
/// # Errors
/// [`ErrorKind::Unavailable`] when there is none.
pub(super) fn identify(path: &Path) -> Result<FileId> {
    match std::fs::metadata(path) {
        Ok(meta) => Ok(FileId { device: meta.dev(), inode: meta.ino() }),
        Err(e) => Err(io_error(path, "the file", &e)),
    }
}

/// Fails unless the path still leads to the file that is open.
///
/// # Errors
/// [`ErrorKind::Unavailable`]: locks in a file that others cannot see are worth nothing.
pub(super) fn check_same(path: &Path, opened: FileId) -> Result<()> {
    if std::fs::metadata(path).is_ok_and(|m| FileId { device: m.dev(), inode: m.ino() } == opened) {
        return Ok(());
    }
    let text =
        format!("{} was deleted, moved or replaced while it was open: its locks are gone", path.display());
    Err(Error::new(ErrorKind::Unavailable, text))
}

/// What the operating system says about making a file that SQLite could not make; `None` when it is there or can be
/// made after all.
pub(super) fn why_not_made(path: &Path) -> Option<Error> {
    match std::fs::OpenOptions::new().write(true).create_new(true).open(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Some(io_error(path, "the file", &e)),
        _ => None,
    }
}

/// Several hosts on one file share neither its write-ahead log nor a clock.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn check_local(folder: &Path) -> Result<()> {
    const NETWORK: &[(u64, &str)] = &[
        (0x6969, "NFS"),
        (0x517B, "SMB"),
        (0xFF53_4D42, "CIFS"),
        (0xFE53_4D42, "SMB"),
        (0x00C3_6400, "Ceph"),
        (0x5346_414F, "AFS"),
        (0x7375_7245, "Coda"),
        (0x564C, "NCP"),
        (0x0102_1997, "9P"),
        (0x0BD0_0BD0, "Lustre"),
        (0x4750_4653, "GPFS"),
        (0x7461_636F, "OCFS2"),
        (0x0116_1970, "GFS2"),
    ];
    // Where the kernel does not tell, SQLite decides.
    let Ok(stat) = rustix::fs::statfs(folder) else { return Ok(()) };
    let magic = stat.f_type as u64 & 0xFFFF_FFFF;
    match NETWORK.iter().find(|(m, _)| *m == magic) {
        None => Ok(()),
        Some((_, name)) => {
            let text = format!(
                "{} is on a network file system ({name}); the SQLite store is for the processes of one host",
                folder.display()
            );
            Err(Error::new(ErrorKind::Unsupported, text))
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn check_local(_folder: &Path) -> Result<()> {
    Ok(())
}

fn unusable(path: &Path, text: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, format!("{} {text}", path.display()))
}

fn io_error(path: &Path, what: &str, error: &io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename => {
            ErrorKind::InvalidConfig
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("{what} {}: {error}", path.display()))
}
