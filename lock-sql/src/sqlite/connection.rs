//! The connection to the file: checked when it is opened, opened again where it was lost, and patient with other writers.
//!
//! SQLite lets one connection write and keeps no queue of writers: each tries again and again, and a hundred of
//! them leave the processor no time for the one that writes. So a connection that finds the file busy first takes a `flock` on
//! the write-ahead log, for which the kernel keeps a queue in the order of arrival, and only its head tries again. SQLite has no
//! locks on the log itself, so closing this handle of it drops none. The queue is about order and load only: a writer that is in it
//! for `TURN` tries once and goes on waiting, so a process that is stopped at the head does not block the others. Without its order,
//! where the holder of the `flock` tries soon and the others rarely, a rare writer among busy ones starves up to `busy_timeout`.

use std::cell::{Cell, OnceCell};
use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use onelock_core::{Clock, Error, ErrorKind, Result, Timestamp};
use rusqlite::config::DbConfig;
use rusqlite::{ErrorCode, OpenFlags, TransactionBehavior};

use super::boot::{Boot, nanos, time};
use super::config::SqliteConfig;
use super::error::Fault;
use super::file::{self, Files};
use super::notices::Notices;

/// `PRAGMA application_id` of our files: "ONEL".
const APPLICATION_ID: i64 = 0x4F4E_454C;

/// `PRAGMA user_version` of the schema.
const VERSION: i64 = 1;

/// How long one waits in the queue before it tries without having come to its head.
const TURN: Duration = Duration::from_millis(50);

pub(super) struct Connection {
    pub(super) config: SqliteConfig,
    clock: Arc<dyn Clock>,
    /// None after the file was lost, until the next verb.
    pub(super) database: Option<Database>,
    /// Whether the disk was full, and nothing has been folded since.
    was_full: bool,
    queue: WriterQueue,
}

impl Connection {
    pub(super) fn new(config: SqliteConfig, clock: Arc<dyn Clock>) -> Self {
        Self { config, clock, database: None, was_full: false, queue: None }
    }

    /// Tries until it succeeds, waiting for other writers for as long as the configuration says.
    pub(super) fn persist<T>(
        &mut self,
        mut attempt: impl FnMut(&mut Database) -> Result<T, Fault>,
    ) -> Result<T> {
        let deadline = Instant::now() + self.config.busy_timeout;
        let (mut place, mut tries, mut folded) = (None, 0, false);
        if self.was_full {
            // There may be room again: before the log takes it, fold the log.
            self.fold_log();
        }
        loop {
            let database = match &mut self.database {
                Some(database) => Ok(database),
                none => Database::open(&self.config.path, &self.clock).map(|opened| none.insert(opened)),
            };
            let fault = match database.and_then(&mut attempt) {
                Ok(done) => return Ok(done),
                Err(fault) => fault,
            };
            // It goes on where the step was rolled back, and the file is the one that others see.
            self.database.take_if(|it| !it.sql.is_autocommit() || it.files.check().is_err());
            if fault.error.kind() == ErrorKind::Full && !folded {
                // The log may have grown although most of it could go: a release must not fail for that.
                folded = true;
                self.fold_log();
                continue;
            }
            if !fault.is_busy() || Instant::now() >= deadline {
                return Err(fault.error);
            }
            if place.is_none() {
                place = enter(&mut self.queue, &self.config.path, deadline.min(Instant::now() + TURN));
                if self.queue.is_some() {
                    // Still behind others: the wait was the pause.
                    continue;
                }
            }
            // From 0.1 ms up to about 1 ms at the head of the queue, where one tries, and 25 ms without, where many may.
            std::thread::sleep(Duration::from_micros(100 << tries.min(if place.is_some() { 3 } else { 8 })));
            tries += 1;
        }
    }

    /// Moves the write-ahead log into the file and gives its space back, as far as that can be done now.
    fn fold_log(&mut self) {
        if let Some(database) = &self.database {
            // A lost log would go over what others have written. Where folding does not work there is no room yet, and the next
            // write says so.
            let fold = || database.sql.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |_| Ok(()));
            self.was_full = database.files.check().is_err() || fold().is_err();
        }
    }
}

/// The queue of writers of the file: a thread that waits for the kernel's lock, where the wait has no deadline. A
/// connection has one, however often it gave up waiting: more would be in the way of all others.
type WriterQueue = Option<mpsc::Receiver<File>>;

/// Waits until it is at the head of the queue, which lasts until the answer is dropped; `None` when that is not so by
/// `end`, where its place stays, or where there is no log yet.
fn enter(queue: &mut WriterQueue, path: &Path, end: Instant) -> Option<File> {
    let head = match queue.take() {
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
    *queue = matches!(turn, Err(mpsc::RecvTimeoutError::Timeout)).then_some(head);
    turn.ok()
}

/// An open file.
pub(super) struct Database {
    pub(super) files: Arc<Files>,
    pub(super) sql: rusqlite::Connection,
    pub(super) boot: Boot,
    /// Whether the file had this boot's id in a transaction of this connection: from then on no other one can be an
    /// earlier boot's.
    pub(super) knows_boot: Cell<bool>,
    clock: Arc<dyn Clock>,
    /// From the first wait on; None within where the kernel gives none.
    pub(super) notices: OnceCell<Option<Notices>>,
    /// `PRAGMA data_version` at the last poll: it changes with every commit of another connection.
    seen: i64,
}

impl Database {
    /// Opens the file, making it when it is not there. What is there already is only read.
    ///
    /// # Errors
    /// See [`super::SqliteBackend::open`].
    fn open(path: &Path, clock: &Arc<dyn Clock>) -> Result<Self, Fault> {
        let boot = Boot::current()?;
        let found = file::check(path)?;
        Files::may_connect(path)?;
        if found {
            look_at(path)?;
        }
        let sql = rusqlite::Connection::open(path)?;
        // Whether the log may go into the file is known when it is closed: see `drop`.
        sql.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        // SQLite's own waiting sleeps up to 100 ms at a time, and is not fair.
        sql.busy_timeout(Duration::ZERO)?;
        // Pages of a new file are small, since each write puts whole pages into the log. What of the log stays on the disk once
        // its content is in the file is bounded.
        sql.execute_batch("PRAGMA page_size = 1024; PRAGMA journal_size_limit = 1048576")?;
        // Empty also where its maker was killed in between: SQLite has undone that by then.
        if number(&sql, "PRAGMA page_count")? == 0 {
            let make = rusqlite::Transaction::new_unchecked(&sql, TransactionBehavior::Immediate)?;
            // Unless others have made the tables since we looked.
            let marks = (number(&make, "PRAGMA application_id")?, number(&make, "PRAGMA user_version")?);
            if marks == (0, 0) && number(&make, "SELECT count(*) FROM sqlite_schema")? == 0 {
                make.execute_batch(include_str!("schema/0001.sql"))?;
            }
            make.commit()?;
        }
        check_marks(&sql)?;
        // After the tables were made, so that the marks of the file are in its own first page from the start and not in the log alone.
        let mode: String = sql.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
        if mode != "wal" {
            let text =
                format!("SQLite keeps no write-ahead log there (journal mode {mode}): is it a local disk?");
            return Err(Error::new(ErrorKind::Unsupported, text).into());
        }
        // The log and its index are there once something was read.
        check_marks(&sql)?;
        let files = Files::remember(path)?;
        let (clock, knows_boot, notices) = (clock.clone(), Cell::new(false), OnceCell::new());
        Ok(Self { files, sql, boot, knows_boot, clock, notices, seen: -1 })
    }

    /// The host's boot clock.
    pub(super) fn now(&self) -> Timestamp {
        time(nanos(self.clock.now()).saturating_sub(self.boot.shift))
    }

    /// Whether another connection has committed since this was asked last.
    pub(super) fn has_changed(&mut self) -> Result<bool, Fault> {
        self.files.check()?;
        let version = number(&self.sql, "PRAGMA data_version")?;
        Ok(std::mem::replace(&mut self.seen, version) != version)
    }
}

impl Drop for Database {
    /// Closing moves the log into the file, unless it is a lost one, which would go over what others have written since. The record
    /// of that stays, and keeps this process from opening the file again.
    fn drop(&mut self) {
        if !self.files.has_lost_its_log() {
            self.files.forget();
            // Without it the log stays, as after a crash.
            let _ = self.sql.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false);
        }
    }
}

/// Looks whether the file is ours without a lock, a byte written or a companion file made.
///
/// Through SQLite and not by reading its head ourselves: closing a file drops all locks this process has on it.
fn look_at(path: &Path) -> Result<(), Fault> {
    let name = path.to_string_lossy().replace('%', "%25").replace('?', "%3F").replace('#', "%23");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    // With an empty host: what follows two slashes would be one.
    let sql = rusqlite::Connection::open_with_flags(format!("file://{name}?immutable=1"), flags)?;
    // Its first page is read though others are missing, as where its maker was killed in between.
    sql.pragma_update(None, "writable_schema", true)?;
    check_marks(&sql).map_err(|fault| match fault.code {
        None | Some(ErrorCode::NotADatabase) => fault,
        // It may make no sense yet when read without a lock: it is about to be made or to grow.
        Some(_) => Fault { code: Some(ErrorCode::DatabaseBusy), ..fault },
    })
}

fn number(sql: &rusqlite::Connection, text: &str) -> Result<i64, rusqlite::Error> {
    sql.prepare_cached(text)?.query_row((), |row| row.get(0))
}

/// Refuses a file that is not ours, or of another version: what its tables mean is not known here.
///
/// # Errors
/// [`ErrorKind::Foreign`], [`ErrorKind::Unsupported`].
pub(super) fn check_marks(sql: &rusqlite::Connection) -> Result<(), Fault> {
    let (id, version) = (number(sql, "PRAGMA application_id")?, number(sql, "PRAGMA user_version")?);
    if (id, version) == (APPLICATION_ID, VERSION) {
        return Ok(());
    }
    let newer =
        format!("a newer onelock wrote the file: its schema is version {version}, this one knows {VERSION}");
    let foreign = "the file is not a lock file of onelock; it was left as it is".to_owned();
    let ours = id == APPLICATION_ID;
    let (kind, text) = if ours { (ErrorKind::Unsupported, newer) } else { (ErrorKind::Foreign, foreign) };
    Err(Error::new(kind, text).into())
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
        let head = enter(&mut first, &path, soon()).unwrap();
        for _ in 0..5 {
            assert!(enter(&mut second, &path, soon()).is_none());
        }
        assert_eq!(handles(&log), 2);
        drop(head);
        let long = Instant::now() + Duration::from_secs(60);
        // A place whose turn came between two calls has left the queue, and is taken anew.
        let mut head = || (0..100).find_map(|_| enter(&mut second, &path, long)).unwrap();
        let taken = head();
        assert!(enter(&mut first, &path, soon()).is_none());
        drop(taken);
        // A place that nobody wants when its turn comes is in nobody's way.
        head();
    }
}
