//! What the driver and the server say, as errors of ours.

use onelock_core::{Error, ErrorKind, TokenEpoch};
use redis::RedisError;

const REFUSED: &str = "the user or the password is not accepted";
const NO_RESP3: &str = "the server does not speak RESP3; Redis 7.0 or later is needed";

/// An error of the driver: of the connection, or the server's answer.
pub(crate) fn from_redis(error: &RedisError) -> Error {
    use redis::ErrorKind as Kind;
    // Of several commands the first that failed.
    if let Some([(_, said), ..]) = error.clone().into_server_errors().as_deref() {
        return from_server(said.code(), said.details().unwrap_or_default());
    }
    // The driver's own text: it holds addresses and reasons, never a password. Of an answer that it cannot read it holds all.
    let text: String = error.to_string().chars().take(300).collect();
    let (kind, text) = match (error.kind(), error.code()) {
        (Kind::AuthenticationFailed, _) => (ErrorKind::Denied, format!("{REFUSED}: {text}")),
        (Kind::RESP3NotSupported, _) => (ErrorKind::Unsupported, NO_RESP3.to_owned()),
        (Kind::InvalidClientConfig, _) => (ErrorKind::InvalidConfig, text),
        (Kind::Io, _) if error.is_timeout() => (ErrorKind::Timeout, text),
        (Kind::Io, _) => (ErrorKind::Unavailable, text),
        // The connection broke within an answer.
        (Kind::Parse, _) if text.contains("end of input") => (ErrorKind::Unavailable, text),
        (_, Some(code)) => return from_server(code, error.detail().unwrap_or_default()),
        _ => (ErrorKind::Protocol, text),
    };
    Error::new(kind, text)
}

/// An error answer of the server: its first word and the rest.
pub(crate) fn from_server(code: &str, detail: &str) -> Error {
    // Redis ends an error in a script with where it happened, and an unknown command with its arguments: those of `HELLO` hold the
    // password.
    let shorter = |text, end| str::split(text, end).next().unwrap_or_default();
    let short = [" script: ", ", with args"].into_iter().fold(detail, shorter);
    let said = format!("{code} {short}");
    let said = said.trim_end();
    if let Some(refused) = refused_epoch(code, short) {
        return refused;
    }
    const TEXTS: [(&str, ErrorKind, &str); 13] = [
        ("not an integer", ErrorKind::Foreign, "a counter of ours is not a number"),
        ("without any password", ErrorKind::Denied, REFUSED),
        ("can't run this command or subcommand", ErrorKind::Denied, "a right is missing"),
        ("no permissions", ErrorKind::Denied, "a right is missing"),
        ("max number of clients", ErrorKind::Unavailable, "the server takes no more connections"),
        ("WAIT cannot be used with replica", ErrorKind::Unavailable, "the server is a replica"),
        ("No such master", ErrorKind::Unavailable, "it watches no master of this name"),
        ("DB index", ErrorKind::InvalidConfig, "there is no such database"),
        ("SELECT is not allowed in cluster", ErrorKind::InvalidConfig, "the server is a node of a cluster"),
        ("cluster support disabled", ErrorKind::InvalidConfig, "the server is no node of a cluster"),
        ("unknown command 'HELLO'", ErrorKind::Unsupported, NO_RESP3),
        ("unknown command 'SENTINEL'", ErrorKind::InvalidConfig, "the server is no sentinel"),
        ("unknown command 'SCRIPT'", ErrorKind::InvalidConfig, "it runs no scripts: is it a sentinel?"),
    ];
    let (kind, what) = match code {
        "ONELOCKFOREIGN" => (ErrorKind::Foreign, ""),
        "ONELOCKLIMIT" => (ErrorKind::Full, ""),
        "ONELOCKGATE" | "ONELOCKEPOCH" => (ErrorKind::Unavailable, ""),
        "WRONGPASS" | "NOAUTH" => (ErrorKind::Denied, REFUSED),
        "NOPERM" => (ErrorKind::Denied, "a right is missing"),
        "WRONGTYPE" => (ErrorKind::Foreign, "a key holds another type"),
        "OOM" => (ErrorKind::Full, "the server has no memory left"),
        "READONLY" => (ErrorKind::Unavailable, "the server is a replica"),
        "LOADING" | "MASTERDOWN" | "NOREPLICAS" | "MISCONF" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN"
        | "MOVED" | "ASK" | "UNBLOCKED" => (ErrorKind::Unavailable, "the server cannot serve now"),
        _ => {
            let known = TEXTS.iter().find(|(text, ..)| code == "ERR" && short.contains(text));
            known.map_or((ErrorKind::Protocol, "the server answered"), |(_, kind, what)| (*kind, *what))
        }
    };
    let message = if what.is_empty() { short.to_owned() } else { format!("{what}: {said}") };
    let error = Error::new(kind, message);
    // Decided before the script's first write.
    if code == "ONELOCKGATE" { error.unsent() } else { error }
}

/// The refusal of a token epoch: the client's and the largest that has joined.
fn refused_epoch(code: &str, epochs: &str) -> Option<Error> {
    let epoch = |text: &str| TokenEpoch::new(text.parse().ok()?).ok();
    let (ours, largest) = epochs.split_once(' ').filter(|_| code == "ONELOCKTOKENEPOCH")?;
    Some(epoch(ours)?.refused(epoch(largest)?))
}

/// An answer that is not an error of the server.
pub(crate) fn sound(answer: redis::Value) -> onelock_core::Result<redis::Value> {
    answer.extract_error().map_err(|error| from_redis(&error))
}

/// Whether it is an error with one of these codes.
pub(crate) fn has_code(answer: &redis::Value, codes: &[&str]) -> bool {
    matches!(answer, redis::Value::ServerError(said) if codes.contains(&said.code()))
}

pub(crate) fn miscounted() -> Error {
    Error::new(ErrorKind::Protocol, "the server gave another number of answers than asked for")
}

pub(crate) fn too_few(replicas: i64) -> Error {
    let text = format!("only {replicas} replicas had it in time, fewer than the option `replicas` asks for");
    Error::new(ErrorKind::Unavailable, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_the_server_are_sorted_honestly() {
        let kind = |text: &str| {
            let (code, detail) = text.split_once(' ').unwrap();
            let error = from_server(code, detail);
            (error.kind(), error.is_unclear())
        };
        assert_eq!(kind("WRONGPASS invalid username-password pair"), (ErrorKind::Denied, false));
        assert_eq!(kind("NOAUTH Authentication required."), (ErrorKind::Denied, false));
        assert_eq!(kind("NOPERM User x has no permissions"), (ErrorKind::Denied, false));
        assert_eq!(kind("WRONGTYPE Operation against a key"), (ErrorKind::Foreign, false));
        assert_eq!(kind("OOM command not allowed"), (ErrorKind::Full, false));
        assert_eq!(kind("READONLY You can't write"), (ErrorKind::Unavailable, true));
        assert_eq!(kind("LOADING Redis is loading"), (ErrorKind::Unavailable, true));
        assert_eq!(kind("UNBLOCKED force unblock"), (ErrorKind::Unavailable, true));
        assert_eq!(kind("ERR WAIT cannot be used with replica instances"), (ErrorKind::Unavailable, true));
        assert_eq!(kind("ERR value is not an integer or out of range"), (ErrorKind::Foreign, false));
        assert_eq!(kind("ONELOCKTOKENEPOCH 2 3"), (ErrorKind::InvalidConfig, false));
        assert_eq!(kind("ONELOCKTOKENEPOCH 2 x"), (ErrorKind::Protocol, true));
        assert_eq!(kind("ERR something new"), (ErrorKind::Protocol, true));
        assert_eq!(kind("ONELOCKGATE the server has restarted"), (ErrorKind::Unavailable, false));
        let text = from_server("WRONGTYPE", "Operation script: abc, on @user_script:3.").to_string();
        assert!(!text.contains("user_script"), "{text}");
    }
}
