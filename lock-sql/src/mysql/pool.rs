//! The connections of one client, and how a request goes over one of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::TryStreamExt as _;
use onelock_core::{Error, ErrorKind, Result};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Either, Executor as _, MySqlConnection};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use super::config::MySqlConfig;
use super::connect::Connector;
use super::error::{closed, ends_connection, explain, is_contention};
use super::sql::{Sql, Value};
use crate::unharmed::{legible, unharmed};

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// A verb.
    Verb,
    /// A verb that leases depend on: it may use the connection in reserve.
    Renew,
    /// The waiters' poll, on a connection of its own: it never queues behind verbs.
    Poll,
}

/// How often a verb that lost against other transactions is tried in all. Each loss means that another one got on.
const ATTEMPTS: u32 = 12;

/// A few connections, all alike. One is taken for each request and given back after its answer; a request that was not
/// answered in full, because it failed, took too long or was dropped, takes its connection with it, and the server rolls
/// back what had not been committed. So no connection waits here inside a transaction.
pub(crate) struct Pool {
    pub(super) sql: Sql,
    connector: Connector,
    connect_timeout: Duration,
    request_timeout: Duration,
    verbs: Slots,
    polls: Slots,
    /// Whether the server takes compound blocks.
    blocks: AtomicBool,
    closed: AtomicBool,
}

/// The server's answer to one request.
#[derive(Default)]
pub(super) struct Answer {
    /// The rows of all results.
    pub(super) rows: Vec<MySqlRow>,
    /// How many rows all statements found to change.
    pub(super) changed: u64,
    /// Whether it was sent twice, because the first connection broke: the server may have acted twice then.
    pub(super) again: bool,
}

/// So many connections at most, and those that nobody uses just now.
struct Slots {
    all: Semaphore,
    /// For so many more: callers that keep all others, and do not go on, must not cost any lease.
    reserve: Semaphore,
    idle: Mutex<Vec<MySqlConnection>>,
}

impl Slots {
    fn new(count: usize, reserve: usize) -> Self {
        Self { all: Semaphore::new(count), reserve: Semaphore::new(reserve), idle: Mutex::default() }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<MySqlConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn take(&self, lane: Lane, end: Instant) -> Result<SemaphorePermit<'_>> {
        let slot = async {
            if lane != Lane::Renew {
                return self.all.acquire().await;
            }
            tokio::select! {
                biased;
                slot = self.all.acquire() => slot,
                slot = self.reserve.acquire() => slot,
            }
        };
        match timeout_at(end, slot).await {
            Ok(Ok(slot)) => Ok(slot),
            Ok(Err(_)) => Err(closed()),
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "all connections were busy for too long")),
        }
    }
}

impl Pool {
    pub(super) fn new(config: &MySqlConfig) -> Self {
        Self {
            sql: Sql::new(&config.namespace),
            connector: Connector::new(config),
            connect_timeout: config.connect_timeout,
            request_timeout: config.request_timeout,
            verbs: Slots::new(config.connections.into(), 1),
            polls: Slots::new(1, 0),
            blocks: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    /// Sends one request and gives what `read` makes of its answer. A connection whose answer cannot be read is out of
    /// step, and not used again. All within the request timeout (and, where a connection has to be made, the connect
    /// timeout). A request that lost against other transactions is sent again, as long as there is time.
    ///
    /// # Cancel safety
    /// The request may or may not be carried out; its connection is closed.
    pub(super) async fn ask<T>(
        &self,
        lane: Lane,
        sql: &str,
        read: impl FnOnce(&Answer) -> Result<T>,
    ) -> Result<T> {
        self.open()?;
        let text = self.text(sql);
        let end = Instant::now() + self.request_timeout;
        let slots = if lane == Lane::Poll { &self.polls } else { &self.verbs };
        let _slot = slots.take(lane, end).await.map_err(Error::unsent)?;
        let (mut attempt, mut again) = (1, false);
        loop {
            self.open()?;
            let idle = slots.idle().pop();
            let (mut connection, used) = match idle {
                Some(connection) => (connection, true),
                None => match self.connect().await {
                    Ok(connection) => (connection, false),
                    // The first connection may have carried it there before it broke.
                    Err(error) if again => return Err(error),
                    Err(error) => return Err(error.unsent()),
                },
            };
            // Connecting has a limit of its own.
            let end = end.max(Instant::now() + self.request_timeout / 4);
            let Ok(answer) = timeout_at(end, unharmed(send(&mut connection, text.clone()))).await else {
                let text = format!("the server did not answer within {:?}", self.request_timeout);
                return Err(Error::new(ErrorKind::Timeout, text));
            };
            let error = match answer {
                Ok(answer) => {
                    let answer = legible(|| read(&Answer { again, ..answer }))?;
                    self.give_back(slots, connection);
                    return Ok(answer);
                }
                Err(error) => error,
            };
            if ends_connection(&error) {
                drop(connection);
                // After a restart of the server all idle connections are dead at once; this request was the one to
                // find out. A second, on a new connection, is harmless: every verb may be asked twice.
                self.forget_idle();
                if used && !again && Instant::now() < end {
                    again = true;
                    continue;
                }
                return Err(explain(error));
            }
            // Some errors end the statement only: without this its transaction would go on.
            if let Ok(Ok(_)) = timeout_at(end, unharmed(run(&mut connection, "ROLLBACK"))).await {
                self.give_back(slots, connection);
            }
            let pause = Duration::from_micros(500) * attempt * (1 + jitter());
            if !is_contention(&error) || attempt == ATTEMPTS || Instant::now() + pause >= end {
                return Err(explain(error));
            }
            tokio::time::sleep(pause).await;
            attempt += 1;
        }
    }

    /// Ends all connections; requests under way end with theirs.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.forget_idle();
    }

    pub(super) fn open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    /// From now on transactions are sent as compound blocks.
    pub(super) fn use_blocks(&self) {
        self.blocks.store(true, Ordering::Release);
    }

    /// Several statements in one request are answered one by one, each in a packet of its own; a block of MariaDB is
    /// answered once, in about half the time.
    fn text(&self, sql: &str) -> String {
        if sql.starts_with("START TRANSACTION") && self.blocks.load(Ordering::Acquire) {
            format!("BEGIN NOT ATOMIC\n{sql}END")
        } else {
            sql.to_owned()
        }
    }

    async fn connect(&self) -> Result<MySqlConnection> {
        // A part of it: the server refuses a verb in time for another try, and one that was given up here does not wait there
        // for much longer.
        let seconds = i64::try_from(self.request_timeout.as_secs() / 4).unwrap_or(i64::MAX).max(1);
        let session = self.sql.session.fill(&[("lock_wait", Value::Int(seconds))]);
        let connecting = async {
            let mut connection = self.connector.connect().await?;
            run(&mut connection, &session).await?;
            Ok(connection)
        };
        match tokio::time::timeout(self.connect_timeout, unharmed(connecting)).await {
            Ok(connected) => connected.map_err(explain),
            Err(_) => {
                let text = format!("the server could not be reached within {:?}", self.connect_timeout);
                Err(Error::new(ErrorKind::Unavailable, text))
            }
        }
    }

    fn give_back(&self, slots: &Slots, connection: MySqlConnection) {
        let mut idle = slots.idle();
        // Looked at under the lock, so that none comes back after `close`.
        if !self.closed.load(Ordering::Acquire) {
            idle.push(connection);
        }
    }

    fn forget_idle(&self) {
        for slots in [&self.verbs, &self.polls] {
            let all = std::mem::take(&mut *slots.idle());
            drop(all);
        }
    }
}

/// Sends a request that was filled in by a [`Template`](super::sql::Template), and gives the rows of all its results.
pub(crate) async fn run(
    connection: &mut MySqlConnection,
    sql: impl Into<String>,
) -> Result<Vec<MySqlRow>, sqlx::Error> {
    Ok(send(connection, sql.into()).await?.rows)
}

async fn send(connection: &mut MySqlConnection, sql: String) -> Result<Answer, sqlx::Error> {
    // Safe: `sql` was filled in by a `Template`, which writes values as numbers and hexadecimal literals only.
    let mut parts = connection.fetch_many(sqlx::raw_sql(AssertSqlSafe(sql)));
    let mut answer = Answer::default();
    while let Some(part) = parts.try_next().await? {
        match part {
            Either::Left(result) => answer.changed = answer.changed.saturating_add(result.rows_affected()),
            Either::Right(row) => answer.rows.push(row),
        }
    }
    Ok(answer)
}

/// 0 to 3, to keep those who met once from meeting again.
fn jitter() -> u32 {
    let mut byte = [0];
    // Without random numbers they meet a little longer.
    let _ = getrandom::fill(&mut byte);
    u32::from(byte[0] % 4)
}
