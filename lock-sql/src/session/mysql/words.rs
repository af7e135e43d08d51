//! What is said to the server and what it says: lengths of time and errors.

use std::time::Duration;

use onelock_core::{Error, ErrorKind};

use crate::mysql::error::{explain, number};

/// As good as no limit for a wait: a year, the longest the server takes.
pub(super) const ENDLESS: i64 = 31_536_000;

/// How long a session may be idle, in whole seconds, never less than asked, and never no time, which the server would refuse.
pub(super) fn seconds(idle: Duration) -> u128 {
    idle.as_nanos().div_ceil(1_000_000_000).clamp(1, ENDLESS.unsigned_abs().into())
}

/// What an error says of the session.
pub(super) fn ended(error: sqlx::Error) -> Error {
    // By somebody's order, for having been idle, with the server.
    if matches!(number(&error), Some(1053 | 1927 | 3169 | 4031)) {
        return Error::new(ErrorKind::Lost, "the server has ended the session").caused_by(error);
    }
    explain(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_lease_becomes_shorter() {
        let secs = Duration::from_secs;
        assert_eq!([seconds(Duration::from_nanos(1)), seconds(secs(3))], [1, 3]);
        assert_eq!(seconds(secs(3) + Duration::from_millis(1)), 4);
        assert_eq!(seconds(Duration::ZERO), 1);
    }

    #[test]
    fn a_key_is_as_long_as_a_name_may_be() {
        let key =
            crate::session::names::Key::new("space", &onelock_core::LockName::new("orders/42").unwrap());
        let mut text = String::new();
        crate::mysql::sql::Value::Digest(*key.long()).write(&mut text);
        let name = text.trim_matches('\'');
        assert!(name.len() == 64 && name.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase()));
        assert!(text.starts_with(&format!("'{:016x}", key.short())));
    }
}
