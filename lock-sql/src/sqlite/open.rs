//! An open file: is it ours, which version, and the connection to it.

use std::cell::{Cell, OnceCell};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use onelock_core::{Clock, Error, ErrorKind, Result, Timestamp};
use rusqlite::config::DbConfig;
use rusqlite::{ErrorCode, OpenFlags, TransactionBehavior};

use super::boot::{Boot, nanos, time};
use super::error::Fault;
use super::file::{self, Files};
use super::notices::Notices;

/// `PRAGMA application_id` of our files: "ONEL".
const APPLICATION_ID: i64 = 0x4F4E_454C;

/// `PRAGMA user_version` of the schema.
const VERSION: i64 = 1;

/// Pages of a new file are small, since each write puts whole pages into the log. What of the log stays on the disk once its
/// content is in the file is bounded.
const SETTINGS: &str = "PRAGMA page_size = 1024; PRAGMA journal_size_limit = 1048576";

/// An open file.
pub(super) struct Database {
    pub(super) files: Arc<Files>,
    pub(super) sql: rusqlite::Connection,
    pub(super) boot: Boot,
    /// Whether the file had this boot's id in a transaction of this connection: from then on no other one can be an
    /// earlier boot's.
    pub(super) knows_boot: Cell<bool>,
    clock: Arc<dyn Clock>,
    /// None within where the kernel gives none.
    pub(super) notices: OnceCell<Option<Notices>>,
    /// `PRAGMA data_version` at the last poll: it changes with every commit of another connection.
    seen: i64,
}

impl Database {
    /// Opens the file, making it when it is not there. What is there already is only read.
    ///
    /// # Errors
    /// See [`super::SqliteBackend::open`].
    pub(super) fn open(path: &Path, clock: &Arc<dyn Clock>) -> Result<Self, Fault> {
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
        sql.execute_batch(SETTINGS)?;
        // Also where who made it was killed in between: SQLite has undone that by then.
        if !found || pragma(&sql, "PRAGMA page_count")? == 0 {
            make(&sql)?;
        }
        keep_log(&sql)?;
        let files = Files::remember(path)?;
        let (clock, knows_boot, notices) = (clock.clone(), Cell::new(false), OnceCell::new());
        Ok(Self { files, sql, boot, knows_boot, clock, notices, seen: -1 })
    }

    /// Whether it goes on after a failed step: it was rolled back, and its file is the one that others see.
    pub(super) fn is_usable(&self) -> bool {
        self.sql.is_autocommit() && self.files.check().is_ok()
    }

    /// The host's boot clock.
    pub(super) fn now(&self) -> Timestamp {
        time(nanos(self.clock.now()).saturating_sub(self.boot.shift))
    }

    /// The touches of the file, from the first time that this is asked for.
    pub(super) fn notices(&self) -> Option<&Notices> {
        self.notices.get_or_init(|| Notices::of(&self.files.names[0])).as_ref()
    }

    /// Whether another connection has committed since this was asked last.
    pub(super) fn has_changed(&mut self) -> Result<bool, Fault> {
        self.files.check()?;
        let version = pragma(&self.sql, "PRAGMA data_version")?;
        Ok(std::mem::replace(&mut self.seen, version) != version)
    }

    /// Whether the next commit is on the disk before it is answered.
    pub(super) fn set_full_sync(&self, full: bool) -> Result<(), Fault> {
        // SQLite obeys this pragma when it compiles it, so it must not come out of the cache.
        Ok(self.sql.pragma_update(None, "synchronous", if full { "FULL" } else { "NORMAL" })?)
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
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    // With an empty host: what follows two slashes would be one.
    let sql = rusqlite::Connection::open_with_flags(format!("file://{name}?immutable=1"), flags)?;
    // Its first page is read though others are missing, as where who made the file was killed in between.
    sql.pragma_update(None, "writable_schema", true)?;
    check_marks(&sql).map_err(|fault| match fault {
        // It may make no sense yet to who reads it without a lock: it is about to be made or to grow.
        Fault::Sql(error) if error.sqlite_error_code() != Some(ErrorCode::NotADatabase) => Fault::Busy(error),
        fault => fault,
    })
}

fn pragma(sql: &rusqlite::Connection, text: &str) -> Result<i64, rusqlite::Error> {
    sql.prepare_cached(text)?.query_row((), |row| row.get(0))
}

/// Refuses a file that is not ours, or of another version: what its tables mean is not known here.
///
/// # Errors
/// [`ErrorKind::Foreign`], [`ErrorKind::Unsupported`].
pub(super) fn check_marks(sql: &rusqlite::Connection) -> Result<(), Fault> {
    let marks = (pragma(sql, "PRAGMA application_id")?, pragma(sql, "PRAGMA user_version")?);
    let (kind, text) = match marks {
        (APPLICATION_ID, VERSION) => return Ok(()),
        (APPLICATION_ID, version) => (
            ErrorKind::Unsupported,
            format!(
                "the file was written by a newer onelock: its schema is version {version}, this program knows version {VERSION}"
            ),
        ),
        _ => (ErrorKind::Foreign, "the file is not a lock file of onelock; it was left as it is".to_owned()),
    };
    Err(Error::new(kind, text).into())
}

/// Makes the tables, unless others have made them since we looked.
fn make(sql: &rusqlite::Connection) -> Result<(), Fault> {
    let sql = rusqlite::Transaction::new_unchecked(sql, TransactionBehavior::Immediate)?;
    let tables: i64 = sql.query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get(0))?;
    let marks = (pragma(&sql, "PRAGMA application_id")?, pragma(&sql, "PRAGMA user_version")?);
    if tables == 0 && marks == (0, 0) {
        sql.execute_batch(include_str!("schema/0001.sql"))?;
    }
    check_marks(&sql)?;
    Ok(sql.commit()?)
}

/// Sees to it that there is a write-ahead log. After the tables were made, so that the marks of the file are in its own first page
/// from the start and not in the log alone.
fn keep_log(sql: &rusqlite::Connection) -> Result<(), Fault> {
    let mode: String = sql.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        let text =
            format!("SQLite cannot keep a write-ahead log there (journal mode {mode}): is it a local disk?");
        return Err(Error::new(ErrorKind::Unsupported, text).into());
    }
    // The log and its index are there once something was read.
    check_marks(sql)
}
