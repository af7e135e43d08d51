//! How a process hears that another one changed a line: whoever promotes or removes an entry that is not its own touches
//! the file once it has committed, and the kernel tells all who watch the file for that.
//!
//! A touch changes the file's times and nothing else. It comes after the commit, so whoever hears it sees the change; a
//! watch on the log would tell before. Only a hint: a process may die between its commit and its touch, so waiters also
//! look from time to time.

use std::path::Path;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW};

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) use linux::Bell;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) use nowhere::Bell;

/// Tells all who listen at the file.
pub(super) fn ring(path: &Path) {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    // By path: closing a file would drop all locks this process has on it. Unheard, the others see it at their next look.
    let _ = rustix::fs::utimensat(CWD, path, &times, AtFlags::empty());
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::path::Path;

    use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
    use tokio::io::unix::AsyncFd;

    /// Listens at one file.
    #[derive(Debug)]
    pub(in crate::sqlite) struct Bell(AsyncFd<OwnedFd>);

    impl Bell {
        /// Begins to listen.
        ///
        /// # Errors
        /// What the kernel says; it bounds how many may listen for each user.
        pub(in crate::sqlite) fn hang(path: &Path) -> io::Result<Self> {
            let listener = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
            add_watch(&listener, path, WatchFlags::ATTRIB)?;
            #[allow(
                deprecated,
                reason = "what came in its place is unsafe; an owned descriptor keeps what that demands"
            )]
            let listener = AsyncFd::new(listener)?;
            Ok(Self(listener))
        }

        /// Ends when it was rung since it was last heard; several rings may be one.
        ///
        /// # Cancel safety
        /// Safe.
        pub(in crate::sqlite) async fn heard(&self) -> io::Result<()> {
            loop {
                let mut ready = self.0.readable().await?;
                // What it says does not matter: the file tells.
                let read = |fd: &AsyncFd<OwnedFd>| Ok(rustix::io::read(fd, &mut [0_u8; 4096])?);
                if let Ok(read) = ready.try_io(read) {
                    return read.map(|_| ());
                }
            }
        }
    }
}

/// Where the kernel does not tell of a touch, looking must do.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod nowhere {
    use std::io;
    use std::path::Path;

    #[derive(Debug)]
    pub(in crate::sqlite) struct Bell;

    impl Bell {
        pub(in crate::sqlite) fn hang(_: &Path) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(in crate::sqlite) async fn heard(&self) -> io::Result<()> {
            std::future::pending().await
        }
    }
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::fs;
    use std::time::Duration;

    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_touch_is_heard_and_writing_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        fs::write(&path, "").unwrap();
        let bell = Bell::hang(&path).unwrap();
        fs::write(&path, "more").unwrap();
        assert!(bell.heard().now_or_never().is_none());
        ring(&path);
        ring(&path);
        tokio::time::timeout(Duration::from_secs(60), bell.heard()).await.unwrap().unwrap();
        assert!(bell.heard().now_or_never().is_none(), "two rings that nobody heard are one");
        // Whoever listens learns that the file has gone.
        fs::remove_file(&path).unwrap();
        tokio::time::timeout(Duration::from_secs(60), bell.heard()).await.unwrap().unwrap();
        ring(&path);
        assert!(Bell::hang(&path).is_err());
    }
}
