//! Touches of the file, by which processes notify each other.
//!
//! A process that promotes or removes an entry that is not its own touches the file after its commit, and the kernel notifies all
//! who watch the file. A touch changes the file's times and nothing else; a watch on the log would notify before the
//! commit can be read.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};
use tokio::io::unix::AsyncFd;

/// Notifies all who watch the file.
pub(super) fn notify(path: &Path) {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    // By path: closing a file would drop all locks this process has on it. Without it, the others see it at their next poll.
    let _ = utimensat(CWD, path, &times, AtFlags::empty());
}

/// A watch on one file.
pub(super) struct Notices(AsyncFd<OwnedFd>);

impl Notices {
    /// None where the kernel gives none: it bounds how many watches a user may have.
    pub(super) fn of(path: &Path) -> Option<Self> {
        #[allow(
            deprecated,
            reason = "what came in its place is unsafe; an owned descriptor keeps what that demands"
        )]
        AsyncFd::new(watch(path)?).ok().map(Self)
    }

    /// Ends when the file was touched since the last time; several touches may be one. `None` when it is broken, so that polling must
    /// do.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn notified(&self) -> Option<()> {
        loop {
            let mut ready = self.0.readable().await.ok()?;
            // What it says does not matter: the file is read.
            if let Ok(read) = ready.try_io(|fd| Ok(rustix::io::read(fd, &mut [0_u8; 4096])?)) {
                return read.ok().map(drop);
            }
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn watch(path: &Path) -> Option<OwnedFd> {
    use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
    let inotify = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok()?;
    add_watch(&inotify, path, WatchFlags::ATTRIB).ok()?;
    Some(inotify)
}

/// Where the kernel does not notify of a touch, polling must do.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn watch(_: &Path) -> Option<OwnedFd> {
    None
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::fs;
    use std::time::Duration;

    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_touch_is_told_and_writing_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        fs::write(&path, "").unwrap();
        let notices = Notices::of(&path).unwrap();
        fs::write(&path, "more").unwrap();
        assert!(notices.notified().now_or_never().is_none());
        notify(&path);
        notify(&path);
        tokio::time::timeout(Duration::from_secs(60), notices.notified()).await.unwrap();
        assert!(notices.notified().now_or_never().is_none(), "two touches that nobody has seen are one");
        // A watcher learns that the file has gone.
        fs::remove_file(&path).unwrap();
        tokio::time::timeout(Duration::from_secs(60), notices.notified()).await.unwrap();
        notify(&path);
        assert!(Notices::of(&path).is_none());
    }
}
