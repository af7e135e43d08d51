//! The file as the operating system sees it: checked before SQLite touches it, and watched while it is open.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use onelock_core::{Error, ErrorKind, Result};
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
    let found = match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() => return Err(unusable(path, "is a folder, not a file")),
        Ok(meta) if !meta.is_file() => return Err(unusable(path, "is not a regular file")),
        Ok(meta) => {
            check_one_name(path, meta.nlink())?;
            if meta.len() == 0 { Found::New } else { Found::Something }
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Found::New,
        Err(e) => return Err(io_error(path, "the file", &e)),
    };
    // A link to the file leads SQLite to the folder of the file itself.
    let real = std::fs::canonicalize(path);
    let folder = real.as_deref().ok().and_then(Path::parent).unwrap_or(folder);
    check_local(folder)?;
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

/// Makes the file with the permissions that the umask leaves: one that SQLite makes only its user can write. What goes
/// wrong SQLite meets as well.
///
/// It is not opened: closing a file drops all locks that this process has on it.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn make(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode};
    let _ = rustix::fs::mknodat(CWD, path, FileType::RegularFile, Mode::from_raw_mode(0o666), 0);
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn make(_path: &Path) {}

/// What the operating system says about making a file that SQLite could not make; `None` when it is there or can be
/// made after all.
pub(super) fn why_not_made(path: &Path) -> Option<Error> {
    match std::fs::OpenOptions::new().write(true).create_new(true).open(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Some(io_error(path, "the file", &e)),
        _ => None,
    }
}

/// Refuses a file that others may reach by another name: its log is kept beside the name, so each name has its own.
fn check_one_name(path: &Path, links: u64) -> Result<()> {
    let why = if is_mounted_alone(path) {
        "is mounted by itself; mount its folder instead"
    } else if links > 1 {
        "has several names (hard links); keep one of them"
    } else {
        return Ok(());
    };
    let text =
        format!("{} {why}: users of each name would have a write-ahead log of their own", path.display());
    Err(Error::new(ErrorKind::Unsupported, text))
}

/// Whether the file is the root of a mount, as in a container that is given the file and not its folder.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_mounted_alone(path: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
    // Kernels before 5.8 do not say it.
    statx(CWD, path, AtFlags::empty(), StatxFlags::empty())
        .is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn is_mounted_alone(_path: &Path) -> bool {
    false
}

/// Several kernels on one file share neither its write-ahead log nor a clock.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn check_local(folder: &Path) -> Result<()> {
    // Where the kernel does not tell, SQLite decides.
    let Ok(stat) = rustix::fs::statfs(folder) else { return Ok(()) };
    match shared_with_other_kernels(stat.f_type as u64 & 0xFFFF_FFFF) {
        None => Ok(()),
        Some(name) => {
            let text = format!(
                "{} is on a file system that other hosts or virtual machines may share ({name}); the SQLite store is \
                 for the processes of one kernel",
                folder.display()
            );
            Err(Error::new(ErrorKind::Unsupported, text))
        }
    }
}

/// The file system of this `f_type`, where more than one kernel may have it mounted.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn shared_with_other_kernels(magic: u64) -> Option<&'static str> {
    const SHARED: &[(u64, &str)] = &[
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
        // FUSE is also what virtiofs, GlusterFS, SSHFS and the drivers of most hypervisors show; which one is not told.
        (0x6573_5546, "FUSE"),
        (0x786F_4256, "VirtualBox"),
        (0xBACB_ACBC, "VMware"),
        (0x6B41_4653, "AFS"),
        (0x2003_0528, "OrangeFS"),
        (0x1983_0326, "BeeGFS"),
        (0xAAD7_AAEA, "PanFS"),
    ];
    SHARED.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
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

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_several_kernels_are_known() {
        // As linux/magic.h and the drivers have them: FUSE, vboxsf, vmhgfs, NFS, CIFS, 9P.
        for magic in [0x6573_5546, 0x786F_4256, 0xBACB_ACBC, 0x6969, 0xFF53_4D42, 0x0102_1997] {
            assert!(shared_with_other_kernels(magic).is_some(), "{magic:#x}");
        }
        // ext4, XFS, btrfs, tmpfs, overlayfs.
        for magic in [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x794C_7630] {
            assert!(shared_with_other_kernels(magic).is_none(), "{magic:#x}");
        }
    }
}
