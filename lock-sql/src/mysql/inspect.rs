//! Looking at one line, and at the names that have one.

use onelock_core::mode::holders;
use onelock_core::{EntryView, ListedName, Listing, LockName, Mode, Note, Page, Result, Snapshot};

use super::keys::{self, key};
use super::line::{Cells, duration, foreign};
use super::pool::{Answer, Lane, Pool};
use super::sql::Value;

pub(super) async fn inspect(pool: &Pool, name: &LockName) -> Result<Snapshot> {
    let sql = pool.sql.inspect.fill(&[("name", Value::Bytes(key(name).as_bytes()))]);
    pool.ask(Lane::Verb, &sql, |answer| snapshot(answer, name)).await
}

fn snapshot(answer: &Answer, name: &LockName) -> Result<Snapshot> {
    let mut views = Vec::with_capacity(answer.rows.len());
    for row in answer.rows.iter().map(Cells) {
        let note = Note::new(row.text(2)?).map_err(|_| foreign("a malformed note"))?;
        views.push(
            EntryView::new(row.token(0)?, row.text(1)?.parse()?, note.as_str())
                .age(duration(row.int(3)?))
                .expires_in(duration(row.int(4)?)),
        );
    }
    let count = holders(views.iter().map(|view| view.mode));
    let waiters = views.split_off(count);
    Ok(Snapshot::new(name.clone(), views, waiters))
}

pub(super) async fn list(pool: &Pool, prefix: &str, page: &Page) -> Result<Listing> {
    let after = page.cursor.as_deref().map(LockName::new).transpose()?;
    let after = after.as_ref().map(key).unwrap_or_default();
    let limit = page.limit.clamp(1, Page::MAX);
    let (from, until) = keys::range(prefix);
    let sql = pool.sql.list.fill(&[
        ("from", Value::Bytes(from.as_bytes())),
        ("until", Value::Bytes(until.as_bytes())),
        ("after", Value::Bytes(after.as_bytes())),
        ("limit", Value::Int(i64::try_from(limit).unwrap_or(1) + 1)),
    ]);
    pool.ask(Lane::Verb, &sql, |answer| listing(answer, limit)).await
}

/// A page of at most `limit` names, of rows of at most one name more.
fn listing(answer: &Answer, limit: usize) -> Result<Listing> {
    let mut lines: Vec<(LockName, Vec<Mode>)> = Vec::new();
    for row in answer.rows.iter().map(Cells) {
        let name = keys::name(&row.text(0)?).ok_or_else(|| foreign("a name that is not one"))?;
        let mode = row.text(1)?.parse()?;
        match lines.last_mut() {
            Some((last, modes)) if *last == name => modes.push(mode),
            _ => lines.push((name, vec![mode])),
        }
    }
    let more = lines.len() > limit;
    lines.truncate(limit);
    let next = lines.last().filter(|_| more).map(|(name, _)| name.as_str().to_owned());
    let listed = |(name, modes): (LockName, Vec<Mode>)| {
        let holders = holders(modes.iter().copied());
        ListedName::new(name, holders, modes.len() - holders)
    };
    Ok(Listing::new(lines.into_iter().map(listed).collect(), next))
}
