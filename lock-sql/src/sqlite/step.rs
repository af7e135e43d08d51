//! The decision steps: what each verb does to the line of a name, within one transaction.
//!
//! They say the same as [`onelock_core::line::Line`], in statements that never read a whole line, so that a thousand
//! waiters do not slow a verb down.

use std::time::Duration;

use onelock_core::{
    Busy, EntryView, Error, ErrorKind, FencingToken, Grant, HolderId, ListedName, Listing, LockName, Mode,
    Place, Raise, Release, Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket,
};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{Executor as _, Row as _};

use super::boot::Boot;
use super::error::Fault;
use super::open::check_version;

/// How many renewals share a statement at most.
const RENEWED_TOGETHER: usize = 500;

type Stepped<T> = Result<T, Fault>;

/// One transaction under way.
pub(super) struct Step<'c> {
    conn: &'c mut SqliteConnection,
    now: i64,
    /// The last number given, over all names. One counter for the whole file: it has one writer at a time anyway,
    /// numbers of a name still only grow, and a million names leave nothing behind.
    pub(super) number: i64,
    stored_number: i64,
    /// Entries that hold now and did not before.
    pub(super) promoted: Vec<i64>,
    /// Entries that are gone although their clients did not ask for it.
    pub(super) gone: Vec<i64>,
    /// Entries that their own clients gave back.
    pub(super) left: Vec<i64>,
}

/// The front of a line, and one holder's entry in it.
struct Front {
    holders: usize,
    mode: Option<Mode>,
    earliest: Option<i64>,
    waiter: Option<(i64, Mode)>,
    own: Option<(i64, bool)>,
}

impl<'c> Step<'c> {
    /// Begins the transaction, drops what has expired and what an earlier boot left. `floor` is the largest number
    /// this process has seen: should the file have lost some, it goes on from there. `knows_boot`: this connection has
    /// met its own boot in the file before.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the file is of a newer schema, or of another boot although it was of this one.
    pub(super) async fn begin(
        conn: &'c mut SqliteConnection,
        now: i64,
        boot: &Boot,
        floor: i64,
        knows_boot: bool,
    ) -> Stepped<Step<'c>> {
        let begun = sqlx::query(include_str!("sql/begin.sql")).bind(now).bind(&boot.id).fetch_all(&mut *conn);
        let begun = begun.await;
        if begun.is_err() {
            // A newer schema may lack what is asked for: that says more than an unknown column.
            let version = sqlx::query("PRAGMA user_version").fetch_optional(&mut *conn).await;
            if let Ok(Some(version)) = version {
                check_version(Some(&version))?;
            }
        }
        let mut rows = begun?.into_iter();
        check_version(rows.next().as_ref())?;
        let meta = rows.next().ok_or(sqlx::Error::RowNotFound)?;
        let stored_number: i64 = meta.try_get(0)?;
        let same_boot = meta.try_get::<&str, _>(1)? == boot.id;
        let gone = rows.map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        if !same_boot {
            if knows_boot {
                let text = "a program with another boot id writes to the file: is it shared with a container or a virtual \
                            machine that has an id of its own?";
                return Err(Error::new(ErrorKind::Unsupported, text).into());
            }
            sqlx::query(include_str!("sql/reboot.sql")).bind(now).bind(&boot.id).execute(&mut *conn).await?;
        }
        let number = stored_number.max(floor);
        Ok(Step { conn, now, number, stored_number, promoted: Vec::new(), gone, left: Vec::new() })
    }

    /// Begins a transaction that only reads; `None` when a lease that ran out, or an earlier boot, left what must go first.
    pub(super) async fn begin_reading(
        conn: &'c mut SqliteConnection,
        now: i64,
        boot: &Boot,
    ) -> Stepped<Option<Step<'c>>> {
        let rows = sqlx::query(include_str!("sql/begin_reading.sql")).bind(now).fetch_all(&mut *conn).await?;
        check_version(rows.first())?;
        let meta = rows.get(1).ok_or(sqlx::Error::RowNotFound)?;
        let number: i64 = meta.try_get(0)?;
        if rows.len() > 2 || meta.try_get::<&str, _>(1)? != boot.id {
            conn.execute("ROLLBACK").await?;
            return Ok(None);
        }
        let (promoted, gone, left) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Some(Step { conn, now, number, stored_number: number, promoted, gone, left }))
    }

    /// Commits.
    pub(super) async fn commit(&mut self) -> Stepped<()> {
        if self.number == self.stored_number {
            self.conn.execute("COMMIT").await?;
        } else {
            let sql = include_str!("sql/commit_number.sql");
            sqlx::query(sql).bind(self.number).execute(&mut *self.conn).await?;
        }
        Ok(())
    }

    pub(super) async fn acquire(&mut self, request: &Request) -> Stepped<Standing> {
        let name = request.name.encoded();
        let front = self.settle(&name, request.holder).await?;
        if front.own.is_some() {
            let renewal = Renewal {
                ticket: request.ticket(),
                lease: request.lease,
                waiter_lease: request.waiter_lease,
            };
            return Ok(match self.renew_entry(&front, &renewal).await? {
                Renewed::Held(grant) => Standing::Held(grant),
                Renewed::Waiting(place) => Standing::Waiting(place),
                Renewed::NotHeld => Standing::Busy(Busy { retry_after: None }),
            });
        }
        let holds = front.waiter.is_none() && request.mode.fits(front.holders, front.mode);
        if !holds && !request.queue {
            return Ok(Standing::Busy(Busy { retry_after: self.until(front.earliest) }));
        }
        let next = self.number.checked_add(1).ok_or_else(|| {
            Error::new(
                ErrorKind::Full,
                "the last fencing token was given: the numbers of this file are used up",
            )
        })?;
        let lease = if holds { request.lease } else { request.waiter_lease };
        sqlx::query(include_str!("sql/join.sql"))
            .bind(next)
            .bind(name)
            .bind(request.holder.as_u128().to_be_bytes().to_vec())
            .bind(request.mode.to_string())
            .bind(holds)
            .bind(self.end(lease, request.delay))
            .bind(self.now)
            .bind(nanos(request.delay))
            .bind(request.note.as_str().to_owned())
            .execute(&mut *self.conn)
            .await?;
        self.number = next;
        let token = FencingToken::new(next)?;
        Ok(if holds {
            Standing::Held(Grant { token, lease })
        } else {
            let first = front.waiter.is_none();
            let retry_after = if first { self.until(front.earliest) } else { None };
            Standing::Waiting(Place { token, lease, retry_after })
        })
    }

    /// Renews each item by itself, in order. What holds with nobody waiting behind it, nearly all of a large batch, is
    /// renewed by a statement for many; the others go one by one.
    pub(super) async fn renew_all(&mut self, due: &[Renewal]) -> Stepped<Vec<Result<Renewed>>> {
        let mut answers = Vec::with_capacity(due.len());
        for part in due.chunks(RENEWED_TOGETHER) {
            let calm = if part.len() > 1 { self.calm(part).await? } else { vec![None; part.len()] };
            let mut together = Vec::new();
            for (renewal, calm) in part.iter().zip(calm) {
                answers.push(match calm {
                    Some(number) => {
                        let end = self.end(renewal.lease, renewal.ticket.delay);
                        together.push(format!("[{number},{end}]"));
                        FencingToken::new(number)
                            .map(|token| Renewed::Held(Grant { token, lease: renewal.lease }))
                    }
                    None => match self.renew(renewal).await {
                        Ok(answer) => Ok(answer),
                        Err(Fault::Verb(error)) => Err(error),
                        Err(fault) => return Err(fault),
                    },
                });
            }
            if !together.is_empty() {
                let sql = include_str!("sql/renew_all.sql");
                let query = sqlx::query(sql).bind(format!("[{}]", together.join(",")));
                query.execute(&mut *self.conn).await?;
            }
        }
        Ok(answers)
    }

    /// For each item the number of its entry where it holds and nobody waits.
    async fn calm(&mut self, due: &[Renewal]) -> Stepped<Vec<Option<i64>>> {
        let keys = keys(due.iter().map(|renewal| &renewal.ticket));
        let query = sqlx::query(include_str!("sql/calm.sql")).bind(keys);
        let rows = query.fetch_all(&mut *self.conn).await?;
        let numbers = rows.iter().map(|row| Ok(row.try_get(0)?)).collect::<Stepped<Vec<_>>>()?;
        if numbers.len() == due.len() { Ok(numbers) } else { Err(sqlx::Error::RowNotFound.into()) }
    }

    async fn renew(&mut self, renewal: &Renewal) -> Stepped<Renewed> {
        let front = self.settle(&renewal.ticket.name.encoded(), renewal.ticket.holder).await?;
        self.renew_entry(&front, renewal).await
    }

    async fn renew_entry(&mut self, front: &Front, renewal: &Renewal) -> Stepped<Renewed> {
        let Some((number, held)) = front.own else { return Ok(Renewed::NotHeld) };
        let lease = if held { renewal.lease } else { renewal.waiter_lease };
        sqlx::query(include_str!("sql/renew.sql"))
            .bind(number)
            .bind(self.end(lease, renewal.ticket.delay))
            .execute(&mut *self.conn)
            .await?;
        let token = FencingToken::new(number)?;
        Ok(if held {
            Renewed::Held(Grant { token, lease })
        } else {
            let first = front.waiter.is_some_and(|(waiter, _)| waiter == number);
            let retry_after = if first { self.until(front.earliest) } else { None };
            Renewed::Waiting(Place { token, lease, retry_after })
        })
    }

    pub(super) async fn release(&mut self, ticket: &Ticket) -> Stepped<Release> {
        let name = ticket.name.encoded();
        let query = sqlx::query(include_str!("sql/release.sql")).bind(&name).bind(blob(ticket.holder));
        let removed = tokens(&query.fetch_all(&mut *self.conn).await?)?;
        self.left.extend(&removed);
        self.removed(&name, &removed).await
    }

    pub(super) async fn evict(&mut self, name: &LockName, token: FencingToken) -> Stepped<Release> {
        let name = name.encoded();
        let query = sqlx::query(include_str!("sql/evict.sql")).bind(&name).bind(token.get());
        let removed = tokens(&query.fetch_all(&mut *self.conn).await?)?;
        self.gone.extend(&removed);
        self.removed(&name, &removed).await
    }

    async fn removed(&mut self, name: &str, tokens: &[i64]) -> Stepped<Release> {
        self.settle(name, NOBODY).await?;
        Ok(if tokens.is_empty() { Release::NotHeld } else { Release::Released })
    }

    pub(super) async fn raise(&mut self, ticket: &Ticket, token: FencingToken) -> Stepped<Raise> {
        let front = self.settle(&ticket.name.encoded(), ticket.holder).await?;
        if front.own.is_none() {
            return Ok(Raise::NotHeld);
        }
        self.number = self.number.max(token.get());
        Ok(Raise::Raised)
    }

    /// Only reads. Whoever holds by now is shown as a holder, whether or not somebody has promoted it.
    pub(super) async fn inspect(&mut self, name: &LockName) -> Stepped<Snapshot> {
        let query = sqlx::query(include_str!("sql/inspect.sql")).bind(name.encoded().into_owned());
        let rows = query.bind(self.now).fetch_all(&mut *self.conn).await?;
        let view = |row: &SqliteRow| -> Stepped<EntryView> {
            Ok(EntryView {
                token: FencingToken::new(row.try_get(0)?)?,
                mode: mode(row.try_get(1)?)?,
                note: row.try_get(4)?,
                age: Some(span(self.now.saturating_sub(row.try_get(3)?))),
                expires_in: self.until(Some(row.try_get(2)?)),
            })
        };
        let mut holders = rows.iter().map(view).collect::<Stepped<Vec<_>>>()?;
        let waiters = holders.split_off(onelock_core::mode::holders(holders.iter().map(|entry| entry.mode)));
        Ok(Snapshot { holders, waiters, ..Snapshot::empty(name.clone()) })
    }

    /// Only reads. `after` is the encoded name the page before ended with.
    pub(super) async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Stepped<Listing> {
        let first = onelock_core::name::encode(prefix);
        // Encoded names are of ASCII below 0x7F, so this is just behind all that begin with `first`.
        let end = format!("{first}\u{7F}");
        let more = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
        let sql = include_str!("sql/list.sql");
        let rows = sqlx::query(sql).bind(first).bind(end).bind(after.to_owned()).bind(more).bind(self.now);
        let rows = rows.fetch_all(&mut *self.conn).await?;
        let mut listing = Listing::default();
        for row in rows.iter().take(limit) {
            let encoded: &str = row.try_get(0)?;
            let (mut holders, mut waiters) = (count(row.try_get(1)?)?, count(row.try_get(2)?)?);
            if waiters > 0 {
                // A waiter may hold by now without anybody having promoted it.
                let modes = sqlx::query(include_str!("sql/modes.sql")).bind(encoded.to_owned());
                let modes = modes.bind(self.now).fetch_all(&mut *self.conn).await?;
                let modes = modes.iter().map(|row| mode(row.try_get(0)?)).collect::<Stepped<Vec<_>>>()?;
                holders = onelock_core::mode::holders(modes.iter().copied());
                waiters = modes.len() - holders;
            }
            let name = LockName::decode(encoded)
                .ok_or_else(|| Error::new(ErrorKind::Foreign, "the file holds a name that is none"))?;
            listing.names.push(ListedName { name, holders, waiters });
        }
        if rows.len() > limit {
            listing.next = listing.names.last().map(|listed| listed.name.encoded().into_owned());
        }
        Ok(listing)
    }

    /// Promotes whoever holds now and reads the front of the line.
    async fn settle(&mut self, name: &str, holder: HolderId) -> Stepped<Front> {
        let front = self.front(name, holder).await?;
        let Some((_, mode)) = front.waiter.filter(|(_, mode)| mode.fits(front.holders, front.mode)) else {
            return Ok(front);
        };
        let room = match mode {
            Mode::Exclusive => 1,
            Mode::Shared => -1,
            Mode::Permit(limit) => i64::from(limit.get()) - i64::try_from(front.holders).unwrap_or(i64::MAX),
        };
        let sql = include_str!("sql/promote.sql");
        let rows = sqlx::query(sql).bind(name.to_owned()).bind(mode.to_string()).bind(room);
        for row in rows.fetch_all(&mut *self.conn).await? {
            self.promoted.push(row.try_get(0)?);
        }
        self.front(name, holder).await
    }

    async fn front(&mut self, name: &str, holder: HolderId) -> Stepped<Front> {
        let sql = include_str!("sql/front.sql");
        let row =
            sqlx::query(sql).bind(name.to_owned()).bind(blob(holder)).fetch_one(&mut *self.conn).await?;
        let text: Option<&str> = row.try_get(1)?;
        let waiter: Option<i64> = row.try_get(3)?;
        let own: Option<i64> = row.try_get(5)?;
        Ok(Front {
            holders: count(row.try_get(0)?)?,
            mode: text.map(mode).transpose()?,
            earliest: row.try_get(2)?,
            waiter: match waiter {
                Some(token) => Some((token, mode(row.try_get(4)?)?)),
                None => None,
            },
            own: match own {
                Some(token) => Some((token, row.try_get(6)?)),
                None => None,
            },
        })
    }

    fn end(&self, lease: Duration, delay: Duration) -> i64 {
        self.now.saturating_add(nanos(lease)).saturating_add(nanos(delay))
    }

    fn until(&self, end: Option<i64>) -> Option<Duration> {
        end.map(|end| span(end.saturating_sub(self.now)))
    }
}

/// A holder that has no entry.
const NOBODY: HolderId = HolderId::from_u128(0);

/// The entries of these tickets as a JSON array of [name, holder in hexadecimal].
pub(super) fn keys<'t>(tickets: impl Iterator<Item = &'t Ticket>) -> String {
    // Encoded names and hexadecimal digits need no escaping.
    let key = |ticket: &Ticket| format!("[\"{}\",\"{}\"]", ticket.name.encoded(), ticket.holder.to_hex());
    format!("[{}]", tickets.map(key).collect::<Vec<_>>().join(","))
}

fn blob(holder: HolderId) -> Vec<u8> {
    holder.as_u128().to_be_bytes().to_vec()
}

fn mode(text: &str) -> Stepped<Mode> {
    Ok(text.parse()?)
}

fn tokens(rows: &[SqliteRow]) -> Stepped<Vec<i64>> {
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
}

fn count(value: i64) -> Stepped<usize> {
    usize::try_from(value).map_err(|_| Error::new(ErrorKind::Foreign, "a count is negative").into())
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

fn span(nanos: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
}
