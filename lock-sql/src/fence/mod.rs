//! Fencing in the caller's own transaction: the watermark of a name is a row beside the data.
//!
//! The check comes first in the transaction that writes. It locks the row of the name until the transaction ends, so that a later
//! holder's check waits for the commit, and nothing of it can fall between. A refused transaction is rolled back by the caller.
//! Outside of a transaction a check protects nothing that follows it.
//!
//! Each module has the statements as text, for any driver, and a function that runs them. The table may be in another database than
//! the locks: tokens of every store do, and of one table only one store should be the source. A transaction that waited for the row
//! longer than its isolation level allows fails as any other does that met a concurrent change, and may be run again.

#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(all(feature = "sqlite", unix))]
pub mod sqlite;

/// The error of a check. The table is the caller's to make, and not in the schema of the locks.
#[cfg(any(feature = "mysql", feature = "postgres", all(feature = "sqlite", unix)))]
fn failed(error: onelock_core::Error) -> onelock_core::Error {
    use onelock_core::{Error, ErrorKind};
    let error = match error.kind() {
        ErrorKind::Foreign => {
            let text = "there is no table `onelock_fence` as `fence::…::SCHEMA` makes it: run that once in this database";
            Error::new(ErrorKind::Foreign, text).caused_by(error)
        }
        _ => error,
    };
    error.during("fence")
}
