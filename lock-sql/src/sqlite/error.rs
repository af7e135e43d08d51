//! What SQLite's errors mean for a lock.

use onelock_core::{Error, ErrorKind};
use rusqlite::ffi;

/// Why a transaction ended early.
#[derive(Debug)]
pub(super) enum Fault {
    /// The transaction cannot go on.
    Sql(rusqlite::Error),
    /// The file makes no sense to who reads it without a lock; it may be about to be made or to grow.
    Unsettled(rusqlite::Error),
    /// Only this verb fails; it has written nothing and the transaction may go on with others.
    Verb(Error),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Verb(error)
    }
}

impl Fault {
    /// Whether another connection is in the way, so that asking again soon may help.
    pub(super) fn is_busy(&self) -> bool {
        match self {
            Self::Sql(error) => matches!(code(error), Some(ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED)),
            Self::Unsettled(_) => true,
            Self::Verb(_) => false,
        }
    }

    /// Whether there was no room on the disk.
    pub(super) fn is_full(&self) -> bool {
        matches!(self, Self::Sql(error) if code(error) == Some(ffi::SQLITE_FULL))
    }

    /// The error for the caller.
    pub(super) fn into_error(self) -> Error {
        match self {
            Self::Sql(error) | Self::Unsettled(error) => explain(error),
            Self::Verb(error) => error,
        }
    }
}

/// SQLite's primary result code: the low byte of the extended one.
pub(super) fn code(error: &rusqlite::Error) -> Option<i32> {
    error.sqlite_error().map(|e| e.extended_code & 0xff)
}

pub(crate) fn explain(error: rusqlite::Error) -> Error {
    use ErrorKind::{Denied, Foreign, Full, Protocol, Unavailable};
    let (kind, text) = match code(&error) {
        Some(ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED) => {
            (Unavailable, "other writers kept the file busy; nothing was changed")
        }
        Some(ffi::SQLITE_PERM | ffi::SQLITE_AUTH) => (Denied, "access to the file was denied"),
        Some(ffi::SQLITE_READONLY) => (Denied, "the file or its folder cannot be written"),
        Some(ffi::SQLITE_NOMEM) => (Unavailable, "SQLite ran out of memory"),
        Some(ffi::SQLITE_IOERR) => (Unavailable, "reading or writing the file failed"),
        Some(ffi::SQLITE_FULL) => (Full, "the disk or the file is full; nothing was changed"),
        Some(ffi::SQLITE_CANTOPEN) => {
            (Unavailable, "the file or its -wal and -shm companions cannot be opened")
        }
        Some(ffi::SQLITE_CORRUPT) => (Protocol, "the file is damaged"),
        Some(ffi::SQLITE_FORMAT | ffi::SQLITE_NOTADB) => (Foreign, "the file is not an SQLite database"),
        // A missing table or column, a broken constraint, a value of another type: not what we wrote.
        Some(ffi::SQLITE_ERROR | ffi::SQLITE_SCHEMA | ffi::SQLITE_CONSTRAINT | ffi::SQLITE_MISMATCH)
        | None => (Foreign, "the tables in the file are not as onelock made them"),
        Some(_) => (Protocol, "SQLite failed"),
    };
    Error::new(kind, format!("{text} ({error})")).caused_by(error)
}
