//! One transaction: it reads the lines that its verbs are about, lets [`Lines`] decide and writes the difference.

use std::collections::BTreeMap;
use std::time::Duration;

use onelock_core::line::Entry;
use onelock_core::toolkit::Lines;
use onelock_core::{
    Error, ErrorKind, FencingToken, HolderId, HolderMap, LockName, Note, Result, Ticket, Timestamp, Wake,
};
use rusqlite::{OptionalExtension as _, Row};

use super::error::Fault;
use super::open::Database;

/// One transaction under way.
pub(super) struct Transaction<'c> {
    pub(super) database: &'c Database,
    now: Timestamp,
    reads: bool,
    lines: Lines,
    /// The lines of these names as the file has them.
    stored: BTreeMap<LockName, Vec<Entry>>,
    /// The last number in the file, over all names. One counter for the whole file: it has one writer at a time anyway,
    /// numbers of a name still only grow, and a million names leave nothing behind.
    stored_number: i64,
    /// The lock-delays of the entries that join.
    delays: HolderMap<Duration>,
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
        database.execute(if reads { "BEGIN" } else { "BEGIN IMMEDIATE" }, ())?;
        database.check_version()?;
        let mut meta = database.sql.prepare_cached(include_str!("sql/meta.sql"))?;
        let (stored_number, same_boot): (i64, bool) =
            meta.query_row((), |row| Ok((row.get(0)?, row.get_ref(1)?.as_str()? == database.boot.id)))?;
        let mut expired = Vec::new();
        if reads {
            let mut some = database.sql.prepare_cached(include_str!("sql/expired.sql"))?;
            if !same_boot || some.exists([nanos(now)])? {
                database.execute("ROLLBACK", ())?;
                return Self::begin(database, false, floor);
            }
        } else if same_boot {
            let mut expire = database.sql.prepare_cached(include_str!("sql/expire.sql"))?;
            let gone = expire.query_map([nanos(now)], |row| row.get(0).map(holder))?;
            expired = gone.collect::<Result<_, _>>()?;
        } else if database.knows_boot.get() {
            let text = "a program with another boot id writes to the file: is it shared with a container or a virtual \
                        machine that has an id of its own?";
            return Err(Error::new(ErrorKind::Unsupported, text).into());
        } else {
            database.execute(include_str!("sql/reboot_drop.sql"), ())?;
            database.execute(include_str!("sql/reboot_delay.sql"), [nanos(now)])?;
            database.execute(include_str!("sql/reboot.sql"), [&database.boot.id])?;
        }
        let lines = Lines::with_counter(stored_number.max(floor));
        let (stored, delays) = (BTreeMap::new(), HolderMap::default());
        Ok(Self { database, now, reads, lines, stored, stored_number, delays, expired })
    }

    /// Runs a verb on the line of `name`. What it changes is written at the end.
    pub(super) fn step<T>(
        &mut self,
        name: &LockName,
        verb: impl FnOnce(&mut Lines, Timestamp) -> T,
    ) -> Result<T, Fault> {
        if !self.stored.contains_key(name) {
            let mut line = self.database.sql.prepare_cached(include_str!("sql/line.sql"))?;
            let (mut rows, mut entries) = (line.query([name.encoded()])?, Vec::new());
            while let Some(row) = rows.next()? {
                entries.push(entry(row)?);
            }
            self.lines.insert(name.clone(), entries.clone());
            self.stored.insert(name.clone(), entries);
        }
        Ok(verb(&mut self.lines, self.now))
    }

    /// An entry of this holder that joins has this lock-delay.
    pub(super) fn set_delay(&mut self, holder: HolderId, delay: Duration) {
        self.delays.insert(holder, delay);
    }

    /// Commits. The last number given, and whose waits may have ended.
    pub(super) fn commit(mut self) -> Result<(i64, Vec<HolderId>), Fault> {
        // Nothing is written to a file that others do not see.
        self.database.files.check()?;
        if self.reads {
            self.database.execute("COMMIT", ())?;
            return Ok((self.lines.counter(), Vec::new()));
        }
        self.write()?;
        if self.lines.counter() != self.stored_number {
            self.database.execute(include_str!("sql/number.sql"), [self.lines.counter()])?;
        }
        self.database.execute("COMMIT", ())?;
        self.database.knows_boot.set(true);
        self.expired.extend(self.lines.take_woken());
        Ok((self.lines.counter(), self.expired))
    }

    /// Writes the difference.
    fn write(&self) -> Result<(), Fault> {
        for (name, before) in &self.stored {
            let after = self.lines.entries(name);
            // Both in the order of their numbers.
            for gone in before.iter().filter(|old| find(after, old.token).is_none()) {
                self.database.execute(include_str!("sql/leave.sql"), [gone.token.get()])?;
            }
            for entry in after {
                let (token, ends) = (entry.token.get(), nanos(entry.ends));
                match find(before, entry.token) {
                    Some(old) if (old.held, old.ends) == (entry.held, entry.ends) => {}
                    Some(_) => {
                        self.database.execute(include_str!("sql/change.sql"), (token, entry.held, ends))?;
                    }
                    None => {
                        let delay = self.delays.get(&entry.holder).copied().unwrap_or_default();
                        let times = (ends, nanos(entry.joined), nanos(Timestamp::from_origin(delay)));
                        let row = (
                            token,
                            name.encoded(),
                            blob(entry.holder),
                            entry.mode.to_string(),
                            entry.held,
                            times.0,
                            times.1,
                            times.2,
                            entry.note.as_str(),
                        );
                        self.database.execute(include_str!("sql/join.sql"), row)?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn find(line: &[Entry], token: FencingToken) -> Option<&Entry> {
    line.binary_search_by_key(&token, |entry| entry.token).ok().map(|at| &line[at])
}

/// How a wait ends by what was committed; while it goes on, how many wait ahead.
pub(super) fn wake(database: &Database, ticket: &Ticket) -> Result<Result<Wake, u32>, Fault> {
    let mut own = database.sql.prepare_cached(include_str!("sql/own.sql"))?;
    let of = (ticket.name.encoded(), blob(ticket.holder), nanos(database.now()));
    let entry = own.query_row(of, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional()?;
    Ok(match entry {
        None => Ok(Wake::Ask),
        Some((token, true, _)) => Ok(Wake::Held(FencingToken::new(token)?)),
        Some((_, false, ahead)) => Err(ahead),
    })
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

fn blob(holder: HolderId) -> [u8; 16] {
    holder.as_u128().to_be_bytes()
}

fn holder(blob: [u8; 16]) -> HolderId {
    HolderId::from_u128(u128::from_be_bytes(blob))
}

/// Nanoseconds of the host's boot clock.
pub(super) fn nanos(time: Timestamp) -> i64 {
    i64::try_from(time.since_origin().as_nanos()).unwrap_or(i64::MAX)
}

pub(super) fn time(nanos: i64) -> Timestamp {
    Timestamp::from_origin(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)))
}
