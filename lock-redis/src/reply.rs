//! Reads what the scripts answer. Whatever is not exactly as expected is an error, never a grant.

use std::time::Duration;

use onelock_core::{
    Busy, EntryView, Error, ErrorKind, ForeignView, Grant, HolderId, LockName, Mode, Place, Raise, Release,
    Renewed, Result, Snapshot, Standing,
};
use redis::Value;

use crate::error;

/// What was asked for: an answer to somebody else's question, as a connection out of step gives, is no grant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) holder: HolderId,
    pub(crate) lease: Duration,
    pub(crate) waiter_lease: Duration,
}

impl Asked {
    pub(crate) fn new(holder: HolderId, (lease, waiter_lease): (Duration, Duration)) -> Self {
        Self { holder, lease, waiter_lease }
    }
}

pub(crate) fn standing(value: &Value, asked: Asked) -> Result<Standing> {
    let text = string(value)?;
    Ok(match renewed(text, asked)? {
        Renewed::Held(grant) => Standing::Held(grant),
        Renewed::Waiting(place) => Standing::Waiting(place),
        Renewed::NotHeld => Standing::Busy(Busy::new(after(words::<3>(text)?[2])?)),
    })
}

/// The answers of one renewal script, item by item.
pub(crate) fn renewals(value: &Value, asked: &[Asked]) -> Result<Vec<Result<Renewed>>> {
    let parts = items(value)?;
    if parts.len() != asked.len() {
        return Err(nonsense("a renewal", value));
    }
    Ok(parts.iter().zip(asked).map(|(part, asked)| renewed(string(part)?, *asked)).collect())
}

/// Status, number, and the holder of a grant, or for all others the time until asking again may help; or -1 and an error.
fn renewed(text: &str, asked: Asked) -> Result<Renewed> {
    if let Some(error) = text.strip_prefix("-1 ") {
        let (code, detail) = error.split_once(' ').unwrap_or((error, ""));
        return Err(error::from_server(code.trim_start_matches('-'), detail));
    }
    let [status, token, last] = words(text)?;
    Ok(match status {
        "0" => {
            after(last)?;
            Renewed::NotHeld
        }
        "1" if last != asked.holder.to_hex() => {
            return Err(Error::new(ErrorKind::Protocol, "the server answered somebody else's question"));
        }
        "1" => Renewed::Held(Grant::new(number(token)?, asked.lease)),
        "2" => Renewed::Waiting(
            Place::new(number::<onelock_core::FencingToken>(token)?, asked.waiter_lease)
                .retry_after(after(last)?),
        ),
        _ => return Err(malformed(text)),
    })
}

fn after(text: &str) -> Result<Option<Duration>> {
    if text == "-1" { Ok(None) } else { number(text).map(|ms| Some(Duration::from_millis(ms))) }
}

fn words<const N: usize>(text: &str) -> Result<[&str; N]> {
    let words: Vec<_> = text.splitn(N, ' ').collect();
    words.try_into().map_err(|_| malformed(text))
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T> {
    text.parse().map_err(|_| malformed(text))
}

fn yes(value: &Value) -> Result<bool> {
    match integer(value)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(nonsense("yes or no", value)),
    }
}

pub(crate) fn release(value: &Value) -> Result<Release> {
    Ok(if yes(value)? { Release::Released } else { Release::NotHeld })
}

pub(crate) fn raise(value: &Value) -> Result<Raise> {
    Ok(if yes(value)? { Raise::Raised } else { Raise::NotHeld })
}

pub(crate) fn snapshot(value: &Value, name: &LockName) -> Result<Snapshot> {
    let [now, entries @ ..] = items(value)? else { return Err(nonsense("an inspection", value)) };
    let now: i64 = number(string(now)?)?;
    let since = |from: i64, to: i64| Duration::from_millis(to.saturating_sub(from).max(0).unsigned_abs());
    let mut snapshot = Snapshot::empty(name.clone());
    for entry in entries {
        let [status, ends, entry] = words(string(entry)?)?;
        let ends: i64 = number(ends)?;
        if status == "3" {
            snapshot.foreign.push(ForeignView::new((ends >= 0).then(|| since(now, ends))));
            continue;
        }
        let [token, mode, joined, note] = words(entry)?;
        let view = EntryView::new(number(token)?, mode.parse::<Mode>()?, note)
            .age(since(number(joined)?, now))
            .expires_in(since(now, ends));
        match status {
            "1" => snapshot.holders.push(view),
            "2" => snapshot.waiters.push(view),
            _ => return Err(nonsense("an inspection", value)),
        }
    }
    // The server keeps holders by the end of their lease.
    snapshot.holders.sort_by_key(|view| view.token);
    Ok(snapshot)
}

/// Holders and waiters of each of `names` lines; `None` for one that is not ours.
pub(crate) fn counts(value: &Value, names: usize) -> Result<Vec<Option<(usize, usize)>>> {
    let parts = items(value)?;
    if parts.len() != names {
        return Err(nonsense("a count", value));
    }
    let count = |part| match string(part)? {
        "" => Ok(None),
        text => {
            let [holders, waiters] = words(text)?;
            Ok(Some((number(holders)?, number(waiters)?)))
        }
    };
    parts.iter().map(count).collect()
}

/// The next cursor of a SCAN and the keys it found.
pub(crate) fn scan(value: &Value) -> Result<(u64, &[Value])> {
    let [cursor, keys] = items(value)? else { return Err(nonsense("a scan", value)) };
    let cursor = string(cursor)?.parse().map_err(|_| nonsense("a scan", value))?;
    Ok((cursor, items(keys)?))
}

pub(crate) fn items(value: &Value) -> Result<&[Value]> {
    match value {
        Value::Array(items) => Ok(items),
        Value::ServerError(e) => Err(error::from_server(e.code(), e.details().unwrap_or_default())),
        _ => Err(nonsense("a list", value)),
    }
}

pub(crate) fn integer(value: &Value) -> Result<i64> {
    match value {
        Value::Int(number) => Ok(*number),
        Value::ServerError(e) => Err(error::from_server(e.code(), e.details().unwrap_or_default())),
        _ => Err(nonsense("a number", value)),
    }
}

pub(crate) fn bytes(value: &Value) -> Result<&[u8]> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.as_bytes()),
        Value::VerbatimString { text, .. } => Ok(text.as_bytes()),
        _ => Err(nonsense("a text", value)),
    }
}

pub(crate) fn string(value: &Value) -> Result<&str> {
    std::str::from_utf8(bytes(value)?).map_err(|_| nonsense("a text", value))
}

fn malformed(text: &str) -> Error {
    nonsense("another text", &Value::SimpleString(text.to_owned()))
}

/// Says what was expected and shows the shape of what came, shortened: it may be anything.
fn nonsense(expected: &str, value: &Value) -> Error {
    let shown: String = format!("{value:?}").chars().take(120).collect();
    Error::new(ErrorKind::Protocol, format!("expected {expected}, the server answered {shown}"))
}

#[cfg(test)]
mod tests {
    use onelock_core::FencingToken;
    use proptest::prelude::*;

    use super::*;

    const L: Duration = Duration::from_secs(3);
    const WL: Duration = Duration::from_secs(1);

    fn asked() -> Asked {
        Asked::new(HolderId::from_u128(0xbeef), (L, WL))
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn a_grant_is_exactly_a_grant() {
        let holder = asked().holder.to_hex();
        let held = Grant::new(FencingToken::new(7).unwrap(), L);
        assert_eq!(standing(&text(&format!("1 7 {holder}")), asked()).unwrap(), Standing::Held(held));
        let busy = Busy::new(Some(Duration::from_millis(5)));
        assert_eq!(standing(&text("0 0 5"), asked()).unwrap(), Standing::Busy(busy));
        let bad = ["1 7 -1", "3 7 -1", "2 7 -2", "2 7", "1 7", "0 0 x", "2 0 5", "", "1", "-1"];
        let grants = ["0", "-7", "x", "7.0", ""].map(|number| format!("1 {number} {holder}"));
        let others = [format!("1 7 {}", "0".repeat(32)), format!("1 7 {holder} 0"), format!("1 7 {holder} ")];
        let values =
            [Value::Nil, Value::Okay, Value::Int(1), Value::Array(vec![]), Value::BulkString(vec![255])];
        let texts = bad.map(text).into_iter().chain(grants.iter().chain(&others).map(|bad| text(bad)));
        for bad in texts.chain(values) {
            assert_eq!(standing(&bad, asked()).unwrap_err().kind(), ErrorKind::Protocol, "{bad:?}");
        }
    }

    #[test]
    fn a_failed_item_spoils_no_other() {
        let grant = format!("1 7 {}", asked().holder.to_hex());
        let parts = [&grant, "-1 WRONGTYPE Operation against a key", "0 0 -1"].map(text).to_vec();
        let answers = renewals(&Value::Array(parts.clone()), &[asked(); 3]).unwrap();
        assert!(matches!(answers[0], Ok(Renewed::Held(_))));
        assert_eq!(answers[1].as_ref().unwrap_err().kind(), ErrorKind::Foreign);
        assert_eq!(*answers[2].as_ref().unwrap(), Renewed::NotHeld);
        assert_eq!(renewals(&Value::Array(parts), &[asked(); 2]).unwrap_err().kind(), ErrorKind::Protocol);
    }

    #[test]
    fn a_note_keeps_its_spaces() {
        let answer = Value::Array(vec![text("90"), text("1 130 4 p3 80 a  b ")]);
        let shown = snapshot(&answer, &LockName::new("n").unwrap()).unwrap();
        assert_eq!(shown.holders[0].note, "a  b ");
        assert_eq!(shown.holders[0].age, Some(Duration::from_millis(10)));
        assert_eq!(shown.holders[0].expires_in, Some(Duration::from_millis(40)));
    }

    proptest! {
        #[test]
        fn no_answer_panics(parts in proptest::collection::vec("[0-9xsp -]{0,12}|.*", 0..8), bytes in any::<Vec<u8>>()) {
            let mut parts: Vec<_> = parts.iter().map(|part| text(part)).collect();
            let name = LockName::new("n").unwrap();
            for _ in 0..2 {
                parts.iter().for_each(|part| drop(standing(part, asked())));
                let value = Value::Array(parts.clone());
                let _ = (standing(&value, asked()).is_ok(), renewals(&value, &[asked()]).is_ok());
                let _ = (snapshot(&value, &name).is_ok(), counts(&value, 2).is_ok(), scan(&value).is_ok());
                parts.push(Value::BulkString(bytes.clone()));
            }
        }
    }
}
