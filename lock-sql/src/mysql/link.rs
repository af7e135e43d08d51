//! The connections of one client, and how a request goes over one of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::TryStreamExt as _;
use futures_util::stream::BoxStream;
use onelock_core::{Error, ErrorKind, Mode, Result};
use sqlx::mysql::{MySqlConnectOptions, MySqlQueryResult, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Either, Executor as _, MySqlConnection};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use super::config::MySqlConfig;
use super::error::{closed, ends_connection, explain, is_contention, is_unprepared};
use super::look::ahead;
use super::often::Often;
use super::sql::{Sql, Template, Value};
use crate::unharmed::{legible, unharmed};

/// Why something is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// For a verb.
    Verb,
    /// For a verb that leases depend on: it may use the connection in reserve.
    Renew,
    /// For the waiters, on a connection of their own: they never queue behind verbs.
    Look,
    /// For a verb that rings a bell: on the connection that holds it, that of the waiters.
    Ring,
    /// House-keeping.
    Tidy,
}

impl Lane {
    /// Lets an administrator (and a test) tell them apart.
    fn comment(self) -> &'static str {
        match self {
            Self::Verb | Self::Renew | Self::Ring => "",
            Self::Look => "/* onelock looks */ ",
            Self::Tidy => "/* onelock tidies */ ",
        }
    }
}

/// How often a verb that lost against other transactions is tried in all. Each loss means that another one got on.
const ATTEMPTS: u32 = 12;

/// A few connections, all alike. One is taken for each request and given back after its answer; a request that was not
/// answered in full, because it failed, took too long or was dropped, takes its connection with it, and the server rolls
/// back what had not been committed. So no connection waits here inside a transaction.
pub(super) struct Link {
    pub(super) sql: Sql,
    /// What is asked most, of who asks exclusively.
    pub(super) join: Often,
    pub(super) listen: Often,
    pub(super) hear: Often,
    pub(super) glance: Often,
    pub(super) leave: Often,
    pub(super) leave_ring: Often,
    options: MySqlConnectOptions,
    connect_timeout: Duration,
    pub(super) request_timeout: Duration,
    /// How rarely waiters look at most.
    pub(super) poll: Duration,
    /// What user locks of this store are told from others by: they belong to the whole server.
    pub(super) space: String,
    verbs: Slots,
    looks: Slots,
    /// Whether the server takes compound blocks.
    blocks: AtomicBool,
    /// Whether it has refused to prepare one.
    unprepared: AtomicBool,
    closed: AtomicBool,
}

/// What is sent.
enum Sent<'a> {
    Text(String),
    Often(&'a Often, &'a Template, &'a [(&'a str, Value<'a>)]),
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

/// Why a request was not answered.
enum Failure {
    Sql(sqlx::Error),
    Late,
}

impl Link {
    pub(super) fn new(config: &MySqlConfig) -> Self {
        let sql = Sql::new(&config.table_prefix);
        let join = Often::new(&sql.join, &[("ahead", &ahead(Mode::Exclusive, false))], block);
        let look = |sql: &str| format!("{}{sql}", Lane::Look.comment());
        let itself = ahead(Mode::Exclusive, true);
        let listen = Often::new(&sql.listen, &[("ahead", &itself)], look);
        let hear = Often::new(&sql.hear, &[("ahead", &itself)], look);
        let glance = Often::new(&sql.glance, &[], str::to_owned);
        let leave = Often::new(&sql.leave, &[], str::to_owned);
        let leave_ring = Often::new(&sql.leave_ring, &[], str::to_owned);
        Self {
            sql,
            join,
            listen,
            hear,
            glance,
            leave,
            leave_ring,
            options: config.options(),
            connect_timeout: config.connect_timeout,
            request_timeout: config.request_timeout,
            poll: config.poll,
            space: format!("{}.{}", config.database, config.table_prefix),
            verbs: Slots::new(config.pool as usize, 1),
            looks: Slots::new(1, 0),
            blocks: AtomicBool::new(false),
            unprepared: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    /// Sends one request whose answer says nothing.
    ///
    /// # Cancel safety
    /// As [`Link::ask`].
    pub(super) async fn request(&self, lane: Lane, sql: &str) -> Result<()> {
        self.ask(lane, sql, |_, _| Ok(())).await
    }

    /// Sends one request and gives what `read` makes of the rows of its one result and of whether it was sent twice,
    /// because the first connection broke: the server may have acted twice then. A connection whose answer cannot be
    /// read is out of step, and not used again. All within the request timeout (and, where a connection has to be made, the
    /// connect timeout). A request that lost against other transactions is sent again, as long as there is time.
    ///
    /// # Cancel safety
    /// The request may or may not be carried out; its connection is closed.
    pub(super) async fn ask<T>(
        &self,
        lane: Lane,
        sql: &str,
        read: impl FnOnce(&[MySqlRow], bool) -> Result<T>,
    ) -> Result<T> {
        let text = Sent::Text(self.text(lane, sql));
        self.answer(lane, text, |answer, again| read(&answer.rows, again)).await
    }

    /// Sends a request that is asked often, and does as [`Link::ask`] does. On MariaDB a connection prepares it once; where the
    /// server does not, or takes no blocks, it is filled in.
    ///
    /// # Cancel safety
    /// As [`Link::ask`].
    pub(super) async fn ask_often<T>(
        &self,
        lane: Lane,
        (often, template): (&Often, &Template),
        values: &[(&str, Value<'_>)],
        read: impl FnOnce(&[MySqlRow], bool) -> Result<T>,
    ) -> Result<T> {
        let sent = self.often(lane, often, template, values);
        self.answer(lane, sent, |answer, again| read(&answer.rows, again)).await
    }

    fn often<'a>(
        &self,
        lane: Lane,
        often: &'a Often,
        template: &'a Template,
        values: &'a [(&'a str, Value<'a>)],
    ) -> Sent<'a> {
        if self.has_blocks() && !self.unprepared.load(Ordering::Relaxed) {
            Sent::Often(often, template, values)
        } else {
            Sent::Text(self.text(lane, &template.fill(values)))
        }
    }

    /// Sends one statement that changes rows, as [`Link::ask_often`] does, and gives how many went or changed, and whether it was
    /// sent twice.
    ///
    /// # Cancel safety
    /// As [`Link::ask`].
    pub(super) async fn change(
        &self,
        lane: Lane,
        (often, template): (&Often, &Template),
        values: &[(&str, Value<'_>)],
    ) -> Result<(u64, bool)> {
        let sent = self.often(lane, often, template, values);
        self.answer(lane, sent, |answer, again| Ok((answer.changed, again))).await
    }

    async fn answer<T>(
        &self,
        lane: Lane,
        mut sent: Sent<'_>,
        read: impl FnOnce(&Answer, bool) -> Result<T>,
    ) -> Result<T> {
        self.open()?;
        let end = Instant::now() + self.request_timeout;
        let slots = if matches!(lane, Lane::Look | Lane::Ring) { &self.looks } else { &self.verbs };
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
            let failure = match timeout_at(end, unharmed(send(&mut connection, &sent))).await {
                Ok(Ok(answer)) => {
                    let answer = legible(|| read(&answer, again))?;
                    self.give_back(slots, connection);
                    return Ok(answer);
                }
                Ok(Err(error)) => Failure::Sql(error),
                Err(_) => Failure::Late,
            };
            let error = match failure {
                Failure::Late => {
                    return Err(Error::new(
                        ErrorKind::Timeout,
                        format!("the server did not answer within {:?}", self.request_timeout),
                    ));
                }
                Failure::Sql(error) => error,
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
            if let Sent::Often(_, template, values) = sent
                && is_unprepared(&error)
            {
                self.unprepared.store(true, Ordering::Relaxed);
                sent = Sent::Text(self.text(lane, &template.fill(values)));
                continue;
            }
            if !is_contention(&error) || attempt == ATTEMPTS {
                return Err(explain(error));
            }
            let pause = Duration::from_micros(500) * attempt * (1 + jitter());
            if Instant::now() + pause >= end {
                return Err(explain(error));
            }
            tokio::time::sleep(pause).await;
            attempt += 1;
        }
    }

    /// Whether nobody looks just now.
    pub(super) fn looks_idle(&self) -> bool {
        self.looks.all.available_permits() > 0
    }

    /// Ends all connections; requests under way end with theirs.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.forget_idle();
    }

    pub(super) fn open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    /// From now on verbs are sent as compound blocks.
    pub(super) fn use_blocks(&self) {
        self.blocks.store(true, Ordering::Release);
    }

    /// Whether requests may be compound blocks.
    pub(super) fn has_blocks(&self) -> bool {
        self.blocks.load(Ordering::Acquire)
    }

    /// Several statements in one request are answered one by one, each in a packet of its own; a block of MariaDB is
    /// answered once, in about half the time.
    fn text(&self, lane: Lane, sql: &str) -> String {
        let comment = lane.comment();
        if sql.starts_with("START TRANSACTION") && self.has_blocks() {
            format!("{comment}{}", block(sql))
        } else {
            format!("{comment}{sql}")
        }
    }

    async fn connect(&self) -> Result<MySqlConnection> {
        // A part of it: so a verb hears from the server that it lost and asks again, and one that was given up here does
        // not wait there for much longer.
        let seconds = i64::try_from(self.request_timeout.as_secs() / 4).unwrap_or(i64::MAX).max(1);
        let session = self.sql.session.fill(&[("lock_wait", Value::Int(seconds))]);
        let connecting = async {
            let mut connection = self.options.connect().await?;
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
        for slots in [&self.verbs, &self.looks] {
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
    Ok(all(connection, sql).await?.rows)
}

async fn all(connection: &mut MySqlConnection, sql: impl Into<String>) -> Result<Answer, sqlx::Error> {
    // Safe: `sql` was filled in by a `Template`, which writes values as numbers and hexadecimal literals only.
    gather(connection.fetch_many(sqlx::raw_sql(AssertSqlSafe(sql.into())))).await
}

async fn send(connection: &mut MySqlConnection, sent: &Sent<'_>) -> Result<Answer, sqlx::Error> {
    match sent {
        Sent::Text(text) => all(connection, text).await,
        Sent::Often(often, _, values) => gather(connection.fetch_many(often.with(values))).await,
    }
}

fn block(sql: &str) -> String {
    format!("BEGIN NOT ATOMIC\n{sql}END")
}

type Answers<'a> = BoxStream<'a, Result<Either<MySqlQueryResult, MySqlRow>, sqlx::Error>>;

/// What the server said to one request.
#[derive(Default)]
struct Answer {
    /// The rows of all results.
    rows: Vec<MySqlRow>,
    /// How many rows all statements changed.
    changed: u64,
}

async fn gather(mut answers: Answers<'_>) -> Result<Answer, sqlx::Error> {
    let mut all = Answer::default();
    while let Some(part) = answers.try_next().await? {
        match part {
            Either::Left(result) => all.changed = all.changed.saturating_add(result.rows_affected()),
            Either::Right(row) => all.rows.push(row),
        }
    }
    Ok(all)
}

/// 0 to 3, to keep those who met once from meeting again.
fn jitter() -> u32 {
    let mut byte = [0];
    // Without random numbers they meet a little longer.
    let _ = getrandom::fill(&mut byte);
    u32::from(byte[0] % 4)
}
