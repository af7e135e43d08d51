//! Leaving a line: at the holder's wish, or at somebody else's.

use std::time::Duration;

use onelock_core::{FencingToken, HolderId, LockName, Release, Wake};
use rusqlite::OptionalExtension as _;

use super::error::Fault;
use super::keys::Key;
use super::line::Transaction;

pub(super) fn release(tx: &mut Transaction<'_>, name: &LockName, holder: HolderId) -> Result<Release, Fault> {
    let was_there = tx.with_line(name, &[holder], Duration::ZERO, |line| line.remove(holder))?;
    Ok(if was_there { Release::Released } else { Release::NotHeld })
}

pub(super) fn evict(
    tx: &mut Transaction<'_>,
    name: &LockName,
    token: FencingToken,
) -> Result<Release, Fault> {
    let mut holder = tx.database.sql.prepare_cached(include_str!("sql/evict.sql"))?;
    let holder = holder.query_row((name.encoded(), token.get()), |row| row.get(0)).optional()?;
    let Some(holder) = holder.map(Key::holder) else { return Ok(Release::NotHeld) };
    let released = release(tx, name, holder)?;
    if released == Release::Released {
        tx.woken.push((Key::new(name, holder), Wake::Ask));
    }
    Ok(released)
}
