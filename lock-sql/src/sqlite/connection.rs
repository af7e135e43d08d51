//! The connection: opened again where it was lost, and patient with other writers.
//!
//! SQLite lets one connection write and keeps no queue of those who want to: each tries again and again, and a hundred of
//! them leave the processor no time for the one who writes. So a connection that finds the file busy first takes a `flock` on
//! the write-ahead log, for which the kernel keeps a queue in the order of arrival, and only its head tries again. SQLite has no
//! locks on the log itself, so closing this handle of it drops none. The queue is about order and load only: one that is not at
//! its head in time tries without, so a process that is stopped at the head takes nobody with it.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use onelock_core::{Clock, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::config::SqliteConfig;
use super::error::Fault;
use super::file;
use super::open::Database;

pub(super) struct Connection {
    pub(super) config: SqliteConfig,
    clock: Arc<dyn Clock>,
    /// None after the file was lost, until the next verb.
    pub(super) database: Option<Database>,
    /// Whether the disk was full at the last write.
    was_full: bool,
}

impl Connection {
    pub(super) fn new(config: SqliteConfig, clock: Arc<dyn Clock>) -> Self {
        Self { config, clock, database: None, was_full: false }
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
            if self.database.as_ref().is_some_and(|database| !database.roll_back()) {
                self.close();
            }
            if fault.is_full() && !folded {
                // The log may have grown although most of it could go: a release must not fail for that.
                folded = true;
                self.fold_log();
                continue;
            }
            if !fault.is_busy() || Instant::now() >= deadline {
                return Err(fault.into_error());
            }
            if place.is_none() {
                place = enter(&self.config.path, deadline);
            }
            // From 0.1 ms up to about 1 ms at the head of the queue, where one tries, and 25 ms without, where a crowd may.
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

    /// Closes the file; the next verb opens it again.
    pub(super) fn close(&mut self) {
        if let Some(database) = self.database.take() {
            database.close();
        }
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

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

/// Waits until it is at the head of the queue, which lasts until the answer is dropped; `None` when that is not so by
/// `deadline`, or where there is no log yet.
fn enter(path: &Path, deadline: Instant) -> Option<File> {
    let [log, _] = file::companions(path);
    let log = File::open(log).ok()?;
    match flock(&log, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => return Some(log),
        Err(Errno::WOULDBLOCK) => {}
        Err(_) => return None,
    }
    // The kernel's wait has no deadline, so a thread of its own waits. One that comes too late finds nobody to answer, and
    // leaves the queue by dropping the handle.
    let (reply, place) = mpsc::sync_channel(1);
    let wait = move || {
        loop {
            match flock(&log, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                Ok(()) => return drop(reply.send(log)),
                Err(_) => return,
            }
        }
    };
    std::thread::Builder::new().name("onelock-queue".into()).stack_size(64 << 10).spawn(wait).ok()?;
    place.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
}
