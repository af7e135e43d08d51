//! What SQLite's errors mean for a lock.

use onelock_core::{Error, ErrorKind};

/// Why a step ended early.
#[derive(Debug)]
pub(super) enum Fault {
    /// The transaction cannot go on.
    Sql(sqlx::Error),
    /// The file makes no sense to who reads it without a lock; it may be about to be made or to grow.
    Unsettled(sqlx::Error),
    /// Only this verb fails; it has written nothing and the transaction may go on with others.
    Verb(Error),
}

impl From<sqlx::Error> for Fault {
    fn from(error: sqlx::Error) -> Self {
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
            Self::Sql(error) => matches!(primary(error), Some(BUSY | LOCKED)),
            Self::Unsettled(_) => true,
            Self::Verb(_) => false,
        }
    }

    /// Whether there was no room on the disk.
    pub(super) fn is_full(&self) -> bool {
        matches!(self, Self::Sql(error) if primary(error) == Some(FULL))
    }

    /// The error for the caller.
    pub(super) fn into_error(self) -> Error {
        match self {
            Self::Sql(error) | Self::Unsettled(error) => explain(error),
            Self::Verb(error) => error,
        }
    }
}

const BUSY: u32 = 5;
const LOCKED: u32 = 6;
const FULL: u32 = 13;
const NOT_A_DATABASE: u32 = 26;

/// SQLite's primary result code: the low byte of the extended one.
fn primary(error: &sqlx::Error) -> Option<u32> {
    let code: u32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(code & 0xff)
}

/// Whether `ROLLBACK` failed only because SQLite had rolled back by itself.
pub(super) fn was_rolled_back(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|e| e.message().contains("no transaction is active"))
}

/// Whether SQLite could not open a file, which it does not explain.
pub(super) fn cannot_open(error: &sqlx::Error) -> bool {
    primary(error) == Some(14)
}

/// Whether the file has not the head of an SQLite database.
pub(super) fn is_no_database(error: &sqlx::Error) -> bool {
    primary(error) == Some(NOT_A_DATABASE)
}

/// Puts an error of SQLite into words.
pub(super) fn explain(error: sqlx::Error) -> Error {
    let (kind, text) = match primary(&error) {
        Some(BUSY | LOCKED) => {
            (ErrorKind::Unavailable, "other writers kept the file busy; nothing was changed")
        }
        Some(3 | 23) => (ErrorKind::Denied, "access to the file was denied"),
        Some(8) => (ErrorKind::Denied, "the file or its folder cannot be written"),
        Some(7) => (ErrorKind::Unavailable, "SQLite ran out of memory"),
        Some(10) => (ErrorKind::Unavailable, "reading or writing the file failed"),
        Some(FULL) => (ErrorKind::Full, "the disk or the file is full; nothing was changed"),
        Some(14) => (ErrorKind::Unavailable, "the file or its -wal and -shm companions cannot be opened"),
        Some(11) => (ErrorKind::Protocol, "the file is damaged"),
        Some(24 | NOT_A_DATABASE) => (ErrorKind::Foreign, "the file is not an SQLite database"),
        // A missing table or column, a value of another type, a broken constraint: not what we wrote.
        Some(1 | 17 | 19 | 20) => (ErrorKind::Foreign, "the tables in the file are not as onelock made them"),
        Some(_) => (ErrorKind::Protocol, "SQLite failed"),
        None => match error {
            sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::Decode(_)
            | sqlx::Error::ColumnIndexOutOfBounds { .. }
            | sqlx::Error::RowNotFound => {
                (ErrorKind::Foreign, "the tables in the file hold what onelock did not write")
            }
            _ => (ErrorKind::Unavailable, "the connection to the file failed"),
        },
    };
    Error::new(kind, format!("{text} ({error})")).caused_by(error)
}
