//! How those who wait are notified: by what this process does itself, and by what other processes do.
//!
//! A process that promotes or removes an entry that is not its own touches the file after its commit, and the kernel tells all
//! who watch the file for that. A touch changes the file's times and nothing else; a watch on the log would tell before the
//! commit can be read. It is only a hint: a process may die between its commit and its touch, so waiters also poll now and then.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use onelock_core::{Result, Wake};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};
use tokio::sync::oneshot;

use super::connection::Connection;
use super::error::Fault;
use super::keys::Key;
use super::line;
use super::open::Database;

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) use linux::Notices;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) use nowhere::Notices;

/// How many times rarer polls are where the kernel tells: then they are only for what was not notified. Hundreds of waiters must
/// not keep the processor busy by polling.
const RARER: u32 = 100;

pub(super) type Reply = oneshot::Sender<Result<Wake>>;

/// Tells all who watch the file.
pub(super) fn notify(path: &Path) {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    // By path: closing a file would drop all locks this process has on it. Without it, the others see it at their next poll.
    let _ = utimensat(CWD, path, &times, AtFlags::empty());
}

/// Those of this process who wait.
pub(super) struct Waiters {
    poll: Duration,
    /// Most entries have one waiting call; one that was dropped and made anew has two.
    replies: HashMap<Key, Vec<Reply>>,
    next: Instant,
}

impl Waiters {
    pub(super) fn new(poll: Duration) -> Self {
        Self { poll, replies: HashMap::new(), next: Instant::now() }
    }

    pub(super) fn has(&self, key: &Key) -> bool {
        self.replies.contains_key(key)
    }

    /// Adds those that do wait and answers the others.
    pub(super) fn add(&mut self, connection: &mut Connection, waits: Vec<(Key, Reply)>) {
        let keys: Vec<_> = waits.iter().map(|(key, _)| key.clone()).collect();
        let first = self.replies.is_empty();
        for (key, reply) in waits {
            self.replies.entry(key).or_default().push(reply);
        }
        let began = Instant::now();
        self.answer(connection, keys);
        if first {
            self.poll_later(connection, began);
        }
    }

    pub(super) fn wake(&mut self, key: &Key, wake: &Result<Wake>) {
        for reply in self.replies.remove(key).into_iter().flatten() {
            // A caller that went away needs no answer.
            let _ = reply.send(wake.clone());
        }
    }

    /// Ends when somebody waits and it is time to look: because another process notified (true), or to poll.
    pub(super) async fn due(&self, database: Option<&Database>) -> bool {
        if self.replies.is_empty() {
            return std::future::pending().await;
        }
        let notified = async {
            match database.and_then(Database::notices) {
                Some(notices) => notices.notified().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = notified => true,
            () = tokio::time::sleep_until(self.next.into()) => false,
        }
    }

    /// Looks what other processes did, and wakes those whom it concerns.
    pub(super) fn look(&mut self, connection: &mut Connection, notified: bool) {
        let began = Instant::now();
        self.replies.retain(|_, replies| {
            replies.retain(|reply| !reply.is_closed());
            !replies.is_empty()
        });
        if notified || connection.persist(|database| database.has_changed()).unwrap_or(true) {
            let keys = self.replies.keys().cloned().collect();
            self.answer(connection, keys);
        }
        self.poll_later(connection, began);
    }

    /// Wakes those of these whose wait is over. Only reads, so it is in no writer's way.
    fn answer(&mut self, connection: &mut Connection, keys: Vec<Key>) {
        if keys.is_empty() {
            return;
        }
        let read = connection.persist(|database| {
            // First, so that nothing falls between the answer and what is notified later.
            database.notices();
            read(database, &keys)
        });
        let standings = read.unwrap_or_else(|error| vec![Some(Err(error)); keys.len()]);
        for (key, standing) in keys.iter().zip(standings) {
            if let Some(wake) = standing {
                self.wake(key, &wake);
            }
        }
    }

    /// The next poll. With very many waiters a look takes its time: never spend more than a fifth of it looking.
    fn poll_later(&mut self, connection: &Connection, began: Instant) {
        let notifies = connection.database.as_ref().is_some_and(|database| database.notices().is_some());
        let pause = if notifies { self.poll * RARER } else { self.poll };
        self.next = Instant::now() + pause.max((began.elapsed() * 4).min(Duration::from_secs(1)));
    }
}

/// For each entry what to tell those who wait for it; `None` while it waits.
fn read(database: &Database, keys: &[Key]) -> Result<Vec<Option<Result<Wake>>>, Fault> {
    let mut own = database.sql.prepare_cached(include_str!("sql/own.sql"))?;
    let now = database.now();
    let mut standings = Vec::new();
    for key in keys {
        let mut rows = own.query((&key.name, Key::blob(key.holder)))?;
        let entry = rows.next()?.map(line::entry).transpose()?.filter(|entry| entry.ends > now);
        standings.push(match entry {
            Some(entry) => entry.held.then_some(Ok(Wake::Held(entry.token))),
            None => Some(Ok(Wake::Ask)),
        });
    }
    // Last: versions only grow, so what was read before was of this one.
    database.check_version()?;
    database.files.check()?;
    Ok(standings)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::path::Path;

    use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
    use tokio::io::unix::AsyncFd;

    /// A watch on one file.
    pub(in crate::sqlite) struct Notices(AsyncFd<OwnedFd>);

    impl Notices {
        /// # Errors
        /// What the kernel says; it bounds how many watches a user may have.
        pub(in crate::sqlite) fn of(path: &Path) -> io::Result<Self> {
            let inotify = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
            add_watch(&inotify, path, WatchFlags::ATTRIB)?;
            #[allow(
                deprecated,
                reason = "what came in its place is unsafe; an owned descriptor keeps what that demands"
            )]
            Ok(Self(AsyncFd::new(inotify)?))
        }

        /// Ends when the file was touched since the last time; several touches may be one.
        ///
        /// # Cancel safety
        /// Safe.
        pub(super) async fn notified(&self) {
            while let Ok(mut ready) = self.0.readable().await {
                // What it says does not matter: the file tells.
                match ready.try_io(|fd| Ok(rustix::io::read(fd, &mut [0_u8; 4096])?)) {
                    Ok(Ok(_)) => return,
                    Ok(Err(_)) => break,
                    Err(_) => {}
                }
            }
            // Broken, so polling must do.
            std::future::pending().await
        }
    }
}

/// Where the kernel does not tell of a touch, polling must do.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod nowhere {
    pub(in crate::sqlite) struct Notices;

    impl Notices {
        pub(in crate::sqlite) fn of(_: &std::path::Path) -> std::io::Result<Self> {
            Err(std::io::ErrorKind::Unsupported.into())
        }

        pub(super) async fn notified(&self) {
            std::future::pending().await
        }
    }
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::fs;

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
        assert!(Notices::of(&path).is_err());
    }
}
