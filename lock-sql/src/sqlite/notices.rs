//! Touches of the file, by which processes notify each other.
//!
//! A process that promotes or removes an entry that is not its own touches the file after its commit, and the kernel notifies all
//! watchers of the file. A touch changes the file's times and nothing else; a watch on the log would notify before the
//! commit can be read.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};
use tokio::io::{Interest, unix::AsyncFd};

/// A watch on the file.
pub(super) type Notices = AsyncFd<OwnedFd>;

/// Notifies all watchers of the file.
pub(super) fn notify(path: &Path) {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    // By path: closing a file would drop all locks this process has on it. Without it, the others see it at their next poll.
    let _ = utimensat(CWD, path, &times, AtFlags::empty());
}

/// Ends when the file was touched since the last time; several touches may be one. `None` when it is broken, so that polling must
/// do. What it says does not matter: the file is read.
///
/// # Cancel safety
/// Safe.
pub(super) async fn notified(notices: &Notices) -> Option<()> {
    let read = |fd: &OwnedFd| Ok(rustix::io::read(fd, &mut [0_u8; 4096]).map(drop)?);
    notices.async_io(Interest::READABLE, read).await.ok()
}

/// None where the kernel gives none: it bounds how many watches a user may have.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn watch(path: &Path) -> Option<Notices> {
    use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
    let inotify = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok()?;
    add_watch(&inotify, path, WatchFlags::ATTRIB).ok()?;
    #[allow(deprecated, reason = "its successor is unsafe; an owned descriptor keeps what that demands")]
    AsyncFd::with_interest(inotify, Interest::READABLE).ok()
}

/// Where the kernel does not notify of a touch, polling must do.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn watch(_: &Path) -> Option<Notices> {
    None
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::time::Duration;

    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_touch_is_told_and_writing_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        std::fs::write(&path, "").unwrap();
        let notices = watch(&path).unwrap();
        std::fs::write(&path, "more").unwrap();
        assert!(notified(&notices).now_or_never().is_none());
        notify(&path);
        notify(&path);
        tokio::time::timeout(Duration::from_secs(60), notified(&notices)).await.unwrap();
        assert!(notified(&notices).now_or_never().is_none(), "two touches that nobody has seen are one");
        // A watcher learns that the file has gone.
        std::fs::remove_file(&path).unwrap();
        tokio::time::timeout(Duration::from_secs(60), notified(&notices)).await.unwrap();
        notify(&path);
        assert!(watch(&path).is_none());
    }
}
