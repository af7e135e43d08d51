//! What the answers say.

use std::collections::HashSet;
use std::time::Duration;

use onelock_core::mode::holders;
use onelock_core::{
    Busy, EntryView, Error, ErrorKind, FencingToken, Grant, HolderId, ListedName, Listing, LockName, Mode,
    Note, Place, Release, Renewal, Renewed, Request, Result, Snapshot, Standing, Wake,
};
use sqlx::Row as _;
use sqlx::mysql::MySqlRow;

use super::bells::Heard;
use super::look::Mark;

/// A row of whole numbers and byte strings.
struct Cells<'a>(&'a MySqlRow);

impl Cells<'_> {
    fn maybe(&self, at: usize) -> Result<Option<i64>> {
        self.0.try_get(at).map_err(|e| protocol(&e.to_string()))
    }

    fn int(&self, at: usize) -> Result<i64> {
        self.maybe(at)?.ok_or_else(|| protocol("a number is missing"))
    }

    fn flag(&self, at: usize) -> Result<bool> {
        Ok(self.int(at)? != 0)
    }

    fn token(&self, at: usize) -> Result<FencingToken> {
        FencingToken::new(self.int(at)?)
    }

    /// Whether the entry of `holder` holds.
    fn holds(&self, at: usize, holder: HolderId) -> Result<bool> {
        let whose: Vec<u8> = self.0.try_get(at).map_err(|e| protocol(&e.to_string()))?;
        crate::whose::holds(&whose, holder)
    }

    fn text(&self, at: usize) -> Result<String> {
        let bytes: Vec<u8> = self.0.try_get(at).map_err(|e| protocol(&e.to_string()))?;
        String::from_utf8(bytes).map_err(|_| foreign("a text that is not UTF-8"))
    }
}

fn protocol(text: &str) -> Error {
    Error::new(ErrorKind::Protocol, text)
}

fn foreign(text: &str) -> Error {
    Error::new(ErrorKind::Foreign, format!("the table of the lines holds {text}"))
}

fn one(rows: &[MySqlRow]) -> Result<Cells<'_>> {
    match rows {
        [row] => Ok(Cells(row)),
        _ => Err(protocol(&format!("{} rows instead of one", rows.len()))),
    }
}

fn micros(count: i64) -> Duration {
    Duration::from_micros(u64::try_from(count).unwrap_or(0))
}

fn standing(rows: &[MySqlRow], request: &Request) -> Result<Standing> {
    let row = one(rows)?;
    let holds = row.holds(2, request.holder)?;
    let retry_after = row.maybe(1)?.map(micros);
    if row.maybe(0)?.is_none() {
        return Ok(Standing::Busy(Busy { retry_after }));
    }
    let token = row.token(0)?;
    Ok(if holds {
        Standing::Held(Grant { token, lease: request.lease })
    } else {
        Standing::Waiting(Place { token, lease: request.waiter_lease, retry_after })
    })
}

/// The answer to a join: beside it how many have to leave before the entry holds, and who is right ahead.
pub(super) fn joined(rows: &[MySqlRow], request: &Request) -> Result<(Standing, u32, Option<i64>)> {
    let row = one(rows)?;
    let ahead = u32::try_from(row.int(3)?).unwrap_or(u32::MAX);
    Ok((standing(rows, request)?, ahead, row.maybe(4)?))
}

/// How long a lease lasts yet, if that is known.
pub(super) fn left_for(rows: &[MySqlRow]) -> Result<Option<Duration>> {
    Ok(one(rows)?.maybe(0)?.map(micros))
}

/// The answer to a single renewal.
pub(super) fn renewed_one(rows: &[MySqlRow], due: &Renewal) -> Result<Renewed> {
    let (lease, waiter_lease) = (due.lease, due.waiter_lease);
    let row = one(rows)?;
    let holds = row.holds(2, due.ticket.holder)?;
    if row.maybe(0)?.is_none() {
        return Ok(Renewed::NotHeld);
    }
    let token = row.token(0)?;
    Ok(if holds {
        Renewed::Held(Grant { token, lease })
    } else {
        let retry_after = row.maybe(1)?.map(micros);
        Renewed::Waiting(Place { token, lease: waiter_lease, retry_after })
    })
}

/// The answers by item; an item without a row is not held.
pub(super) fn renewed(rows: &[MySqlRow], due: &[&Renewal]) -> Result<Vec<Renewed>> {
    let mut answers = vec![Renewed::NotHeld; due.len()];
    for row in rows.iter().map(Cells) {
        let item = usize::try_from(row.int(0)?).unwrap_or(usize::MAX);
        let (Some(answer), Some(due)) = (answers.get_mut(item), due.get(item)) else {
            return Err(protocol("an answer to nothing"));
        };
        let holds = row.holds(3, due.ticket.holder)?;
        let (lease, waiter_lease) = (due.lease, due.waiter_lease);
        let token = row.token(1)?;
        *answer = if holds {
            Renewed::Held(Grant { token, lease })
        } else {
            let retry_after = row.maybe(2)?.map(micros);
            Renewed::Waiting(Place { token, lease: waiter_lease, retry_after })
        };
    }
    Ok(answers)
}

/// What a release or an eviction says.
pub(super) struct Left {
    pub(super) release: Release,
    /// Whether the line has entries yet.
    pub(super) more: bool,
    /// What the look at the first waiter of this client says: it holds.
    pub(super) next: bool,
}

pub(super) fn left(rows: &[MySqlRow]) -> Result<Left> {
    let row = one(rows)?;
    let release = if row.flag(0)? { Release::Released } else { Release::NotHeld };
    Ok(Left { release, more: row.flag(1)?, next: row.flag(2)? })
}

/// What a release by the number says: whether the entry was there, and whether the first waiter of this client holds.
pub(super) fn gone(rows: &[MySqlRow]) -> Result<(bool, bool)> {
    let row = one(rows)?;
    Ok((row.flag(0)?, row.flag(1)?))
}

pub(super) fn flag(rows: &[MySqlRow]) -> Result<bool> {
    one(rows)?.flag(0)
}

pub(super) fn int(rows: &[MySqlRow]) -> Result<Option<i64>> {
    if rows.is_empty() { Ok(None) } else { one(rows)?.maybe(0) }
}

/// The line of a name, and whether it has entries that wait to be dropped.
pub(super) fn snapshot(rows: &[MySqlRow], name: &LockName) -> Result<(Snapshot, bool)> {
    let mut views = Vec::with_capacity(rows.len());
    let mut dead = false;
    for row in rows.iter().map(Cells) {
        let left = row.int(4)?;
        if left <= 0 {
            dead = true;
            continue;
        }
        let note = Note::new(row.text(2)?).map_err(|_| foreign("a malformed note"))?;
        views.push(EntryView {
            token: row.token(0)?,
            mode: row.text(1)?.parse()?,
            note: note.as_str().to_owned(),
            age: Some(micros(row.int(3)?)),
            expires_in: Some(micros(left)),
        });
    }
    let count = holders(views.iter().map(|view| view.mode));
    let waiters = views.split_off(count);
    Ok((Snapshot { holders: views, waiters, ..Snapshot::empty(name.clone()) }, dead))
}

/// A page of at most `limit` names, of rows of at most one name more.
pub(super) fn listing(rows: &[MySqlRow], limit: usize) -> Result<Listing> {
    let mut lines: Vec<(LockName, Vec<Mode>)> = Vec::new();
    for row in rows.iter().map(Cells) {
        let encoded = row.text(0)?;
        let name = LockName::decode(&encoded).ok_or_else(|| foreign("a name that is not one"))?;
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
        ListedName { name, holders, waiters: modes.len() - holders }
    };
    Ok(Listing { names: lines.into_iter().map(listed).collect(), next })
}

/// Pairs of texts.
pub(super) fn pairs(rows: &[MySqlRow]) -> Result<Vec<(String, String)>> {
    rows.iter().map(Cells).map(|row| Ok((row.text(0)?, row.text(1)?))).collect()
}

/// Encoded names.
pub(super) fn names(rows: &[MySqlRow]) -> Result<Vec<String>> {
    rows.iter().map(Cells).map(|row| row.text(0)).collect()
}

/// Encoded names, and whether each is in use.
pub(super) fn uses(rows: &[MySqlRow]) -> Result<Vec<(String, bool)>> {
    rows.iter().map(Cells).map(|row| Ok((row.text(0)?, row.flag(1)?))).collect()
}

/// Entries: the encoded name and the number of each.
pub(super) type Entries = HashSet<(String, FencingToken)>;

pub(super) fn entries(rows: &[MySqlRow]) -> Result<Entries> {
    rows.iter().map(Cells).map(|row| Ok((row.text(0)?, row.token(1)?))).collect()
}

/// What a look at one entry says: what to tell who waits for it, if anything, and how many have to leave.
pub(super) fn look_one(
    rows: &[MySqlRow],
    token: FencingToken,
    holder: HolderId,
) -> Result<(Option<Wake>, u32)> {
    let row = one(rows)?;
    let ahead = row.maybe(2)?.and_then(|count| u32::try_from(count).ok()).unwrap_or(u32::MAX);
    if row.maybe(0)?.is_none() {
        return Ok((Some(Wake::Ask), ahead));
    }
    if row.token(0)? != token {
        return Err(protocol("a look at another entry"));
    }
    Ok((row.holds(1, holder)?.then_some(Wake::Held(token)), ahead))
}

/// The answer to a look that waited for a bell.
pub(super) fn heard(rows: &[MySqlRow], mark: &Mark) -> Result<(Option<Wake>, Heard)> {
    let (wake, ahead) = look_one(rows, mark.token, mark.holder)?;
    let row = one(rows)?;
    Ok((wake, Heard { before: row.maybe(3)?, ahead, silence: row.flag(4)? }))
}

/// What a look at many says.
pub(super) struct Look {
    /// Who holds.
    pub(super) held: Entries,
    /// How many of those asked for are there.
    pub(super) there: usize,
    /// A sum of the fronts of their lines.
    pub(super) fronts: i64,
    /// How many have to leave before the one holds with the fewest.
    pub(super) ahead: u32,
}

pub(super) fn look(rows: &[MySqlRow]) -> Result<Look> {
    let (last, held) = rows.split_last().ok_or_else(|| protocol("a look without an answer"))?;
    let last = Cells(last);
    let there = usize::try_from(last.int(1)?).unwrap_or(0);
    Ok(Look {
        held: entries(held)?,
        there,
        fronts: last.int(2)?,
        ahead: u32::try_from(last.int(3)?).unwrap_or(u32::MAX),
    })
}
