//! One transaction: it reads a line, lets [`onelock_core::line::Line`] decide and writes the difference.

use std::time::Duration;

use onelock_core::line::{Entry, Line};
use onelock_core::{Error, ErrorKind, FencingToken, HolderId, LockName, Note, Result, Timestamp, Wake};
use rusqlite::{Params, Row};

use super::error::Fault;
use super::keys::Key;
use super::open::Database;

/// What the file says of an entry: its number, whether it holds, and when it ends.
type Stored = (FencingToken, bool, i64);

/// One transaction under way.
pub(super) struct Transaction<'c> {
    pub(super) database: &'c Database,
    pub(super) now: Timestamp,
    /// The last number given, over all names. One counter for the whole file: it has one writer at a time anyway,
    /// numbers of a name still only grow, and a million names leave nothing behind.
    pub(super) number: i64,
    stored_number: i64,
    /// Entries whose waiters are to be woken, and with what; not those that their own clients gave back.
    pub(super) woken: Vec<(Key, Wake)>,
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
        let begun = |number: i64, gone: Vec<Key>| Self {
            database,
            now,
            number: number.max(floor),
            stored_number: number,
            woken: gone.into_iter().map(|key| (key, Wake::Ask)).collect(),
        };
        if reads {
            database.execute("BEGIN", ())?;
            let (number, same_boot) = meta(database)?;
            let mut expired = database.sql.prepare_cached(include_str!("sql/expired.sql"))?;
            if same_boot && !expired.exists([nanos(now)])? {
                return Ok(Self { number, ..begun(number, Vec::new()) });
            }
            database.execute("ROLLBACK", ())?;
        }
        database.execute("BEGIN IMMEDIATE", ())?;
        let (number, same_boot) = meta(database)?;
        if same_boot {
            let mut expire = database.sql.prepare_cached(include_str!("sql/expire.sql"))?;
            let key = |row: &Row<'_>| Ok(Key { name: row.get(0)?, holder: Key::holder(row.get(1)?) });
            let gone = expire.query_map([nanos(now)], key)?.collect::<Result<_, _>>()?;
            return Ok(begun(number, gone));
        }
        if database.knows_boot.get() {
            let text = "a program with another boot id writes to the file: is it shared with a container or a virtual \
                        machine that has an id of its own?";
            return Err(Error::new(ErrorKind::Unsupported, text).into());
        }
        database.execute(include_str!("sql/reboot_drop.sql"), ())?;
        database.execute(include_str!("sql/reboot_delay.sql"), [nanos(now)])?;
        database.execute(include_str!("sql/reboot.sql"), [&database.boot.id])?;
        Ok(begun(number, Vec::new()))
    }

    /// Commits.
    pub(super) fn commit(&self) -> Result<(), Fault> {
        // Nothing is written to a file that others do not see.
        self.database.files.check()?;
        if self.number != self.stored_number {
            self.database.execute(include_str!("sql/number.sql"), [self.number])?;
        }
        self.database.execute("COMMIT", ())?;
        self.database.knows_boot.set(true);
        Ok(())
    }

    /// Settles the line of `name`, lets `step` change the entries of `holders` and writes the difference; `delay` is the
    /// lock-delay of an entry that joins.
    pub(super) fn with_line<T>(
        &mut self,
        name: &LockName,
        holders: &[HolderId],
        delay: Duration,
        step: impl FnOnce(&mut Line) -> T,
    ) -> Result<T, Fault> {
        let (before, mut line) = self.settled(name, holders)?;
        let answer = step(&mut line);
        self.write(name, &before, &line, delay)?;
        if line.entries().len() < before.len() {
            // Those behind what was read may hold now.
            let (before, line) = self.settled(name, &[])?;
            self.write(name, &before, &line, delay)?;
        }
        Ok(answer)
    }

    /// The line after the entries that hold now have been promoted, and what the file says of it.
    fn settled(&mut self, name: &LockName, holders: &[HolderId]) -> Result<(Vec<Stored>, Line), Fault> {
        let entries = self.read(&name.encoded(), holders)?;
        let before = entries.iter().map(|e| (e.token, e.held, nanos(e.ends))).collect();
        let (mut line, mut promoted) = (entries.into_iter().collect::<Line>(), Vec::new());
        line.settle(self.now, &mut promoted);
        self.woken.extend(promoted.iter().map(|p| (Key::new(name, p.holder), Wake::Held(p.token))));
        Ok((before, line))
    }

    /// Writes the difference.
    fn write(&self, name: &LockName, before: &[Stored], line: &Line, delay: Duration) -> Result<(), Fault> {
        let mut entries = line.entries().iter().peekable();
        for (token, held, ends) in before {
            match entries.next_if(|entry| entry.token == *token) {
                None => self.database.execute(include_str!("sql/leave.sql"), [token.get()])?,
                Some(entry) if (entry.held, nanos(entry.ends)) != (*held, *ends) => {
                    let row = (token.get(), entry.held, nanos(entry.ends));
                    self.database.execute(include_str!("sql/change.sql"), row)?;
                }
                Some(_) => {}
            }
        }
        for entry in entries {
            let (token, holder, mode) = (entry.token.get(), Key::blob(entry.holder), entry.mode.to_string());
            let times = (nanos(entry.ends), nanos(entry.joined), nanos(Timestamp::from_origin(delay)));
            let row = (
                token,
                name.encoded(),
                holder,
                mode,
                entry.held,
                times.0,
                times.1,
                times.2,
                entry.note.as_str(),
            );
            self.database.execute(include_str!("sql/join.sql"), row)?;
        }
        Ok(())
    }

    /// The entries that a verb needs, in the order of the line: those that hold, or would if they were promoted, the
    /// first behind them, and those of `holders`. Nothing behind the first that waits changes what a verb decides.
    fn read(&self, name: &str, holders: &[HolderId]) -> Result<Vec<Entry>, Fault> {
        let mut entries = self.entries(include_str!("sql/front.sql"), (name, true), |_| true)?;
        let mut modes: Vec<_> = entries.iter().map(|entry| entry.mode).collect();
        let mut next = modes.len() + 1;
        entries.extend(self.entries(include_str!("sql/front.sql"), (name, false), |entry| {
            modes.push(entry.mode);
            // The rule counts from the front: it is asked ever more rarely, so that a long line is not counted again and again.
            if modes.len() < next {
                return true;
            }
            next = modes.len() * 2;
            onelock_core::mode::holders(modes.iter().copied()) == modes.len()
        })?);
        for &holder in holders {
            if !entries.iter().any(|entry| entry.holder == holder) {
                entries.extend(self.entries(
                    include_str!("sql/own.sql"),
                    (name, Key::blob(holder)),
                    |_| true,
                )?);
            }
        }
        entries.sort_unstable_by_key(|entry| entry.token);
        Ok(entries)
    }

    /// The entries of a query, until one after which there is no `more` to read.
    pub(super) fn entries(
        &self,
        sql: &str,
        of: impl Params,
        mut more: impl FnMut(&Entry) -> bool,
    ) -> Result<Vec<Entry>, Fault> {
        let (mut statement, mut entries) = (self.database.sql.prepare_cached(sql)?, Vec::new());
        let mut rows = statement.query(of)?;
        while let Some(row) = rows.next()? {
            let entry = entry(row)?;
            let more = more(&entry);
            entries.push(entry);
            if !more {
                break;
            }
        }
        Ok(entries)
    }
}

/// The last number given, and whether the times in the file are of this boot.
fn meta(database: &Database) -> Result<(i64, bool), Fault> {
    database.check_version()?;
    let mut meta = database.sql.prepare_cached(include_str!("sql/meta.sql"))?;
    Ok(meta.query_row((), |row| Ok((row.get(0)?, row.get_ref(1)?.as_str()? == database.boot.id)))?)
}

pub(super) fn entry(row: &Row<'_>) -> Result<Entry, Fault> {
    let mode = row.get_ref(2)?.as_str().map_err(rusqlite::Error::from)?;
    let note: String = row.get(6)?;
    Ok(Entry {
        token: FencingToken::new(row.get(0)?)?,
        holder: Key::holder(row.get(1)?),
        mode: mode.parse()?,
        held: row.get(3)?,
        ends: time(row.get(4)?),
        joined: time(row.get(5)?),
        // For people only: one that no client writes is not shown.
        note: Note::new(note).unwrap_or_default(),
    })
}

/// Nanoseconds of the host's boot clock.
pub(super) fn nanos(time: Timestamp) -> i64 {
    i64::try_from(time.since_origin().as_nanos()).unwrap_or(i64::MAX)
}

pub(super) fn time(nanos: i64) -> Timestamp {
    Timestamp::from_origin(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)))
}
