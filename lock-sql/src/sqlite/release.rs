//! Leaving a line: at the holder's wish, or at somebody else's.

use std::time::Duration;

use onelock_core::{FencingToken, HolderId, LockName, Release, Ticket, Wake};
use rusqlite::OptionalExtension as _;

use super::error::Fault;
use super::keys::Key;
use super::line::Transaction;

pub(super) fn release(tx: &mut Transaction<'_>, ticket: &Ticket) -> Result<Release, Fault> {
    remove(tx, &ticket.name, Some(ticket.holder), |tx, key| tx.left.push(key))
}

pub(super) fn evict(
    tx: &mut Transaction<'_>,
    name: &LockName,
    token: FencingToken,
) -> Result<Release, Fault> {
    let mut holder = tx.database.sql.prepare_cached(include_str!("sql/evict.sql"))?;
    let holder = holder.query_row((name.encoded(), token.get()), |row| row.get(0)).optional()?;
    remove(tx, name, holder.map(Key::holder), |tx, key| tx.woken.push((key, Wake::Ask)))
}

fn remove(
    tx: &mut Transaction<'_>,
    name: &LockName,
    holder: Option<HolderId>,
    tell: impl FnOnce(&mut Transaction<'_>, Key),
) -> Result<Release, Fault> {
    let Some(holder) = holder else { return Ok(Release::NotHeld) };
    if !tx.with_line(name, &[holder], Duration::ZERO, |line| line.remove(holder))? {
        return Ok(Release::NotHeld);
    }
    tell(tx, Key::new(name, holder));
    Ok(Release::Released)
}
