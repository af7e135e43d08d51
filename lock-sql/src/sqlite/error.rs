//! What SQLite's errors mean for a lock.

use onelock_core::{Error, ErrorKind};
use rusqlite::ErrorCode as Code;

/// Why a transaction, or a verb within one, ended early.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) error: Error,
    /// What SQLite says: the transaction cannot go on. None where SQLite has not failed: a verb that ends so has written nothing.
    pub(super) code: Option<Code>,
}

impl Fault {
    /// Another connection is in the way: asking again soon may help.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self.code, Some(Code::DatabaseBusy | Code::DatabaseLocked))
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self { code: error.sqlite_error_code(), error: explain(error) }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self { error, code: None }
    }
}

pub(crate) fn explain(error: rusqlite::Error) -> Error {
    use ErrorKind::{Denied, Foreign, Full, Protocol, Unavailable};
    // For the index of the log: SQLite does not call that full.
    let no_room =
        error.sqlite_error().is_some_and(|e| e.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE);
    let (kind, text) = match error.sqlite_error_code() {
        Some(Code::DatabaseBusy | Code::DatabaseLocked) => {
            (Unavailable, "other writers kept the file busy; nothing was changed")
        }
        Some(Code::PermissionDenied | Code::AuthorizationForStatementDenied) => {
            (Denied, "access to the file was denied")
        }
        Some(Code::ReadOnly) => (Denied, "the file or its folder cannot be written"),
        Some(Code::SystemIoFailure) if !no_room => (Unavailable, "reading or writing the file failed"),
        Some(Code::DiskFull | Code::SystemIoFailure) => {
            (Full, "the disk or the file is full; nothing was changed")
        }
        Some(Code::CannotOpen) => (Unavailable, "the file or its -wal and -shm companions cannot be opened"),
        Some(Code::OutOfMemory) => (Unavailable, "SQLite ran out of memory"),
        Some(Code::DatabaseCorrupt) => (Protocol, "the file is damaged"),
        Some(Code::NotADatabase) => (Foreign, "the file is not an SQLite database"),
        // A missing table or column, a broken constraint, a value of another type: not what we wrote.
        Some(Code::Unknown | Code::SchemaChanged | Code::ConstraintViolation | Code::TypeMismatch) | None => {
            (Foreign, "the tables in the file are not as onelock made them")
        }
        Some(_) => (Protocol, "SQLite failed"),
    };
    Error::new(kind, format!("{text} ({error})")).caused_by(error)
}
