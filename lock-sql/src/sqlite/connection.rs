//! The connection: opened again where it was lost, and patient with other writers.
//!
//! SQLite lets one connection write and keeps no queue of those who want to: each tries again and again, and a hundred of
//! them leave the processor no time for the one who writes. So of those who find the file busy the one who gets a `flock` on the
//! write-ahead log tries again soon, and the others ever more rarely. SQLite has no locks on the log itself, so closing this
//! handle of it drops none. It is about load only: a process that is stopped with it takes nobody with it.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onelock_core::{Clock, Error, ErrorKind, Result};

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
        let (mut first, mut tries, mut folded) = (None, 0, false);
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
            first = first.or_else(|| place(&self.config.path));
            // From 0.1 ms up to about 1 ms for the first, and 50 ms for the others, who may be many.
            std::thread::sleep(Duration::from_micros(100 << tries.min(if first.is_some() { 3 } else { 9 })));
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

/// The place of the one who tries again soon, until it is dropped; `None` where another has it, or there is no log yet.
fn place(path: &Path) -> Option<File> {
    let [_, log, _] = file::names(path);
    File::open(log).ok().filter(|log| log.try_lock().is_ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn connection(busy_timeout: Duration) -> (tempfile::TempDir, Connection) {
        let folder = tempfile::tempdir().unwrap();
        let mut config = SqliteConfig::new(folder.path().join("locks.db"));
        config.busy_timeout = busy_timeout;
        let mut connection = Connection::new(config, Arc::new(onelock_core::BootClock));
        connection.persist(|_| Ok(())).unwrap();
        (folder, connection)
    }

    fn busy() -> Fault {
        rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY), None).into()
    }

    /// The one who tries soon does not go on, as a process that is stopped.
    #[test]
    fn who_is_behind_one_that_is_stopped_tries_meanwhile() {
        let (_folder, mut connection) = connection(Duration::from_secs(20));
        let _stopped = place(&connection.config.path).unwrap();
        let began = Instant::now();
        for times in [1, 2, 5] {
            let mut tries = 0;
            let attempt = |_: &mut Database| {
                tries += 1;
                if tries > times { Ok(()) } else { Err(busy()) }
            };
            connection.persist(attempt).unwrap();
        }
        assert!(began.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn one_tries_soon_and_the_others_rarely() {
        let (_folder, mut connection) = connection(Duration::from_secs(1));
        let path = connection.config.path.clone();
        let mut tries = || {
            let mut tries = 0;
            let attempt = |_: &mut Database| -> Result<(), _> {
                tries += 1;
                Err(busy())
            };
            connection.persist(attempt).unwrap_err();
            tries
        };
        let soon = tries();
        let _another = place(&path).unwrap();
        let rarely = tries();
        assert!(soon > 2 * rarely && rarely < 35, "{soon} and {rarely} tries in a second");
    }
}
