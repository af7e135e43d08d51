//! What is said to the server and what it says: names of locks, lengths of time, values and errors.

use std::time::Duration;

use onelock_core::{Error, ErrorKind, Result};
use sqlx::Row as _;
use sqlx::mysql::MySqlRow;

use super::ENDLESS;
use crate::mysql::error::{explain, number};

/// What the names begin with by which a session says what it holds.
pub(super) fn own(session: i64) -> String {
    format!("onelock/{session}/")
}

/// Conditions on the locks of the session with this prefix: that it says this number, this tag.
pub(super) fn says_number(own: &str, number: i64) -> String {
    let [low, high] = [("0", number & 4095), ("1", number >> 12)]
        .map(|(part, value)| format!("IS_USED_LOCK({}) = :holder", quoted(&format!("{own}{part}/{value}"))));
    format!("{low} AND {high}")
}

pub(super) fn says_tag(own: &str, tag: &str) -> String {
    format!("IS_USED_LOCK({}) = :holder", quoted(&format!("{own}t/{tag}")))
}

/// What was made here: it has no quote.
pub(super) fn quoted(text: &str) -> String {
    format!("'{text}'")
}

/// How long a session may be idle, in whole seconds, never less than asked; zero is for ever.
pub(super) fn seconds(idle: Duration) -> i64 {
    if idle.is_zero() {
        return ENDLESS;
    }
    let seconds = i64::try_from(idle.as_nanos().div_ceil(1_000_000_000)).unwrap_or(ENDLESS);
    seconds.min(ENDLESS)
}

/// What the server makes of it.
pub(super) fn whole(idle: Duration) -> Duration {
    Duration::from_secs(u64::try_from(seconds(idle)).unwrap_or(u64::MAX))
}

pub(super) fn int(row: &MySqlRow, column: usize) -> Result<i64> {
    row.try_get(column).map_err(explain)
}

pub(super) fn maybe(row: &MySqlRow, column: usize) -> Result<Option<i64>> {
    row.try_get(column).map_err(explain)
}

pub(super) fn bytes(row: &MySqlRow, column: usize) -> Result<Vec<u8>> {
    row.try_get(column).map_err(explain)
}

/// Whether the sum of a session and a question's number is that of the session that was asked and its last question.
pub(super) fn in_step(sum: i64, (session, last): (i64, i64)) -> Result<()> {
    match sum.wrapping_sub(session) {
        asked if asked == last => Ok(()),
        // The answer to another question: the connection is out of step.
        earlier if (0..last).contains(&earlier) => Err(strange()),
        // The lock belongs to the session: another one, by a proxy, is not ours.
        _ => Err(proxied()),
    }
}

/// An answer of one text: its parts, which have a blank between them.
pub(super) struct Said<'a> {
    parts: [&'a str; 5],
    count: usize,
}

impl<'a> Said<'a> {
    /// The one text of a row, where it answers this question of this session.
    pub(super) fn read(row: &'a MySqlRow, due: (i64, i64)) -> Result<Self> {
        Self::of(row.try_get_unchecked(0).map_err(explain)?, due)
    }

    fn of(text: &'a str, due: (i64, i64)) -> Result<Self> {
        let mut said = Self { parts: [""; 5], count: 0 };
        for part in text.split(' ') {
            *said.parts.get_mut(said.count).ok_or_else(strange)? = part;
            said.count += 1;
        }
        in_step(said.number(0)?, due)?;
        Ok(said)
    }

    fn parts(&self) -> &[&'a str] {
        &self.parts[..self.count]
    }

    fn number(&self, at: usize) -> Result<i64> {
        self.parts().get(at).and_then(|part| part.parse().ok()).ok_or_else(strange)
    }

    /// The number under which the lock was taken for this tag; `None` where it is another's. A number that the session does
    /// not show, or an earlier one that it shows yet, is not believed.
    pub(super) fn granted(&self, tag: &str) -> Result<Option<i64>> {
        match self.parts() {
            [_, whose] if *whose == tag => Ok(None),
            [_, whose, number, shown] if *whose == tag && number == shown => self.number(2).map(Some),
            _ => Err(strange()),
        }
    }

    /// `None` where the lock that was to be given back was not held; else as [`granted`](Self::granted) says of the other.
    pub(super) fn swapped(&self, tag: &str) -> Result<Option<Option<i64>>> {
        match self.parts() {
            [_, whose, "0"] if *whose == tag => Ok(None),
            [_, whose, "1"] if *whose == tag => Ok(Some(None)),
            [_, whose, "1", number, shown] if *whose == tag && number == shown => {
                self.number(3).map(|number| Some(Some(number)))
            }
            _ => Err(strange()),
        }
    }

    /// Whether the lock that was given back was held.
    pub(super) fn held(&self) -> Result<bool> {
        match self.parts() {
            [_, "1", _] => Ok(true),
            [_, "0", _] => Ok(false),
            _ => Err(strange()),
        }
    }
}

pub(super) fn strange() -> Error {
    Error::new(ErrorKind::Protocol, "the server answered something else than asked")
}

pub(super) fn proxied() -> Error {
    let text = "behind a proxy that moves requests between sessions there are no session locks; use a direct connection, \
                or mysql://";
    Error::new(ErrorKind::Unsupported, text)
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
    fn no_lease_becomes_shorter_or_endless() {
        let secs = Duration::from_secs;
        assert_eq!([seconds(Duration::from_nanos(1)), seconds(secs(3))], [1, 3]);
        assert_eq!(seconds(secs(3) + Duration::from_millis(1)), 4);
        assert_eq!(seconds(Duration::ZERO), ENDLESS);
        assert!(seconds(super::super::CAPABILITIES.max_lease) < ENDLESS);
    }

    #[test]
    fn a_grant_shows_its_number_and_whose_it_is() {
        let granted = |text| Said::of(text, (5, 2)).and_then(|said| said.granted("tag")).map_err(drop);
        assert_eq!(granted("7 tag 42 42"), Ok(Some(42)));
        assert_eq!(granted("7 tag"), Ok(None));
        let all = ["7 tag 42 41", "7 tag 42", "7 gat 42 42", "7 gat", "7", "", "7 tag x x", "7 tag 42 42 42"];
        for strange in all {
            assert_eq!(granted(strange), Err(()), "{strange}");
        }
    }

    #[test]
    fn of_a_swap_both_halves_are_told() {
        let swapped = |text| Said::of(text, (5, 2)).and_then(|said| said.swapped("tag")).map_err(drop);
        assert_eq!(swapped("7 tag 0"), Ok(None));
        assert_eq!(swapped("7 tag 1"), Ok(Some(None)));
        assert_eq!(swapped("7 tag 1 42 42"), Ok(Some(Some(42))));
        let all = [
            "7 tag 1 42 41",
            "7 tag 1 42",
            "7 gat 1",
            "7 gat 1 42 42",
            "7 tag",
            "7",
            "7 tag 0 42 42",
            "7 tag 1 x x",
        ];
        for strange in all {
            assert_eq!(swapped(strange), Err(()), "{strange}");
        }
    }

    #[test]
    fn what_was_given_back_was_held_or_not() {
        let held = |text| Said::of(text, (5, 2)).and_then(|said| said.held()).map_err(drop);
        assert_eq!((held("7 1 3"), held("7 0 0")), (Ok(true), Ok(false)));
        assert!(["7", "7 1", "7 2 3", "7 1 3 4"].map(held).iter().all(Result::is_err));
    }

    #[test]
    fn an_answer_to_another_question_is_none() {
        let kind = |text| Said::of(text, (5, 2)).map(drop).map_err(|error| error.kind());
        assert_eq!(kind("7"), Ok(()));
        assert!(
            ["6 1 3", "5", "", "x 1 3", "7.0"].into_iter().all(|text| kind(text) == Err(ErrorKind::Protocol))
        );
        // Another session's.
        assert!(["8 1 3", "4", "-7"].into_iter().all(|text| kind(text) == Err(ErrorKind::Unsupported)));
    }

    #[test]
    fn a_key_is_as_long_as_a_name_may_be() {
        let key =
            crate::session::names::Key::new("space", &onelock_core::LockName::new("orders/42").unwrap());
        let mut text = String::new();
        crate::mysql::sql::Value::Digest(key.long()).write(&mut text);
        let name = text.trim_matches('\'');
        assert!(name.len() == 64 && name.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase()));
        assert!(text.starts_with(&format!("'{:016x}", key.short())));
    }

    #[test]
    fn names_of_locks_are_short_enough_for_every_server() {
        let longest = [format!("{}1/{}", own(i64::MAX), i64::MAX >> 12), own(i64::MAX) + "t/abcdefghijk"];
        assert!(longest.iter().all(|name| name.len() <= 64), "{longest:?}");
        let says = says_number("onelock/7/", (5 << 36) | (4095 << 12) | 1);
        for name in ["onelock/7/0/1'".to_owned(), format!("onelock/7/1/{}'", (5 << 24) | 4095)] {
            assert!(says.contains(&name), "{says}");
        }
    }
}
