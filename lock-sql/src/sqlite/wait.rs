//! How waiters are notified: by what this process does itself, and by the touches of other processes, which are only
//! hints: a process may die between its commit and its touch, so waiters also poll now and then.

use std::time::Instant;

use onelock_core::{Error, FencingToken, HolderId, HolderMap, Result, Ticket, Wake};
use rusqlite::OptionalExtension as _;
use tokio::sync::oneshot;

use super::boot::nanos;
use super::connection::{Connection, Database, check_marks};
use super::line::blob;
use super::notices::{notified, watch};

/// How many times rarer polls are where the kernel notifies: then they are only for what was not notified. Hundreds of waiters must
/// not keep the processor busy by polling.
const RARER: u32 = 100;

/// The most entries ahead that are counted.
const FAR: u32 = 50;

pub(super) type Reply = oneshot::Sender<Result<Wake>>;

/// The waiters of this process.
#[derive(Default)]
pub(super) struct Waiters {
    /// An entry has one waiting call: one that is made anew comes in place of the one before, which is to ask.
    pub(super) calls: HolderMap<(Ticket, Reply)>,
    /// How many wait ahead of the first of them. Where the kernel does not notify, hundreds of processes poll, and those far
    /// behind must leave the processor to those in front.
    ahead: u32,
    polled: Option<Instant>,
}

impl Waiters {
    pub(super) fn add(&mut self, ticket: Ticket, reply: Reply) {
        if let Some((_, before)) = self.calls.insert(ticket.holder, (ticket, reply)) {
            // A caller that went away needs no answer.
            let _ = before.send(Ok(Wake::Ask));
        }
    }

    /// Ends when it is time to poll: because another process notified (true), or for what was not notified.
    pub(super) async fn due(&self, connection: &Connection) -> bool {
        let notices = connection.database.as_ref().and_then(|database| database.notices.get()?.as_ref());
        let pause = connection.config.poll * if notices.is_some() { RARER } else { 1 + self.ahead };
        let next = self.polled.map_or_else(Instant::now, |polled| polled + pause);
        tokio::select! {
            Some(()) = async { notified(notices?).await } => true,
            () = tokio::time::sleep_until(next.into()) => false,
        }
    }

    /// Reads what other processes did, and answers those whom it concerns.
    ///
    /// A notice is mostly of a promotion, and a line is promoted from its front: behind the first here that still waits nobody is
    /// read. An entry that is gone from there is seen by the next poll that was not notified.
    pub(super) fn poll(&mut self, connection: &mut Connection, notified: bool) {
        self.calls.retain(|_, (_, reply)| !reply.is_closed());
        if notified || connection.persist(Database::has_changed).unwrap_or(true) {
            let all: Vec<_> = self.calls.keys().copied().collect();
            self.ahead = FAR;
            self.answer(connection, &all, notified);
        }
        if !notified {
            self.polled = Some(Instant::now());
        }
    }

    /// Answers those of these whose wait is over; with `front`, only as far as each line has moved. Only reads: it is in no writer's way.
    pub(super) fn answer(&mut self, connection: &mut Connection, holders: &[HolderId], front: bool) {
        let mut waiting: Vec<_> =
            holders.iter().filter_map(|holder| self.calls.get(holder)).map(|(ticket, _)| ticket).collect();
        if waiting.is_empty() {
            return;
        }
        waiting.sort_unstable_by(|a, b| (&a.name, a.token).cmp(&(&b.name, b.token)));
        let read = connection.persist(|database| {
            // First, so that nothing falls between the answer and what is notified later.
            database.notices.get_or_init(|| watch(&database.files.names[0]));
            let mut own = database.sql.prepare_cached(include_str!("sql/own.sql"))?;
            let (mut ended, mut waits) = (Vec::new(), None);
            for ticket in &waiting {
                if front && waits == Some(&ticket.name) {
                    continue;
                }
                let of = (ticket.name.encoded(), blob(ticket.holder), nanos(database.now()));
                let wake = match own.query_row(of, |row| row.try_into()).optional()? {
                    None => Wake::Ask,
                    Some((token, true, _)) => Wake::Held(FencingToken::new(token)?),
                    Some((_, false, ahead)) => {
                        self.ahead = self.ahead.min(ahead);
                        // Without its number it may be behind the next.
                        waits = ticket.token.and(Some(&ticket.name));
                        continue;
                    }
                };
                ended.push((ticket.holder, Ok(wake)));
            }
            // Last: versions only grow, so what was read before was of this one.
            check_marks(&database.sql)?;
            database.files.check()?;
            Ok(ended)
        });
        let failed = |error: Error| waiting.iter().map(|of| (of.holder, Err(error.clone()))).collect();
        let ended: Vec<_> = read.unwrap_or_else(failed);
        for (holder, wake) in ended {
            // A caller that went away needs no answer.
            let _ = self.calls.remove(&holder).map(|(_, reply)| reply.send(wake));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::time::Duration;

    use onelock_core::{BootClock, FencingToken, LockName, Mode};

    use super::super::config::SqliteConfig;
    use super::*;

    /// Without notices each process polls, and hundreds of them must leave the processor to those in front.
    #[tokio::test(start_paused = true)]
    async fn who_has_others_ahead_polls_later() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = SqliteConfig::new(folder.path().join("locks.db"));
        config.poll = Duration::from_secs(1);
        let mut connection = Connection::new(config, std::sync::Arc::new(BootClock));
        let fill = |file: &mut Database| {
            let _ = file.notices.set(None);
            Ok(file.sql.execute_batch(
                "WITH RECURSIVE seq(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM seq WHERE n < 81)
                INSERT INTO onelock_line SELECT n, 'n', unhex(format('%032x', n)), 'x', n = 1, 1 << 62, 0, 0, '' FROM seq",
            )?)
        };
        connection.persist(fill).unwrap();
        let mut waiters = Waiters::default();
        let mut wait = |holder| {
            let (reply, wait) = oneshot::channel();
            let ticket =
                Ticket::new(LockName::new("n").unwrap(), HolderId::from_u128(holder), Mode::Exclusive);
            waiters.calls.insert(ticket.holder, (ticket, reply));
            wait
        };
        let _waits = [wait(81), wait(12)];
        waiters.poll(&mut connection, false);
        let began = tokio::time::Instant::now();
        assert!(!waiters.due(&connection).await);
        // What the test itself takes is in it, too.
        let pauses = began.elapsed().as_secs();
        assert!((11..20).contains(&pauses), "{pauses} pauses with ten ahead of the first");
    }

    #[tokio::test]
    async fn a_notice_is_a_read_of_the_front_of_each_line() {
        let folder = tempfile::tempdir().unwrap();
        let config = SqliteConfig::new(folder.path().join("locks.db"));
        let mut connection = Connection::new(config, std::sync::Arc::new(BootClock));
        let mut change = |text: &str| connection.persist(|file| Ok(file.sql.execute_batch(text)?)).unwrap();
        change("SELECT 1");
        let (mut waiters, mut waits) = (Waiters::default(), Vec::new());
        for token in 1..=60_u8 {
            let name = if token % 2 == 0 { "even" } else { "odd" };
            let holder = HolderId::from_u128(token.into());
            change(&format!(
                "INSERT INTO onelock_line VALUES ({token}, '{name}', x'{token:032x}', 'x', 0, 1 << 62, 0, 0, '')"
            ));
            let ticket = Ticket::new(LockName::new(name).unwrap(), holder, Mode::Exclusive);
            let (reply, wait) = oneshot::channel();
            let ticket = ticket.token(FencingToken::new(token.into()).unwrap());
            waiters.calls.insert(holder, (ticket, reply));
            waits.push(wait);
        }
        change(
            "UPDATE onelock_line SET held = 1 WHERE token = 1; DELETE FROM onelock_line WHERE token IN (3, 20)",
        );
        waiters.poll(&mut connection, true);
        let reads = connection.persist(|file| {
            let own = file.sql.prepare_cached(include_str!("sql/own.sql"))?;
            Ok(own.get_status(rusqlite::StatementStatus::Run))
        });
        assert_eq!(reads.unwrap(), 4, "of 1, 3, 5 and 2");
        let mut answered = |token: usize| waits[token - 1].try_recv().ok().map(Result::unwrap);
        assert_eq!(answered(1), Some(Wake::Held(FencingToken::new(1).unwrap())));
        assert_eq!((answered(3), answered(5), answered(20)), (Some(Wake::Ask), None, None));
        waiters.poll(&mut connection, false);
        assert_eq!((answered(5), answered(20)), (None, Some(Wake::Ask)));
    }
}
