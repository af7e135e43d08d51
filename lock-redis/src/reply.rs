//! Reads what the scripts answer. Whatever is not exactly as expected is an error, never a grant.

use std::time::Duration;

use onelock_core::{
    Busy, EntryView, Error, ErrorKind, FencingToken, ForeignView, Grant, HolderId, LockName, Mode, Place,
    Release, Renewal, Renewed, Result, Snapshot, Standing,
};
use redis::{Cmd, FromRedisValue, Value};

use crate::error;

/// What the server said to one call: an error of its own is a value here.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) value: Value,
    /// How many replicas had it in time, where that was fewer than asked for.
    pub(crate) short: Option<i64>,
}

impl Answer {
    /// Whether only some of the keys are there.
    pub(crate) fn is_partial(&self) -> bool {
        error::has_code(&self.value, &["TRYAGAIN"])
    }

    /// The value, where enough replicas had it.
    pub(crate) fn value(self) -> Result<Value> {
        let value = error::sound(self.value)?;
        self.short.map_or(Ok(value), |replicas| Err(error::too_few(replicas)))
    }
}

/// Whole milliseconds, as the scripts take them, rounded up. Bounded far above what the core allows: the sum of two and the clock
/// stays far below 2^53.
pub(crate) fn millis(time: Duration) -> u64 {
    time.as_nanos().div_ceil(1_000_000).min(1 << 45) as u64
}

/// Asks for an entry, with the lock-delay in its leases.
pub(crate) fn ask(asked: &Renewal, command: &mut Cmd) {
    let delay = millis(asked.ticket.delay);
    command.arg(asked.ticket.holder.to_hex());
    command.arg(millis(asked.lease) + delay).arg(millis(asked.waiter_lease) + delay);
}

pub(crate) fn standing(value: Value, asked: &Renewal) -> Result<Standing> {
    let text: String = read(value)?;
    Ok(match renewed(&text, asked)? {
        Renewed::Held(grant) => Standing::Held(grant),
        Renewed::Waiting(place) => Standing::Waiting(place),
        Renewed::NotHeld => Standing::Busy(Busy::new(after(words::<3>(&text)?[2])?)),
    })
}

/// The answers of one renewal script, item by item.
pub(crate) fn renewals(answer: Result<Answer>, asked: &[&Renewal]) -> Vec<Result<Renewed>> {
    let texts = answer.and_then(Answer::value).and_then(|value| {
        let texts: Vec<String> = read(value)?;
        if texts.len() == asked.len() { Ok(texts) } else { Err(malformed("another number of answers")) }
    });
    match texts {
        Ok(texts) => texts.iter().zip(asked).map(|(text, asked)| renewed(text, asked)).collect(),
        Err(error) => vec![Err(error); asked.len()],
    }
}

/// Status, number, and the holder of a grant, or for all others the time until asking again may help; or -1 and an error.
fn renewed(text: &str, asked: &Renewal) -> Result<Renewed> {
    if let Some(error) = text.strip_prefix("-1 ") {
        let (code, detail) = error.split_once(' ').unwrap_or((error, ""));
        return Err(error::from_server(code.trim_start_matches('-'), detail));
    }
    let [status, token, last] = words(text)?;
    Ok(match status {
        "0" => after(last).map(|_| Renewed::NotHeld)?,
        // An answer to somebody else's question, as a connection out of step gives, is no grant.
        "1" if HolderId::from_hex(last) == Some(asked.ticket.holder) => {
            Renewed::Held(Grant::new(number(token)?, Duration::from_millis(millis(asked.lease))))
        }
        "2" => {
            let lease = Duration::from_millis(millis(asked.waiter_lease));
            let place = Place::new(number::<FencingToken>(token)?, lease);
            Renewed::Waiting(place.retry_after(after(last)?))
        }
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

pub(crate) fn release(value: Value) -> Result<Release> {
    Ok(if read(value)? { Release::Released } else { Release::NotHeld })
}

pub(crate) fn snapshot(value: Value, name: &LockName) -> Result<Snapshot> {
    let texts: Vec<String> = read(value)?;
    let [now, entries @ ..] = &texts[..] else { return Err(malformed("no time")) };
    let now: i64 = number(now)?;
    let since = |from: i64, to: i64| Duration::from_millis(to.saturating_sub(from).max(0).unsigned_abs());
    let mut snapshot = Snapshot::empty(name.clone());
    for text in entries {
        let [status, ends, entry] = words(text)?;
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
            _ => return Err(malformed(text)),
        }
    }
    // The server keeps holders by the end of their lease.
    snapshot.holders.sort_by_key(|view| view.token);
    Ok(snapshot)
}

/// What the server answered, as what was expected.
pub(crate) fn read<T: FromRedisValue>(value: Value) -> Result<T> {
    redis::from_redis_value(value).map_err(|error| malformed(&error.to_string()))
}

/// Shows what came, shortened: it may be anything.
fn malformed(text: &str) -> Error {
    let shown: String = text.chars().take(160).collect();
    Error::new(ErrorKind::Protocol, format!("the server answered in another way than expected: {shown}"))
}

#[cfg(test)]
mod tests {
    use onelock_core::Ticket;
    use proptest::prelude::*;

    use super::*;

    const L: Duration = Duration::from_secs(3);
    const WL: Duration = Duration::from_secs(1);

    fn asked() -> Renewal {
        let ticket = Ticket::new(LockName::new("n").unwrap(), HolderId::from_u128(0xbeef), Mode::Exclusive);
        Renewal::new(ticket, L, WL)
    }

    fn answer(value: Value) -> Result<Answer> {
        Ok(Answer { value, short: None })
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn a_grant_is_exactly_a_grant() {
        let holder = asked().ticket.holder.to_hex();
        let held = Grant::new(FencingToken::new(7).unwrap(), L);
        assert_eq!(standing(text(&format!("1 7 {holder}")), &asked()).unwrap(), Standing::Held(held));
        let busy = Busy::new(Some(Duration::from_millis(5)));
        assert_eq!(standing(text("0 0 5"), &asked()).unwrap(), Standing::Busy(busy));
        let bad = ["1 7 -1", "3 7 -1", "2 7 -2", "2 7", "1 7", "0 0 x", "2 0 5", "", "1", "-1"];
        let grants = ["0", "-7", "x", "7.0", ""].map(|number| format!("1 {number} {holder}"));
        let others = [format!("1 7 {}", "0".repeat(32)), format!("1 7 {holder} 0"), format!("1 7 {holder} ")];
        let values =
            [Value::Nil, Value::Okay, Value::Int(1), Value::Array(vec![]), Value::BulkString(vec![255])];
        let texts = bad.map(text).into_iter().chain(grants.iter().chain(&others).map(|bad| text(bad)));
        for bad in texts.chain(values) {
            let shown = format!("{bad:?}");
            assert_eq!(standing(bad, &asked()).unwrap_err().kind(), ErrorKind::Protocol, "{shown}");
        }
    }

    #[test]
    fn a_failed_item_spoils_no_other() {
        let grant = format!("1 7 {}", asked().ticket.holder.to_hex());
        let parts = [&grant, "-1 WRONGTYPE Operation against a key", "0 0 -1"].map(text).to_vec();
        let answers = renewals(answer(Value::Array(parts.clone())), &[&asked(); 3]);
        assert!(matches!(answers[0], Ok(Renewed::Held(_))));
        assert_eq!(answers[1].as_ref().unwrap_err().kind(), ErrorKind::Foreign);
        assert_eq!(*answers[2].as_ref().unwrap(), Renewed::NotHeld);
        let others = renewals(answer(Value::Array(parts)), &[&asked(); 2]);
        assert_eq!(others.len(), 2);
        assert!(others.iter().all(|other| other.as_ref().unwrap_err().kind() == ErrorKind::Protocol));
    }

    #[test]
    fn a_note_keeps_its_spaces() {
        let answer = Value::Array(vec![text("90"), text("1 130 4 p3 80 a  b ")]);
        let shown = snapshot(answer, &LockName::new("n").unwrap()).unwrap();
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
                parts.iter().for_each(|part| drop(standing(part.clone(), &asked())));
                let value = || Value::Array(parts.clone());
                let _ = (standing(value(), &asked()).is_ok(), renewals(answer(value()), &[&asked()]));
                let _ = (snapshot(value(), &name).is_ok(), release(value()).is_ok());
                parts.push(Value::BulkString(bytes.clone()));
            }
        }
    }
}
