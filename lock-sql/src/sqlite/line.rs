//! One transaction: it reads the lines that its verbs are about, lets [`Lines`] decide and writes the difference.

use std::collections::BTreeMap;
use std::time::Duration;

use onelock_core::line::Entry;
use onelock_core::toolkit::Lines;
use onelock_core::{Error, ErrorKind, FencingToken, HolderId, HolderMap, LockName, Note, Result, Timestamp};
use rusqlite::{Row, TransactionBehavior};

use super::boot::{nanos, time};
use super::connection::{Database, check_marks};
use super::error::Fault;

/// One transaction under way; dropped, it is rolled back.
pub(super) struct Transaction<'c> {
    database: &'c Database,
    pub(super) sql: rusqlite::Transaction<'c>,
    now: Timestamp,
    lines: Lines,
    /// The lines of these names as the file has them.
    stored: BTreeMap<LockName, Vec<Entry>>,
    /// The last number in the file, over all names. One counter for the whole file: it has one writer at a time anyway,
    /// numbers of a name still only grow, and a million names leave nothing behind.
    stored_number: i64,
    /// The lock-delays of the entries that join.
    pub(super) delays: HolderMap<Duration>,
    /// Whose entries have expired.
    expired: Vec<HolderId>,
}

impl<'c> Transaction<'c> {
    /// Begins, drops what has expired and what an earlier boot left. `floor` is the largest number this process has seen:
    /// should the file have lost some, it goes on from there. If it `reads` only, it takes the file for writing only where
    /// something must be dropped first.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the file is of a newer schema, or of another boot although it was of this one.
    pub(super) fn begin(database: &'c Database, reads: bool, floor: i64) -> Result<Self, Fault> {
        let now = database.now();
        let how = if reads { TransactionBehavior::Deferred } else { TransactionBehavior::Immediate };
        let sql = rusqlite::Transaction::new_unchecked(&database.sql, how)?;
        // First: tables that are not there any more do not hide why.
        check_marks(&sql)?;
        let (stored_number, same_boot, drops): (i64, bool, bool) = sql
            .prepare_cached(include_str!("sql/meta.sql"))?
            .query_row((&database.boot.id, nanos(now)), |row| row.try_into())?;
        if drops && reads {
            drop(sql);
            return Self::begin(database, false, floor);
        }
        if !same_boot && database.knows_boot.get() {
            let text = "another boot id is in the file: does a container or a virtual machine with its own share it?";
            return Err(Error::new(ErrorKind::Unsupported, text).into());
        }
        if !same_boot {
            sql.execute(include_str!("sql/reboot_delay.sql"), [nanos(now)])?;
            sql.execute(include_str!("sql/reboot.sql"), [&database.boot.id])?;
        }
        let mut expired = Vec::new();
        if drops {
            let mut expire = sql.prepare_cached(include_str!("sql/expire.sql"))?;
            let gone = expire.query_map([nanos(now)], |row| row.get(0).map(holder))?;
            expired = gone.collect::<Result<_, _>>()?;
        }
        let lines = Lines::with_counter(stored_number.max(floor));
        let (stored, delays) = (BTreeMap::new(), HolderMap::default());
        Ok(Self { database, sql, now, lines, stored, stored_number, delays, expired })
    }

    /// Runs a verb on the line of `name`. What it changes is written at the end.
    pub(super) fn step<T>(
        &mut self,
        name: &LockName,
        verb: impl FnOnce(&mut Lines, Timestamp) -> T,
    ) -> Result<T, Fault> {
        if !self.stored.contains_key(name) {
            let mut line = self.sql.prepare_cached(include_str!("sql/line.sql"))?;
            let entries = line.query_and_then([name.encoded()], entry)?.collect::<Result<Vec<_>, _>>()?;
            self.lines.insert(name.clone(), entries.clone());
            self.stored.insert(name.clone(), entries);
        }
        Ok(verb(&mut self.lines, self.now))
    }

    /// Writes the difference and commits. The last number given, and whose waits may have ended.
    pub(super) fn commit(mut self) -> Result<(i64, Vec<HolderId>), Fault> {
        // Nothing is written to a file that others do not see.
        self.database.files.check()?;
        // Those that leave come first, because a holder that has left may have joined again.
        for (name, before) in &self.stored {
            let after = self.lines.entries(name);
            for gone in before.iter().filter(|old| find(after, old.token).is_none()) {
                self.sql.prepare_cached(include_str!("sql/leave.sql"))?.execute([gone.token.get()])?;
            }
        }
        let both = self.stored.iter().map(|(name, before)| (name, before, self.lines.entries(name)));
        let changed = both.flat_map(|(name, before, after)| {
            after
                .iter()
                .filter(|entry| find(before, entry.token) != Some(entry))
                .map(move |entry| (name, entry))
        });
        for (name, entry) in changed {
            let delay = self.delays.get(&entry.holder).copied().unwrap_or_default();
            let (token, name, holder) = (entry.token, name.encoded(), blob(entry.holder));
            let (mode, note) = (entry.mode.to_string(), entry.note.as_str());
            let [ends, joined, delay] = [entry.ends, entry.joined, Timestamp::from_origin(delay)].map(nanos);
            let mut put = self.sql.prepare_cached(include_str!("sql/put.sql"))?;
            if put.execute((token.get(), name, holder, mode, entry.held, ends, joined, delay, note))? != 1 {
                let text = format!("number {token} is in the file already: its counter has gone back");
                return Err(Error::new(ErrorKind::Foreign, text).into());
            }
        }
        let number = self.lines.counter();
        if number != self.stored_number {
            self.sql.prepare_cached(include_str!("sql/number.sql"))?.execute([number])?;
        }
        self.sql.commit()?;
        self.database.knows_boot.set(true);
        self.expired.extend(self.lines.take_woken());
        Ok((number, self.expired))
    }
}

/// Lines are in the order of their numbers.
fn find(line: &[Entry], token: FencingToken) -> Option<&Entry> {
    line.binary_search_by_key(&token, |entry| entry.token).ok().map(|at| &line[at])
}

fn entry(row: &Row<'_>) -> Result<Entry, Fault> {
    let mode = row.get_ref(2)?.as_str().map_err(rusqlite::Error::from)?;
    let note: String = row.get(6)?;
    Ok(Entry {
        token: FencingToken::new(row.get(0)?)?,
        holder: holder(row.get(1)?),
        mode: mode.parse()?,
        held: row.get(3)?,
        ends: time(row.get(4)?),
        joined: time(row.get(5)?),
        // For people only: one that no client writes is not shown.
        note: Note::new(note).unwrap_or_default(),
    })
}

pub(super) fn blob(holder: HolderId) -> [u8; 16] {
    holder.as_u128().to_be_bytes()
}

fn holder(blob: [u8; 16]) -> HolderId {
    HolderId::from_u128(u128::from_be_bytes(blob))
}
