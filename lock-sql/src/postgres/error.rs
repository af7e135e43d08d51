//! What PostgreSQL's errors mean for a lock.

use lock_core::{Error, ErrorKind};

/// The five letters of the server's answer; `None` when it is not the server that answers.
pub(super) fn state(error: &sqlx::Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

/// Whether the functions are missing.
pub(super) fn is_missing(error: &sqlx::Error) -> bool {
    matches!(state(error).as_deref(), Some("42883" | "3F000" | "42P01"))
}

/// Whether a pooler gave us a connection that does not know what we prepared on another one.
pub(super) fn is_unprepared(error: &sqlx::Error) -> bool {
    matches!(state(error).as_deref(), Some("26000" | "42P05" | "08P01"))
}

/// Whether the server rolled back and the same may work now.
pub(super) fn is_collision(error: &sqlx::Error) -> bool {
    matches!(state(error).as_deref(), Some("40001" | "40P01"))
}

/// Puts an error of the driver into words. The server's own text holds no password.
pub(super) fn explain(error: sqlx::Error) -> Error {
    let state = state(&error);
    let (kind, text) = match state.as_deref() {
        Some("42501") => (
            ErrorKind::Denied,
            "a right is missing; the user needs USAGE on the schema and EXECUTE on its functions, or let its \
             owner make them first",
        ),
        Some(s) if s.starts_with("28") => (ErrorKind::Denied, "the server refused the login"),
        Some("3D000") => (ErrorKind::InvalidConfig, "there is no such database"),
        Some("53100" | "53400") => (ErrorKind::Full, "the server is full"),
        Some("22003") => (ErrorKind::Full, "the numbers of this name are used up"),
        Some("25001") => (ErrorKind::InvalidConfig, "the session's transactions are not READ COMMITTED"),
        Some("25006") => (ErrorKind::Unavailable, "the server takes no writes: is it a standby?"),
        Some("42883" | "3F000" | "42P01" | "42703" | "42804") => {
            (ErrorKind::Foreign, "the schema is not as onelock made it")
        }
        Some(s) if ["08", "40", "53", "55", "57", "58"].iter().any(|class| s.starts_with(class)) => {
            (ErrorKind::Unavailable, "the server could not serve")
        }
        Some(_) => (ErrorKind::Protocol, "the server failed"),
        None => match &error {
            sqlx::Error::Tls(_) => (ErrorKind::Denied, "no secure connection"),
            sqlx::Error::Configuration(_) => (ErrorKind::InvalidConfig, "the connection cannot be set up"),
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::RowNotFound => {
                (ErrorKind::Protocol, "the server answered something else than asked")
            }
            _ => (ErrorKind::Unavailable, "the connection failed"),
        },
    };
    Error::new(kind, format!("{text} ({error})")).caused_by(error)
}
