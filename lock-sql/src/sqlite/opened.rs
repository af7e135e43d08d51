//! The three files that an open store consists of: the database, its write-ahead log and the index to that log.
//!
//! A process that has them open sees what others write only while all three names lead to the same files. When the log or
//! its index is deleted, the next process to open the database makes new ones, and each side then has a line of its own.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use onelock_core::{Error, ErrorKind, Result};

use super::file::{self, FileId};

/// What this process has open. SQLite shares one mapping of the index among all connections of a process to a database,
/// so these share one record.
static OPEN: Mutex<Vec<Weak<Opened>>> = Mutex::new(Vec::new());

/// Which files were behind the three names when the store was opened.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Opened {
    path: PathBuf,
    /// Where links in the path lead to; the log is beside it.
    real: PathBuf,
    database: FileId,
    log: Option<FileId>,
    index: Option<FileId>,
}

impl Opened {
    /// Refuses a database whose log this process has lost: a new connection would join the new log with the old index.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`].
    pub(super) fn may_connect(path: &Path) -> Result<()> {
        let Ok(now) = Self::at(path) else { return Ok(()) };
        match Self::living(now.database) {
            Some(opened) if opened.has_lost_its_log() => Err(lost_log(path)),
            _ => Ok(()),
        }
    }

    /// Remembers the files of a connection that has read from all three.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when the database is gone, [`ErrorKind::Protocol`] when this process has another log of it.
    pub(super) fn remember(path: &Path) -> Result<Arc<Self>> {
        let now = Self::at(path)?;
        match Self::living(now.database) {
            Some(opened) if opened.has_lost_its_log() => return Err(lost_log(path)),
            Some(opened) if *opened == now => return Ok(opened),
            // By another path.
            _ => {}
        }
        let now = Arc::new(now);
        OPEN.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&now));
        Ok(now)
    }

    fn living(database: FileId) -> Option<Arc<Self>> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|opened| opened.strong_count() > 0);
        open.iter().filter_map(Weak::upgrade).find(|opened| opened.database == database)
    }

    fn at(path: &Path) -> Result<Self> {
        let database = file::identify(path)?;
        let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let [log, index] = companions(&real);
        Ok(Self { path: path.to_owned(), real, database, log, index })
    }

    /// Fails unless the names still lead to the files that are open.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when the database was replaced: it can be opened again. [`ErrorKind::Protocol`] when its
    /// log or index was: this process cannot use it any more.
    pub(super) fn check(&self) -> Result<()> {
        if !file::identify(&self.path).is_ok_and(|now| now == self.database) {
            let path = self.path.display();
            let text = format!("{path} was deleted, moved or replaced while it was open: its locks are gone");
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        if companions(&self.real) == [self.log, self.index] { Ok(()) } else { Err(lost_log(&self.path)) }
    }

    /// Whether the log or its index was deleted or replaced under this process, but not the database.
    ///
    /// Such a connection must not be closed: SQLite would copy the lost log over what others have written since.
    pub(super) fn has_lost_its_log(&self) -> bool {
        self.check().is_err_and(|error| error.kind() == ErrorKind::Protocol)
    }
}

/// The log and its index.
fn companions(real: &Path) -> [Option<FileId>; 2] {
    ["-wal", "-shm"].map(|suffix| {
        let mut name = real.as_os_str().to_owned();
        name.push(suffix);
        file::identify(Path::new(&name)).ok()
    })
}

fn lost_log(path: &Path) -> Error {
    let text = format!(
        "{0}-wal or {0}-shm was deleted or replaced while this process had it open: its locks are gone, and it cannot use \
         the file again before it is restarted",
        path.display()
    );
    Error::new(ErrorKind::Protocol, text)
}
