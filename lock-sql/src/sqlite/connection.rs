//! The connection: opened again where it was lost, and patient with other writers.
//!
//! SQLite lets one connection write and keeps no queue of those who want to: each tries again and again, and a hundred of
//! them leave the processor no time for the one who writes. So a connection that finds the file busy first takes a `flock` on
//! the write-ahead log, for which the kernel keeps a queue in the order of arrival, and only its head tries again. SQLite has no
//! locks on the log itself, so closing this handle of it drops none. The queue is about order and load only: who is in it for
//! `TURN` tries once and goes on waiting, so a process that is stopped at the head takes nobody with it. Without its order, where who
//! gets the `flock` tries soon and the others rarely, a rare writer among busy ones starves up to `busy_timeout`.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use onelock_core::{Clock, Error, ErrorKind, Result};

use super::config::SqliteConfig;
use super::error::Fault;
use super::file;
use super::open::Database;

/// How long one waits in the queue before it tries without having come to its head.
const TURN: Duration = Duration::from_millis(50);

pub(super) struct Connection {
    pub(super) config: SqliteConfig,
    clock: Arc<dyn Clock>,
    /// None after the file was lost, until the next verb.
    pub(super) database: Option<Database>,
    /// Whether the disk was full at the last write.
    was_full: bool,
    queue: WriterQueue,
}

impl Connection {
    pub(super) fn new(config: SqliteConfig, clock: Arc<dyn Clock>) -> Self {
        Self { config, clock, database: None, was_full: false, queue: WriterQueue::default() }
    }

    /// Tries until it succeeds, waiting for other writers for as long as the configuration says.
    pub(super) fn persist<T>(
        &mut self,
        mut attempt: impl FnMut(&mut Database) -> Result<T, Fault>,
    ) -> Result<T> {
        if self.was_full {
            // There may be room again: before the log takes it, fold the log.
            self.fold_log();
        }
        let deadline = Instant::now() + self.config.busy_timeout;
        let (mut place, mut tries, mut folded) = (None, 0, false);
        loop {
            let fault = match self.open().and_then(&mut attempt) {
                Ok(done) => return Ok(done),
                Err(fault) => fault,
            };
            self.database.take_if(|database| !database.is_usable());
            if !matches!(fault, Fault::Busy(_)) || Instant::now() >= deadline {
                let error = Error::from(fault);
                if error.kind() != ErrorKind::Full || folded {
                    return Err(error);
                }
                // The log may have grown although most of it could go: a release must not fail for that.
                folded = true;
                self.fold_log();
                continue;
            }
            if place.is_none() {
                place = self.queue.enter(&self.config.path, deadline.min(Instant::now() + TURN));
                if self.queue.0.is_some() {
                    // Still behind others: the wait was the pause.
                    continue;
                }
            }
            // From 0.1 ms up to about 1 ms at the head of the queue, where one tries, and 25 ms without, where many may.
            std::thread::sleep(Duration::from_micros(100 << tries.min(if place.is_some() { 3 } else { 8 })));
            tries += 1;
        }
    }

    fn open(&mut self) -> Result<&mut Database, Fault> {
        Ok(match &mut self.database {
            Some(database) => database,
            none => none.insert(Database::open(&self.config.path, &self.clock)?),
        })
    }

    /// Moves the write-ahead log into the file and gives its space back, as far as that can be done now.
    fn fold_log(&mut self) {
        if let Some(database) = &self.database {
            // Where it does not work there is no room yet, and the next write says so.
            let folded = database.sql.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |_| Ok(()));
            self.was_full = folded.is_err();
        }
    }
}

/// The queue of those who want to write the file: a thread that waits for the kernel's lock, where the wait has no deadline. A
/// connection has one, however often it gave up waiting: more would be in the way of all others.
#[derive(Default)]
struct WriterQueue(Option<mpsc::Receiver<File>>);

impl WriterQueue {
    /// Waits until it is at the head of the queue, which lasts until the answer is dropped; `None` when that is not so by
    /// `end`, where its place stays, or where there is no log yet.
    fn enter(&mut self, path: &Path, end: Instant) -> Option<File> {
        let head = match self.0.take() {
            Some(head) => head,
            None => {
                let [_, log, _] = file::names(path);
                let log = File::open(log).ok()?;
                match log.try_lock() {
                    Ok(()) => return Some(log),
                    Err(TryLockError::WouldBlock) => {}
                    Err(TryLockError::Error(_)) => return None,
                }
                let (reply, head) = mpsc::sync_channel(0);
                let stand = move || {
                    while log.lock().is_err_and(|error| error.kind() == std::io::ErrorKind::Interrupted) {}
                    // With nobody to take its place just now it leaves the queue.
                    let _ = reply.try_send(log);
                };
                let thread = std::thread::Builder::new().name("onelock-queue".into()).stack_size(64 << 10);
                thread.spawn(stand).ok()?;
                head
            }
        };
        let turn = head.recv_timeout(end.saturating_duration_since(Instant::now()));
        self.0 = matches!(turn, Err(mpsc::RecvTimeoutError::Timeout)).then_some(head);
        turn.ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// The head of the queue does not go on, as a process that is stopped.
    #[test]
    fn who_is_behind_a_head_that_is_stopped_tries_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        let mut config = SqliteConfig::new(&path);
        config.busy_timeout = Duration::from_secs(20);
        let mut connection = Connection::new(config, Arc::new(onelock_core::BootClock));
        connection.persist(|_| Ok(())).unwrap();
        let [_, log, _] = file::names(&path);
        let head = File::open(&log).unwrap();
        head.lock().unwrap();
        let began = Instant::now();
        for busy in [1, 2, 5] {
            let mut tries = 0;
            let attempt = |_: &mut Database| {
                tries += 1;
                let error = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
                if tries > busy { Ok(()) } else { Err(rusqlite::Error::SqliteFailure(error, None).into()) }
            };
            connection.persist(attempt).unwrap();
        }
        assert!(began.elapsed() < Duration::from_secs(10));
    }

    /// How many handles of the log this process has: one at the head of the queue, and one for each place behind it.
    fn handles(log: &Path) -> usize {
        let all = std::fs::read_dir("/proc/self/fd").unwrap();
        all.filter(|fd| fd.as_ref().is_ok_and(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == log)))
            .count()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn who_gives_up_and_comes_again_has_one_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        let [_, log, _] = file::names(&path);
        std::fs::write(&log, "").unwrap();
        let (mut first, mut second) = (WriterQueue::default(), WriterQueue::default());
        let soon = || Instant::now() + Duration::from_millis(20);
        let head = first.enter(&path, soon()).unwrap();
        for _ in 0..5 {
            assert!(second.enter(&path, soon()).is_none());
        }
        assert_eq!(handles(&log), 2);
        drop(head);
        let long = Instant::now() + Duration::from_secs(60);
        // A place whose turn came between two calls has left the queue, and is taken anew.
        let mut enter = || (0..100).find_map(|_| second.enter(&path, long)).unwrap();
        let head = enter();
        assert!(first.enter(&path, soon()).is_none());
        drop(head);
        // A place that nobody wants when its turn comes is in nobody's way.
        enter();
    }
}
