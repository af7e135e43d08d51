//! What is asked about entries that wait.

use std::time::Duration;

use onelock_core::{FencingToken, HolderId, Mode, Result, Wake};

use super::bells::{Heard, Pair};
use super::link::{Lane, Link};
use super::rows::{self, Entries};
use super::sql::Value;

/// How many entries one request looks at.
pub(super) const ENTRIES: usize = 512;

/// What to look at: an entry that waits.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) name: String,
    pub(super) token: FencingToken,
    pub(super) holder: HolderId,
    pub(super) mode: Mode,
}

/// How a request looks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stay {
    /// Before the first look.
    pub(super) pause: Duration,
    /// Before each further one.
    pub(super) again: Duration,
    /// How many at most, where one entry waits and its turn is next.
    pub(super) looks: u32,
}

/// Looks at the only one, by its key: what to tell it, and how many have to leave before it holds.
pub(super) async fn look_one(link: &Link, mark: &Mark, stay: Stay) -> Result<(Option<Wake>, u32)> {
    let (holder, ahead) = (mark.holder.as_u128().to_be_bytes(), ahead(mark.mode, true));
    let values = [
        ("pause", micros(stay.pause)),
        ("again", micros(stay.again)),
        ("looks", Value::Int(stay.looks.into())),
        ("name", Value::Bytes(mark.name.as_bytes())),
        ("number", Value::Int(mark.token.get())),
        ("holder", Value::Bytes(&holder)),
        ("ahead", Value::Part(&ahead)),
    ];
    let template = if stay.looks > 1 { &link.sql.look_on } else { &link.sql.look_one };
    link.ask(Lane::Look, &template.fill(&values), |rows, _| rows::look_one(rows, mark.token, mark.holder))
        .await
}

/// The same after the bell of who is right ahead was rung, or after `limit`; `once` without what `stay` says.
pub(super) async fn listen(
    link: &Link,
    mark: &Mark,
    bells: &Pair,
    limit: Duration,
    once: bool,
    stay: Stay,
) -> Result<(Option<Wake>, Heard)> {
    let (holder, ahead) = (mark.holder.as_u128().to_be_bytes(), ahead(Mode::Exclusive, true));
    let values = [
        ("own", Value::Text(&bells.own)),
        ("before", Value::Text(&bells.before)),
        ("behind", Value::Int(bells.behind)),
        ("pause", micros(stay.pause)),
        ("limit", micros(limit)),
        ("again", micros(stay.again)),
        ("looks", Value::Int(stay.looks.into())),
        ("name", Value::Bytes(mark.name.as_bytes())),
        ("number", Value::Int(mark.token.get())),
        ("holder", Value::Bytes(&holder)),
        ("ahead", Value::Part(&ahead)),
    ];
    let request = if once { (&link.hear, &link.sql.hear) } else { (&link.listen, &link.sql.listen) };
    link.ask_often(Lane::Look, request, &values, |rows, _| rows::heard(rows, mark)).await
}

/// Looks at many; gives which of them are there when some are not.
pub(super) async fn look_many(
    link: &Link,
    marks: &[Mark],
    pause: Duration,
) -> Result<(rows::Look, Option<Entries>)> {
    let mut holders = String::new();
    for (item, mark) in marks.iter().enumerate() {
        holders.push_str(if item > 0 { "," } else { "" });
        Value::Bytes(&mark.holder.as_u128().to_be_bytes()).write(&mut holders);
    }
    let values = [("pause", micros(pause)), ("holders", Value::Part(&holders))];
    let look = link.ask(Lane::Look, &link.sql.look.fill(&values), |rows, _| rows::look(rows)).await?;
    if look.there >= marks.len() {
        return Ok((look, None));
    }
    let there = link.ask(Lane::Look, &link.sql.there.fill(&values), |rows, _| rows::entries(rows)).await?;
    Ok((look, Some(there)))
}

fn micros(pause: Duration) -> Value<'static> {
    Value::Int(i64::try_from(pause.as_micros()).unwrap_or(0))
}

/// A condition: whether the entry holds. For a request that has set `@now`.
pub(super) fn condition(link: &Link, mark: &Mark) -> String {
    let (there, held) = (there(link, mark), holds(link, mark));
    format!("CAST(({there} AND {held}) AS SIGNED)")
}

fn there(link: &Link, mark: &Mark) -> String {
    let Line { table, name, token } = line(link, mark);
    format!("EXISTS (SELECT 1 FROM {table} WHERE name = {name} AND number = {token} AND ends > @now)")
}

/// Whether everything ahead of the entry is of its mode, and less than there is room for. Looks at no more entries than
/// decide that.
fn holds(link: &Link, mark: &Mark) -> String {
    let Line { table, name, token } = line(link, mark);
    let ahead = format!("SELECT 1 FROM {table} WHERE name = {name} AND number < {token} AND ends > @now");
    let mode = mark.mode.to_string();
    let (mode, room) = (literal(mode.as_bytes()), room(mark.mode));
    match mark.mode {
        Mode::Exclusive => format!("NOT EXISTS ({ahead})"),
        Mode::Shared => format!("NOT EXISTS ({ahead} AND mode <> {mode})"),
        Mode::Permit(_) => format!(
            "NOT EXISTS ({ahead} AND mode <> {mode}) AND (SELECT COUNT(*) FROM ({ahead} LIMIT {room}) a) < {room}"
        ),
    }
}

struct Line {
    table: String,
    name: String,
    token: i64,
}

fn line(link: &Link, mark: &Mark) -> Line {
    let table = format!("`{}line`", link.sql.prefix);
    Line { table, name: literal(mark.name.as_bytes()), token: mark.token.get() }
}

fn literal(bytes: &[u8]) -> String {
    let mut out = String::new();
    Value::Bytes(bytes).write(&mut out);
    out
}

/// How many of the entries that a request goes over have to leave before one of this mode holds: all ahead of it, and `itself` if
/// it is one of them.
pub(super) fn ahead(mode: Mode, itself: bool) -> String {
    let text = literal(mode.to_string().as_bytes());
    let own = u32::from(itself);
    match mode {
        Mode::Exclusive => format!("COUNT(*) - {own}"),
        Mode::Shared => format!("COUNT(IF(mode = {text}, NULL, 1))"),
        Mode::Permit(limit) => format!(
            "COUNT(IF(mode = {text}, NULL, 1)) + GREATEST(0, COUNT(IF(mode = {text}, 1, NULL)) - {})",
            i64::from(limit.get()) - i64::from(1 - own)
        ),
    }
}

/// How many entries of this mode hold at most.
pub(super) fn room(mode: Mode) -> u32 {
    match mode {
        Mode::Exclusive => 1,
        Mode::Shared => u32::MAX,
        Mode::Permit(limit) => limit.get(),
    }
}
