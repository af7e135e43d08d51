//! The files as the operating system sees them: checked before SQLite touches them, and watched while they are open.
//!
//! An open store consists of three: the database, its write-ahead log and the index to that log. A process sees what others
//! write only while all three names lead to the same files. When the log or its index is deleted, the next process to open the
//! database makes new ones, and each side then has a line of its own.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onelock_core::toolkit::{Mutex, checks::wrong_if};
use onelock_core::{Error, ErrorKind, Result};
use rustix::fs::{Access, access};

/// Makes the path absolute: the working directory may change while the file is open.
pub(super) fn absolute(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path).map_err(|e| io_error(path, &e))?;
    // SQLite takes its file names as UTF-8.
    let named = path.to_str().is_some_and(|text| !text.contains('\0'));
    wrong_if(!named, &format!("{} is not UTF-8", path.display()))?;
    Ok(path)
}

/// The longest path: those of the companions are longer by up to eight bytes.
const LONGEST: usize = 512 - 8;

/// Says clearly what SQLite would only call "unable to open database file"; whether there is something in the file.
pub(super) fn check(path: &Path) -> Result<bool> {
    // A link to the file leads SQLite to the folder of the file itself.
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let long = format!("{} has more than the {LONGEST} bytes that SQLite takes", real.display());
    wrong_if(real.as_os_str().len() > LONGEST, &long)?;
    let folder = real.parent().unwrap_or(&real);
    let may = |path: &Path, what| access(path, what).map_err(|e| io_error(path, &e.into()));
    // SQLite puts its -wal and -shm files beside the file, so the folder must be writable too.
    may(folder, Access::WRITE_OK | Access::EXEC_OK)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    prepare(path, folder, &real)?;
    let meta = match std::fs::metadata(path) {
        // SQLite makes it.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        meta => meta.map_err(|e| io_error(path, &e))?,
    };
    wrong_if(!meta.is_file(), &format!("{} is not a regular file", path.display()))?;
    if meta.nlink() > 1 {
        return Err(shared(path, "has several names (hard links); keep one of them"));
    }
    may(path, Access::READ_OK | Access::WRITE_OK)?;
    Ok(meta.len() > 0)
}

/// Refuses a file that others may use by another log or another clock.
fn shared(path: &Path, why: &str) -> Error {
    const USERS: &str =
        "all its users must be processes of one kernel and share the log, which is kept beside its name";
    Error::new(ErrorKind::Unsupported, format!("{} {why}: {USERS}", path.display()))
}

/// Makes the file, where there is none, with the permissions that the umask leaves: one that SQLite makes only its user can write.
///
/// Refuses a file system that more than one kernel may use, and a file that is the root of a mount, as in a container that is given
/// the file and not its folder. Where the kernel does not tell, SQLite decides; before 5.8 it tells of no such mount.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn prepare(path: &Path, folder: &Path, real: &Path) -> Result<()> {
    use rustix::fs::{AtFlags, CWD, FileType, Mode, StatxAttributes, StatxFlags, mknodat, statfs, statx};
    if statfs(folder).is_ok_and(|stat| SHARED.contains(&(stat.f_type as u64 & 0xFFFF_FFFF))) {
        let why = "is on a file system that other hosts or virtual machines may share (NFS, SMB, 9P, FUSE and their like)";
        return Err(shared(folder, why));
    }
    // It is not opened: closing a file drops all locks that this process has on it.
    let made = mknodat(CWD, real, FileType::RegularFile, Mode::from_raw_mode(0o666), 0);
    if let (Err(error), Err(_)) = (made, std::fs::symlink_metadata(real)) {
        return Err(io_error(path, &error.into()));
    }
    let root = |stat: rustix::fs::Statx| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    if path.is_file() && statx(CWD, path, AtFlags::empty(), StatxFlags::empty()).is_ok_and(root) {
        return Err(shared(path, "is mounted by itself; mount its folder instead"));
    }
    Ok(())
}

/// The `f_type` of file systems that more than one kernel may have mounted, as linux/magic.h and the drivers have them: NFS, SMB,
/// CIFS, SMB2; Ceph, AFS, Coda, NCP; 9P, Lustre, GPFS, OCFS2; GFS2, AFS (kernel), OrangeFS, BeeGFS; PanFS. Then FUSE, which is also
/// what virtiofs, GlusterFS, SSHFS and the drivers of most hypervisors show; VirtualBox, VMware.
#[cfg(any(target_os = "linux", target_os = "android"))]
const SHARED: [u64; 20] = [
    0x6969, 0x517B, 0xFF534D42, 0xFE534D42, 0x00C36400, 0x5346414F, 0x73757245, 0x564C, 0x01021997,
    0x0BD00BD0, 0x47504653, 0x7461636F, 0x01161970, 0x6B414653, 0x20030528, 0x19830326, 0xAAD7AAEA,
    0x65735546, 0x786F4256, 0xBACBACBC,
];

fn io_error(path: &Path, error: &io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename => {
            ErrorKind::InvalidConfig
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::Full,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("{} cannot be used: {error}", path.display()))
}

/// Device and inode of what a name leads to.
type FileId = Option<(u64, u64)>;

fn identify(path: &Path) -> FileId {
    std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok()
}

/// What this process has open. SQLite shares one mapping of the index among all connections of a process to a database.
static OPEN: Mutex<Vec<Arc<Files>>> = Mutex::new(Vec::new());

/// Which files were behind the three names when the store was opened.
pub(super) struct Files {
    pub(super) names: [PathBuf; 3],
    opened: [FileId; 3],
}

impl Files {
    /// Refuses a database whose log this process has lost: a new connection would join the new log with the old index.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`].
    pub(super) fn may_connect(path: &Path) -> Result<()> {
        let database = identify(path);
        let lost = |files: &Arc<Self>| files.opened[0] == database && files.has_lost_its_log();
        if OPEN.lock().iter().any(lost) { Err(lost_log(path)) } else { Ok(()) }
    }

    /// Remembers the files of a connection that has read from all three.
    ///
    /// # Errors
    /// As [`Files::may_connect`].
    pub(super) fn remember(path: &Path) -> Result<Arc<Self>> {
        Self::may_connect(path)?;
        let names = names(path);
        let files = Arc::new(Self { opened: names.each_ref().map(|name| identify(name)), names });
        OPEN.lock().push(Arc::clone(&files));
        Ok(files)
    }

    /// Forgets the files of a connection that is about to be closed: what SQLite does then is no loss of the log.
    pub(super) fn forget(self: &Arc<Self>) {
        OPEN.lock().retain(|files| !Arc::ptr_eq(files, self));
    }

    /// Fails unless the names still lead to the files that are open.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when the database was replaced: it can be opened again. [`ErrorKind::Protocol`] when its
    /// log or index was: this process cannot use it any more.
    pub(super) fn check(&self) -> Result<()> {
        let now = self.names.each_ref().map(|name| identify(name));
        if now[0].is_none() || now[0] != self.opened[0] {
            let path = self.names[0].display();
            let text = format!("{path} was deleted, moved or replaced while it was open: its locks are gone");
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        if now == self.opened { Ok(()) } else { Err(lost_log(&self.names[0])) }
    }

    /// Whether the log or its index was deleted or replaced under this process, but not the database.
    ///
    /// Such a connection must not be closed as others are: SQLite would copy the lost log over what others have written since.
    pub(super) fn has_lost_its_log(&self) -> bool {
        self.check().is_err_and(|error| error.kind() == ErrorKind::Protocol)
    }
}

/// The database, and its log and the index to that, where links in the path lead to.
pub(super) fn names(path: &Path) -> [PathBuf; 3] {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let beside = |suffix| [real.as_os_str(), OsStr::new(suffix)].join(OsStr::new("")).into();
    [path.to_owned(), beside("-wal"), beside("-shm")]
}

fn lost_log(path: &Path) -> Error {
    const LOST: &str = "was deleted or replaced while this process had it open: its locks are gone, and it cannot use the \
                        file again before it is restarted";
    Error::new(ErrorKind::Protocol, format!("{0}-wal or {0}-shm {LOST}", path.display()))
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_several_kernels_are_known() {
        // As linux/magic.h and the drivers have them: FUSE, vboxsf, vmhgfs, NFS, CIFS, 9P.
        for magic in [0x6573_5546, 0x786F_4256, 0xBACB_ACBC, 0x6969, 0xFF53_4D42, 0x0102_1997] {
            assert!(SHARED.contains(&magic), "{magic:#x}");
        }
        // ext4, XFS, btrfs, tmpfs, overlayfs.
        for magic in [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x794C_7630] {
            assert!(!SHARED.contains(&magic), "{magic:#x}");
        }
    }
}
