//! The connections of one client to its server: a few for all its requests. Not the driver's pool: that one asks the server
//! before and after each use.

use std::sync::Arc;
use std::time::Duration;

use onelock_core::toolkit::{Mutex, Unanswered};
use onelock_core::{Error, ErrorKind, Result};
use sqlx::{FromRow, Row};
use tokio::sync::{AcquireError, Notify, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout, timeout_at};

use crate::unharmed::{legible, unharmed};
use crate::value::protocol;

/// How long a connection may be idle before it is closed. One is kept.
const IDLE: Duration = Duration::from_secs(10);

/// How soon a server that takes no more connections is asked for one again.
const AGAIN: Duration = Duration::from_secs(1);

/// How often a request that lost against other transactions is sent in all. Each loss means that another one got on.
const ATTEMPTS: u32 = 12;

/// How connections are made.
pub(crate) trait Connect: Send + Sync {
    type Conn: Send;

    /// A new connection, within the time for connecting.
    fn connect(&self) -> impl Future<Output = Result<Self::Conn>> + Send;

    fn fault(error: &sqlx::Error) -> Fault;
}

/// How they are used.
pub(crate) trait Server: Connect {
    type Request: Sync;
    type Row: Row;

    /// Sends a request and collects its answer. After an error that leaves the connection usable no transaction is open.
    fn send(
        &self,
        conn: &mut Self::Conn,
        request: &Self::Request,
    ) -> impl Future<Output = Result<Answer<Self::Row>, sqlx::Error>> + Send;

    /// The error for the caller.
    fn explain(&self, error: sqlx::Error, request: &Self::Request) -> Error;
}

/// What an error means for the connection and the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection is of no use any more, and the request may have been done.
    Broken,
    /// Other transactions were in the way. This one was rolled back: asking again is safe.
    Collision,
    /// Another transaction had something locked for too long. This one was rolled back.
    Locked,
    /// The server has no connection left for us.
    Full,
    /// The request failed.
    Other,
}

/// The server's answer to one request.
pub(crate) struct Answer<R> {
    /// The rows of all results.
    pub(crate) rows: Vec<R>,
    /// How many rows all statements found to change, where the store asks for that.
    #[cfg_attr(not(feature = "mysql"), expect(dead_code))]
    pub(crate) changed: u64,
    /// Whether it was sent twice, because the first connection broke: the server may have acted twice then.
    pub(crate) again: bool,
}

impl<R: Row> Answer<R> {
    pub(crate) fn new(rows: Vec<R>, changed: u64) -> Self {
        Self { rows, changed, again: false }
    }

    /// The values of each row.
    pub(crate) fn all<T: for<'r> FromRow<'r, R>>(&self) -> Result<Vec<T>> {
        legible(|| self.rows.iter().map(|row| T::from_row(row)).collect())
    }

    /// Those of the only row.
    pub(crate) fn one<T: for<'r> FromRow<'r, R>>(&self) -> Result<T> {
        let wrong = || protocol(&format!("{} rows instead of one", self.rows.len()));
        self.all()?.pop().filter(|_| self.rows.len() == 1).ok_or_else(wrong)
    }
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Verb,
    /// An acquire, of which many may be asked at once.
    Join,
    /// A verb that leases depend on, so many of them: all are answered when the last one is.
    Renew(usize),
}

/// A few connections, all alike. One is taken for each request and given back after its answer; a request that was not
/// answered in full, because it failed, took too long or was dropped, takes its connection with it, and the server rolls
/// back what had not been committed.
pub(crate) struct Pool<S: Connect> {
    pub(crate) server: S,
    /// How long a request may take.
    limit: Duration,
    pub(crate) permits: Arc<Semaphore>,
    /// Joins leave one connection to other verbs, where there are several: a release does not wait behind many joins.
    joins: Semaphore,
    /// For one more, which only renewals use: callers that keep all others, and do not go on, must not cost any lease.
    reserve: Semaphore,
    /// Those that nobody uses just now, and since when; the longest idle first.
    free: Mutex<Vec<(S::Conn, Instant)>>,
    given: Notify,
    /// When a join was answered last.
    answered: Mutex<Instant>,
    pub(crate) unanswered: Unanswered,
}

impl<S: Connect> Pool<S> {
    pub(crate) fn new(server: S, connections: u16, limit: Duration) -> Self {
        Self {
            server,
            limit,
            permits: Arc::new(Semaphore::new(connections.into())),
            joins: Semaphore::new(usize::from(connections).saturating_sub(1).max(1)),
            reserve: Semaphore::new(1),
            free: Mutex::default(),
            given: Notify::new(),
            answered: Mutex::new(Instant::now()),
            unanswered: Unanswered::new(limit),
        }
    }

    /// The right to use a connection, and where it is for a join, to join.
    async fn permit(&self, lane: Lane) -> Result<(SemaphorePermit<'_>, Option<SemaphorePermit<'_>>)> {
        let permit = async {
            match lane {
                Lane::Verb => Ok((self.permits.acquire().await?, None)),
                Lane::Join => {
                    let join = self.joins.acquire().await?;
                    Ok((self.permits.acquire().await?, Some(join)))
                }
                Lane::Renew(_) => tokio::select! {
                    biased;
                    permit = self.permits.acquire() => Ok((permit?, None)),
                    permit = self.reserve.acquire() => Ok((permit?, None)),
                },
            }
        };
        let since = Instant::now();
        let error = match timeout(self.limit, permit).await {
            Ok(Ok(permit)) => return Ok(permit),
            Ok(Err(AcquireError { .. })) => Error::new(ErrorKind::Closed, "the store was closed"),
            Err(_) => Error::new(ErrorKind::Unavailable, "every connection stayed busy"),
        };
        let others_join = lane == Lane::Join && *self.answered.lock() > since;
        Err(if others_join { error.queued() } else { error.unsent() })
    }

    /// A connection, and whether it was used before.
    pub(crate) async fn conn(&self, end: Instant) -> Result<(S::Conn, bool)> {
        let is_full = |error: &Error| {
            let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref());
            cause.is_some_and(|cause| S::fault(cause) == Fault::Full)
        };
        loop {
            let free = self.free.lock().pop();
            if let Some((conn, _)) = free {
                return Ok((conn, true));
            }
            match self.server.connect().await {
                // Until this client or another one gives one back.
                Err(error) if is_full(&error) && Instant::now() < end => {
                    let _ = timeout_at(end.min(Instant::now() + AGAIN), self.given.notified()).await;
                }
                made => return made.map(|conn| (conn, false)),
            }
        }
    }

    /// Takes a connection (back).
    pub(crate) fn give(&self, conn: S::Conn) {
        {
            let mut free = self.free.lock();
            // Looked at under the lock, so that none comes back after `close`.
            if !self.permits.is_closed() {
                free.push((conn, Instant::now()));
            }
        }
        self.given.notify_one();
        self.reap();
    }

    /// Closes what has been idle for long: others may need the server's connections.
    pub(crate) fn reap(&self) {
        self.close_given(1, |since| since.elapsed() >= IDLE);
    }

    /// Closes those that nobody uses.
    pub(crate) fn forget(&self) {
        self.close_given(0, |_| true);
    }

    /// Closes those that were given back at such times, but for so many.
    fn close_given(&self, kept: usize, at: impl Fn(Instant) -> bool) {
        let mut free = self.free.lock();
        let old = free.iter().take_while(|(_, since)| at(*since)).count();
        let old = old.min(free.len().saturating_sub(kept));
        let idle: Vec<_> = free.drain(..old).collect();
        drop(free);
        drop(idle);
    }

    /// Ends all connections; requests under way end with theirs.
    pub(crate) fn close(&self) {
        [&*self.permits, &self.joins, &self.reserve].iter().for_each(|semaphore| semaphore.close());
        self.forget();
    }
}

impl<S: Server> Pool<S> {
    /// Sends one request and gives what `read` makes of its answer. A connection whose answer cannot be read is out of
    /// step, and not used again. Its turn has to come within the time for a request, and the answer within that from then on
    /// (where a connection has to be made, within that for connecting as well). A request that lost against other transactions is
    /// sent again, as long as there is time.
    ///
    /// # Cancel safety
    /// The request may or may not be carried out; its connection is closed.
    pub(crate) async fn ask<T>(
        &self,
        lane: Lane,
        request: &S::Request,
        read: impl FnOnce(&Answer<S::Row>) -> Result<T>,
    ) -> Result<T> {
        let _permit = self.permit(lane).await?;
        let end = Instant::now() + self.limit;
        let (mut attempt, mut again) = (1, false);
        loop {
            // The first connection may have carried it there before it broke.
            let unsent = |error: Error| if again { error } else { error.unsent() };
            let (mut conn, used) = self.conn(end).await.map_err(unsent)?;
            let sent = Instant::now();
            // Connecting has a limit of its own.
            let end = end.max(sent + self.limit / 4);
            let Ok(sent) = timeout_at(end, unharmed(self.server.send(&mut conn, request))).await else {
                // On connections that have answered nothing since then it may be no better.
                self.close_given(0, |since| since < sent);
                let text = format!("the server did not answer within {:?}", self.limit);
                return Err(Error::new(ErrorKind::Timeout, text));
            };
            if lane == Lane::Join {
                *self.answered.lock() = Instant::now();
            }
            let error = match sent {
                Ok(answer) => {
                    let answer = read(&Answer { again, ..answer })?;
                    self.give(conn);
                    return Ok(answer);
                }
                Err(error) => error,
            };
            let retry = match S::fault(&error) {
                Fault::Broken | Fault::Full => {
                    // After a restart of the server all idle connections are dead at once; this request was the one to
                    // find out. A second, on a new connection, is harmless: every request may be asked twice.
                    self.forget();
                    !std::mem::replace(&mut again, true) && used
                }
                fault @ (Fault::Collision | Fault::Locked) => {
                    self.give(conn);
                    tokio::time::sleep(Duration::from_millis(1) * attempt).await;
                    // Where it is one of many leases the others are not kept waiting: it is divided, or the core asks again.
                    fault == Fault::Collision || !matches!(lane, Lane::Renew(2..))
                }
                Fault::Other => {
                    self.give(conn);
                    false
                }
            };
            if !retry || attempt == ATTEMPTS || Instant::now() >= end {
                let error = self.server.explain(error, request);
                if !again || error.is_unclear() {
                    return Err(error);
                }
                let text =
                    format!("the connection broke, and the second try says nothing of the first: {error}");
                return Err(Error::new(ErrorKind::Unavailable, text).caused_by(error));
            }
            attempt += 1;
        }
    }
}
