//! What the server's errors mean for a lock.

use onelock_core::{Error, ErrorKind};
use sqlx::mysql::MySqlDatabaseError;

use crate::hosts::as_ours;
use crate::pool::Fault;

/// The server's number of an error; `None` when it did not come from the server.
pub(crate) fn number(error: &sqlx::Error) -> Option<u16> {
    let sqlx::Error::Database(error) = error else { return None };
    error.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
}

/// What an error means for the connection.
pub(crate) fn fault(error: &sqlx::Error) -> Fault {
    match number(error) {
        // Deadlock, MariaDB's changed record, what a group has certified before.
        Some(1213 | 1020 | 3101) => Fault::Collision,
        Some(1205) => Fault::Locked,
        Some(1040 | 1203 | 1226) => Fault::Full,
        None => Fault::Broken,
        Some(code) if ends_connection(code) => Fault::Broken,
        Some(_) => Fault::Other,
    }
}

/// Shutdown, kill, idle for too long; read-only, a group that is in trouble: another server may be the primary by now.
fn ends_connection(code: u16) -> bool {
    matches!(code, 1053 | 1077..=1080 | 1094 | DEMOTED | 1290 | 1792 | 1836 | 1927 | 3100 | 3168 | 4031)
}

/// What primary.sql fails with on a server that takes no writes.
pub(super) const DEMOTED: u16 = 1242;

/// The error for the caller. No text that the driver or the server gives holds a password.
pub(crate) fn explain(error: sqlx::Error) -> Error {
    if let Some(ours) = as_ours(&error) {
        return ours;
    }
    let (kind, text) = match number(&error) {
        Some(code) => server(code),
        None => match &error {
            sqlx::Error::Io(_) => (ErrorKind::Unavailable, "the connection to the server failed"),
            sqlx::Error::Tls(_) => (ErrorKind::Denied, "no secure connection to the server"),
            sqlx::Error::Configuration(_) => (ErrorKind::InvalidConfig, "the connection cannot be set up"),
            _ => (ErrorKind::Protocol, "the server's answer makes no sense"),
        },
    };
    Error::new(kind, format!("{text}: {error}")).caused_by(error)
}

fn server(code: u16) -> (ErrorKind, &'static str) {
    match code {
        1044 | 1045 | 1698 | 1396 | 1820 | 1862 | 3118 | 3955 | 4150 | 4151 => {
            (ErrorKind::Denied, "the server refuses this user")
        }
        1095 | 1142 | 1143 | 1227 | 1370 | 1410 => (ErrorKind::Denied, "the user lacks a right"),
        DEMOTED | 1290 | 1792 | 1836 => (ErrorKind::Unavailable, "the server is read-only"),
        1049 | 1046 => (ErrorKind::InvalidConfig, "there is no such database; create it first"),
        1146 => (ErrorKind::Foreign, "a table of onelock is missing"),
        1054 | 1048 | 1136 | 1366 | 1406 | 1364 => {
            (ErrorKind::Foreign, "the tables are not those of this version of onelock")
        }
        1690 | 3819 | 4025 => (ErrorKind::Full, "no number is left for this name"),
        1021 | 1026 | 1030 | 1114 | 1180 => (ErrorKind::Full, "the server cannot write"),
        1205 | 1213 | 1020 | 3101 => (ErrorKind::Unavailable, "other transactions were in the way too long"),
        1040 | 1203 | 1226 => (ErrorKind::Unavailable, "the server takes no more connections"),
        1037 | 1038 | 1041 | 1158..=1161 | 1317 | 1461 | 1969 | 3024 => {
            (ErrorKind::Unavailable, "the server cannot serve now")
        }
        1153 => (ErrorKind::InvalidConfig, "max_allowed_packet of the server is too small"),
        1665 => (ErrorKind::InvalidConfig, "READ COMMITTED needs binlog_format=ROW or MIXED"),
        code if ends_connection(code) => (ErrorKind::Unavailable, "the server cannot serve now"),
        _ => (ErrorKind::Protocol, "an unexpected error of the server"),
    }
}
