//! Reads what the scripts answer. Whatever is not exactly as expected is an error, never a grant.

use std::time::Duration;

use onelock_core::{
    Busy, EntryView, Error, ErrorKind, FencingToken, ForeignView, Grant, HolderId, LockName, Mode, Place,
    Raise, Release, Renewed, Result, Snapshot, Standing,
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
    let [status, number, after] = items(value)? else { return Err(nonsense("an acquire", value)) };
    Ok(match entry(integer(status)?, number, after, asked)? {
        Renewed::Held(grant) => Standing::Held(grant),
        Renewed::Waiting(place) => Standing::Waiting(place),
        Renewed::NotHeld => Standing::Busy(Busy { retry_after: after_of(after)? }),
    })
}

/// The answers of one renewal script, item by item.
pub(crate) fn renewals(value: &Value, asked: &[Asked]) -> Result<Vec<Result<Renewed>>> {
    let parts = items(value)?;
    if parts.len() != 3 * asked.len() {
        return Err(nonsense("a renewal", value));
    }
    Ok(parts.chunks_exact(3).zip(asked).map(|(part, asked)| renewal(part, *asked)).collect())
}

fn renewal(part: &[Value], asked: Asked) -> Result<Renewed> {
    let [status, number, after] = part else { return Err(Error::new(ErrorKind::Protocol, "a short answer")) };
    match integer(status)? {
        -1 => {
            let text = string(number)?;
            let (code, detail) = text.split_once(' ').unwrap_or((text, ""));
            Err(error::from_server(code.trim_start_matches('-'), detail))
        }
        status => entry(status, number, after, asked),
    }
}

/// The third part is the holder of a grant, and for all others the time until asking again may help.
fn entry(status: i64, number: &Value, last: &Value, asked: Asked) -> Result<Renewed> {
    let token = || FencingToken::new(integer(number)?);
    Ok(match status {
        0 => {
            integer(number)?;
            after_of(last)?;
            Renewed::NotHeld
        }
        1 if string(last)? != asked.holder.to_hex() => {
            return Err(Error::new(ErrorKind::Protocol, "the server answered somebody else's question"));
        }
        1 => Renewed::Held(Grant { token: token()?, lease: asked.lease }),
        2 => Renewed::Waiting(Place {
            token: Some(token()?),
            lease: asked.waiter_lease,
            retry_after: after_of(last)?,
        }),
        _ => return Err(Error::new(ErrorKind::Protocol, format!("{status} is not a standing"))),
    })
}

fn after_of(after: &Value) -> Result<Option<Duration>> {
    match integer(after)? {
        -1 => Ok(None),
        after => u64::try_from(after)
            .map(|ms| Some(Duration::from_millis(ms)))
            .map_err(|_| Error::new(ErrorKind::Protocol, format!("{after} ms is not a time to wait"))),
    }
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
    let now = integer(now)?;
    let mut snapshot = Snapshot::empty(name.clone());
    if entries.len() % 3 != 0 {
        return Err(nonsense("an inspection", value));
    }
    for part in entries.chunks_exact(3) {
        let ends = integer(&part[1])?;
        if integer(&part[0])? == 3 {
            let expires_in =
                (ends >= 0).then(|| Duration::from_millis(ends.saturating_sub(now).max(0).unsigned_abs()));
            snapshot.foreign.push(ForeignView { expires_in });
            continue;
        }
        let view = view(now, ends, string(&part[2])?)?;
        match integer(&part[0])? {
            1 => snapshot.holders.push(view),
            2 => snapshot.waiters.push(view),
            _ => return Err(nonsense("an inspection", value)),
        }
    }
    // The server keeps holders by the end of their lease.
    snapshot.holders.sort_by_key(|view| view.token);
    Ok(snapshot)
}

fn view(now: i64, ends: i64, text: &str) -> Result<EntryView> {
    let bad = || Error::new(ErrorKind::Foreign, "an entry of this line was not written by onelock");
    let mut parts = text.splitn(4, ' ');
    let mut next = || parts.next().ok_or_else(bad);
    let (number, mode, joined, note) = (next()?, next()?, next()?, next()?);
    let joined: i64 = joined.parse().map_err(|_| bad())?;
    let since = |from: i64, to: i64| Duration::from_millis(to.saturating_sub(from).max(0).unsigned_abs());
    Ok(EntryView {
        token: number.parse().map_err(|_| bad())?,
        mode: mode.parse::<Mode>()?,
        note: note.to_owned(),
        age: Some(since(joined, now)),
        expires_in: Some(since(now, ends)),
    })
}

/// Holders and waiters of each of `names` lines; `None` for one that is not ours.
pub(crate) fn counts(value: &Value, names: usize) -> Result<Vec<Option<(usize, usize)>>> {
    let parts = items(value)?;
    if parts.len() != 2 * names {
        return Err(nonsense("a count", value));
    }
    parts
        .chunks_exact(2)
        .map(|part| match (integer(&part[0])?, integer(&part[1])?) {
            (-1, -1) => Ok(None),
            (holders, waiters) => {
                let count = |n: i64| usize::try_from(n).map_err(|_| nonsense("a count", value));
                Ok(Some((count(holders)?, count(waiters)?)))
            }
        })
        .collect()
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

/// Says what was expected and shows the shape of what came, shortened: it may be anything.
fn nonsense(expected: &str, value: &Value) -> Error {
    let shown: String = format!("{value:?}").chars().take(120).collect();
    Error::new(ErrorKind::Protocol, format!("expected {expected}, the server answered {shown}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const L: Duration = Duration::from_secs(3);
    const WL: Duration = Duration::from_secs(1);

    fn asked() -> Asked {
        Asked::new(HolderId::from_u128(0xbeef), (L, WL))
    }

    /// A grant of `number` to the holder of [`asked`].
    fn grant(number: i64) -> [Value; 3] {
        let holder = Value::BulkString(asked().holder.to_hex().into_bytes());
        [Value::Int(1), Value::Int(number), holder]
    }

    fn ints(numbers: &[i64]) -> Value {
        Value::Array(numbers.iter().copied().map(Value::Int).collect())
    }

    #[test]
    fn a_grant_is_exactly_a_grant() {
        let held = Grant { token: FencingToken::new(7).unwrap(), lease: L };
        assert_eq!(standing(&Value::Array(grant(7).into()), asked()).unwrap(), Standing::Held(held));
        let busy = standing(&ints(&[0, 0, 5]), asked()).unwrap();
        assert_eq!(busy, Standing::Busy(Busy { retry_after: Some(Duration::from_millis(5)) }));
        for bad in [
            Value::Array(grant(0).into()),
            Value::Array(grant(-7).into()),
            // Nobody's, and somebody else's.
            ints(&[1, 7, -1]),
            Value::Array(vec![Value::Int(1), Value::Int(7), Value::BulkString(b"0".repeat(32))]),
            Value::Array([&grant(7)[..], &[Value::Int(0)]].concat()),
            ints(&[3, 7, -1]),
            ints(&[-1, 7, -1]),
            ints(&[1, 7]),
            ints(&[1, 7, -1, 0]),
            ints(&[2, 7, -2]),
            ints(&[]),
            Value::Nil,
            Value::Okay,
            Value::Int(1),
            Value::Array(vec![Value::Int(1), Value::Double(7.0), Value::Int(-1)]),
            Value::Array(vec![Value::Boolean(true), Value::Int(7), Value::Int(-1)]),
        ] {
            assert_eq!(standing(&bad, asked()).unwrap_err().kind(), ErrorKind::Protocol, "{bad:?}");
        }
    }

    #[test]
    fn a_failed_item_spoils_no_other() {
        let mut parts = grant(7).to_vec();
        parts.push(Value::Int(-1));
        parts.push(Value::BulkString(b"WRONGTYPE Operation against a key".to_vec()));
        parts.extend([Value::Int(-1), Value::Int(0), Value::Int(0), Value::Int(-1)]);
        let answers = renewals(&Value::Array(parts.clone()), &[asked(); 3]).unwrap();
        assert!(matches!(answers[0], Ok(Renewed::Held(_))));
        assert_eq!(answers[1].as_ref().unwrap_err().kind(), ErrorKind::Foreign);
        assert_eq!(*answers[2].as_ref().unwrap(), Renewed::NotHeld);
        parts.pop();
        assert_eq!(renewals(&Value::Array(parts), &[asked(); 3]).unwrap_err().kind(), ErrorKind::Protocol);
    }

    #[test]
    fn a_note_keeps_its_spaces() {
        let entry =
            vec![Value::Int(90), Value::Int(1), Value::Int(130), Value::BulkString(b"4 p3 80 a  b ".into())];
        let shown = snapshot(&Value::Array(entry), &LockName::new("n").unwrap()).unwrap();
        assert_eq!(shown.holders[0].note, "a  b ");
        assert_eq!(shown.holders[0].age, Some(Duration::from_millis(10)));
        assert_eq!(shown.holders[0].expires_in, Some(Duration::from_millis(40)));
    }

    proptest! {
        #[test]
        fn no_answer_panics(numbers in proptest::collection::vec(any::<i64>(), 0..8), text in any::<Vec<u8>>()) {
            let mut parts: Vec<_> = numbers.into_iter().map(Value::Int).collect();
            let name = LockName::new("n").unwrap();
            for _ in 0..2 {
                let value = Value::Array(parts.clone());
                let _ = (standing(&value, asked()).is_ok(), renewals(&value, &[asked()]).is_ok());
                let _ = (snapshot(&value, &name).is_ok(), counts(&value, 2).is_ok(), scan(&value).is_ok());
                parts.push(Value::BulkString(text.clone()));
            }
        }
    }
}
