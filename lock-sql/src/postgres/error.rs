//! What PostgreSQL's errors mean for a lock.

use onelock_core::{Error, ErrorKind, TokenEpoch};
use sqlx::postgres::PgDatabaseError;

use crate::hosts::as_ours;
use crate::pool::Fault;

/// The five letters of the server's answer; `None` when it is not the server that answers.
pub(crate) fn state(error: &sqlx::Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

fn is(error: &sqlx::Error, states: &[&str]) -> bool {
    state(error).is_some_and(|state| states.contains(&state.as_str()))
}

/// What an error means for the connection. A server that is shut down and a pooler that has lost its server say so; a standby takes
/// no writes, and the next connection may find the primary.
pub(crate) fn fault(error: &sqlx::Error) -> Fault {
    match state(error).as_deref() {
        // The server, or a pooler, has no connection left for us.
        Some("53300" | "08P01") => Fault::Full,
        Some("40001" | "40P01") => Fault::Collision,
        Some("55P03") => Fault::Locked,
        // The last two: the session does not know, or does not know as ours, what we prepared in it.
        None | Some("25006" | "26000" | "42P05") => Fault::Broken,
        // 25P: its transaction took too long.
        Some(state) if ["57P", "08", "25P"].iter().any(|class| state.starts_with(class)) => Fault::Broken,
        Some(_) => Fault::Other,
    }
}

/// As [`explain`], naming the rights that what was asked needs, where one is missing.
pub(crate) fn denied(error: sqlx::Error, needs: &str) -> Error {
    if !is(&error, &["42501"]) {
        return explain(error);
    }
    // The server's text names the object in any language.
    Error::new(ErrorKind::Denied, format!("a right is missing: this needs {needs} ({error})"))
        .caused_by(error)
}

/// Puts an error of the driver into words. The server's own text holds no password.
pub(crate) fn explain(error: sqlx::Error) -> Error {
    if let Some(ours) = as_ours(&error) {
        return ours;
    }
    let state = state(&error);
    if state.as_deref() == Some("OL002")
        && let Some((asked, newest)) = epochs(&error)
    {
        return asked.refused(newest).caused_by(error);
    }
    let (kind, text) = match state.as_deref() {
        Some("42501") => (ErrorKind::Denied, "a right is missing"),
        Some(s) if s.starts_with("28") => (ErrorKind::Denied, "the server refused the login"),
        Some("3D000") => (ErrorKind::InvalidConfig, "there is no such database"),
        Some("53100" | "53400") => (ErrorKind::Full, "the server is full"),
        Some("22003" | "2200H") => (ErrorKind::Full, "the numbers of this name are used up"),
        Some("25001") => (ErrorKind::InvalidConfig, "the session's transactions are not READ COMMITTED"),
        Some("25006") => {
            (ErrorKind::Unavailable, "the server takes no writes: a standby, or set to be read-only")
        }
        Some("OL003") => (ErrorKind::InvalidConfig, "a number of a later token epoch than the store's"),
        Some("OL001") => (ErrorKind::Denied, "the role may not write"),
        Some("42883" | "3F000" | "42P01" | "42703" | "42804") => {
            (ErrorKind::Foreign, "the schema is not as onelock made it")
        }
        Some(s) if ["08", "25P", "40", "53", "55", "57", "58"].iter().any(|class| s.starts_with(class)) => {
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

/// The token epoch that was asked for and the largest that was served, of the error that refuses the first.
fn epochs(error: &sqlx::Error) -> Option<(TokenEpoch, TokenEpoch)> {
    let detail = error.as_database_error()?.try_downcast_ref::<PgDatabaseError>()?.detail()?;
    let (asked, newest) = detail.split_once(' ')?;
    let read = |text: &str| TokenEpoch::new(text.parse().ok()?).ok();
    Some((read(asked)?, read(newest)?))
}
