//! A handful of connections. Not the driver's pool: that one asks the server before and after each use.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_core::{Error, ErrorKind, Result};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, SqlSafeStr as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::call::Call;
use super::config::PostgresConfig;
use super::error::{denied, explain, is_collision, is_not_the_primary, is_unprepared, state};
use crate::unharmed::{legible, unharmed};

/// Makes sure of the level that the functions ask for, whatever the database's default is.
const SESSION: &str = "SET default_transaction_isolation = 'read committed'";

pub(super) struct Pool {
    options: PgConnectOptions,
    schema: String,
    /// What every session prepares when it is first used, so that these requests take one round trip from then on.
    prepared: Vec<Arc<str>>,
    connect_timeout: Duration,
    request_timeout: Duration,
    free: Mutex<Vec<Conn>>,
    permits: Arc<Semaphore>,
    /// For one connection more: callers that keep all others, and do not go on, must not cost any lease.
    reserve: Arc<Semaphore>,
    /// Whether a connection made now is one session of the server: proven, or it is not used as one.
    direct: AtomicBool,
}

struct Conn {
    conn: PgConnection,
    /// Whether it has its level set and its statements prepared.
    ready: bool,
}

/// A connection in use. It goes back only when its last request was answered.
pub(super) struct Lent {
    pool: Arc<Pool>,
    conn: Option<Conn>,
    answered: bool,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.answered
            && let Some(conn) = self.conn.take()
        {
            self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).push(conn);
        }
    }
}

/// Whether a request may be sent again after its connection broke.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// Twice is the same as once.
    Yes,
    /// The second answer would be another one.
    No,
}

impl Pool {
    pub(super) fn new(config: &PostgresConfig, prepared: Vec<Arc<str>>) -> Self {
        Self {
            prepared,
            options: config.options(),
            schema: config.schema.clone(),
            connect_timeout: config.connect_timeout,
            request_timeout: config.request_timeout,
            free: Mutex::new(Vec::new()),
            permits: Arc::new(Semaphore::new(config.connections.into())),
            reserve: Arc::new(Semaphore::new(1)),
            direct: AtomicBool::new(false),
        }
    }

    pub(super) fn options(&self) -> &PgConnectOptions {
        &self.options
    }

    /// How long to be answered may take.
    pub(super) fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// How long to connect and to be answered may take.
    pub(super) fn patience(&self) -> Duration {
        self.connect_timeout + self.request_timeout
    }

    /// Whether connections made from now on are sessions of the server. Those that are in use stay what they are.
    pub(super) fn set_direct(&self, direct: bool) {
        self.direct.store(direct, Ordering::Release);
    }

    /// Takes in a connection.
    pub(super) fn take_in(&self, conn: PgConnection) {
        self.give(Conn { conn, ready: false });
    }

    fn give(&self, conn: Conn) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(conn);
    }

    /// Connects; nothing is set in the session yet.
    pub(super) async fn connect(&self) -> Result<PgConnection> {
        match tokio::time::timeout(self.connect_timeout, unharmed(self.options.connect())).await {
            Ok(conn) => conn.map_err(|e| denied(e, "CONNECT on the database")),
            // Nothing was asked yet.
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "the server could not be reached in time")),
        }
    }

    async fn make_ready(&self, conn: &mut Conn) -> Result<(), sqlx::Error> {
        conn.conn.execute(SESSION).await?;
        for sql in &self.prepared {
            conn.conn.prepare(AssertSqlSafe(sql.clone()).into_sql_str()).await?;
        }
        conn.ready = true;
        Ok(())
    }

    /// Sends a request in one round trip and gives what `read` makes of the rows of its answer. A connection whose answer
    /// cannot be read is out of step, and not used again.
    pub(super) async fn fetch<T>(
        self: &Arc<Self>,
        again: Again,
        call: &Call<'_>,
        read: impl Fn(&[PgRow]) -> Result<T>,
    ) -> Result<T> {
        Ok(self.fetch_lent(again, call, read).await?.0)
    }

    /// The same, and the connection that it went by.
    pub(super) async fn fetch_lent<T>(
        self: &Arc<Self>,
        again: Again,
        call: &Call<'_>,
        read: impl Fn(&[PgRow]) -> Result<T>,
    ) -> Result<(T, Lent)> {
        self.fetch_by(None, again, call, read).await
    }

    /// The same by a connection that is lent already, which is closed where that fails.
    pub(super) async fn fetch_by<T>(
        self: &Arc<Self>,
        mut first: Option<Lent>,
        again: Again,
        call: &Call<'_>,
        read: impl Fn(&[PgRow]) -> Result<T>,
    ) -> Result<(T, Lent)> {
        let mut tries = 0;
        loop {
            let own = first.take();
            let kept = own.is_some();
            let lent = match own {
                Some(lent) => Ok((lent, false)),
                None => self.lend(call.verb.urgent).await,
            };
            // An earlier try may have reached the server before its connection broke.
            let (mut lent, fresh) = lent.map_err(|error| if tries == 0 { error.unsent() } else { error })?;
            let error = match self.try_on(&mut lent, call, &read).await {
                Ok(answer) => return Ok((answer?, lent)),
                Err(error) => error,
            };
            lent.answered &= !kept && !call.verb.takes;
            tries += 1;
            let retry = if is_broken(&error) {
                !fresh && again == Again::Yes
            } else {
                is_unprepared(&error) || is_collision(&error)
            };
            if !retry || tries > 3 {
                let (schema, function) = (&self.schema, call.verb.function);
                let needs = format!("USAGE on schema {schema} and EXECUTE on function {schema}.{function}");
                return Err(denied(error, &needs));
            }
        }
    }

    /// One try: the answer, or the driver's error.
    async fn try_on<T>(
        &self,
        lent: &mut Lent,
        call: &Call<'_>,
        read: impl Fn(&[PgRow]) -> Result<T>,
    ) -> Result<Result<T>, sqlx::Error> {
        lent.answered = false;
        let Some(conn) = &mut lent.conn else {
            return Ok(Err(Error::new(ErrorKind::Unavailable, "no connection")));
        };
        match tokio::time::timeout(self.request_timeout, unharmed(self.ask(conn, call))).await {
            Ok(Ok(rows)) => {
                let answer = legible(|| read(&rows));
                lent.answered = answer.is_ok();
                Ok(answer)
            }
            Ok(Err(error)) => {
                // Where somebody threw away what the session had prepared nothing was done, and another connection will do.
                lent.answered = !is_broken(&error) && !is_unprepared(&error);
                if is_broken(&error) {
                    // The others broke with it.
                    self.free.lock().unwrap_or_else(PoisonError::into_inner).clear();
                }
                Err(error)
            }
            Err(_) => Ok(Err(Error::new(ErrorKind::Timeout, "the server did not answer in time"))),
        }
    }

    async fn ask(&self, conn: &mut Conn, call: &Call<'_>) -> Result<Vec<PgRow>, sqlx::Error> {
        if !conn.ready && self.direct.load(Ordering::Acquire) {
            self.make_ready(conn).await?;
        }
        if !conn.ready {
            return conn.conn.fetch_all(sqlx::raw_sql(call.spelled())).await;
        }
        if call.verb.many {
            return call.bound()?.fetch_all(&mut conn.conn).await;
        }
        Ok(call.bound()?.fetch_optional(&mut conn.conn).await?.into_iter().collect())
    }

    /// Readies a connection before it is needed.
    pub(super) async fn warm(self: &Arc<Self>) -> Result<()> {
        let (mut lent, _) = self.lend(false).await?;
        if let Some(conn) = &mut lent.conn
            && self.direct.load(Ordering::Acquire)
        {
            let ready = tokio::time::timeout(self.request_timeout, unharmed(self.make_ready(conn))).await;
            match ready {
                Ok(done) => done.map_err(explain)?,
                Err(_) => return Err(Error::new(ErrorKind::Timeout, "the server did not answer in time")),
            }
        }
        lent.answered = true;
        Ok(())
    }

    /// A connection, and whether it was made for this use.
    async fn lend(self: &Arc<Self>, urgent: bool) -> Result<(Lent, bool)> {
        let closed = |_| Error::new(ErrorKind::Closed, "the PostgreSQL store was closed");
        let permit = async {
            let permit = Arc::clone(&self.permits).acquire_owned();
            if !urgent {
                return permit.await;
            }
            tokio::select! {
                biased;
                permit = permit => permit,
                permit = Arc::clone(&self.reserve).acquire_owned() => permit,
            }
        };
        let permit = match tokio::time::timeout(self.request_timeout, permit).await {
            Ok(permit) => permit.map_err(closed)?,
            Err(_) => return Err(Error::new(ErrorKind::Unavailable, "every connection stayed busy")),
        };
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let fresh = free.is_none();
        let conn = match free {
            Some(conn) => conn,
            None => Conn { conn: self.connect().await?, ready: false },
        };
        Ok((Lent { pool: Arc::clone(self), conn: Some(conn), answered: false, _permit: permit }, fresh))
    }

    /// Refuses further requests and ends the connections that are not in use.
    pub(super) async fn close(&self) {
        self.permits.close();
        self.reserve.close();
        let free = std::mem::take(&mut *self.free.lock().unwrap_or_else(PoisonError::into_inner));
        for conn in free {
            // The server ends what it does not hear of any more.
            let _ = tokio::time::timeout(self.request_timeout, unharmed(conn.conn.close())).await;
        }
    }
}

/// Whether the connection is of no use any more, and what was asked may or may not have been done. A server that is
/// shut down and a pooler that has lost its server say so; a standby takes no writes, and the next connection may
/// find the primary.
fn is_broken(error: &sqlx::Error) -> bool {
    match state(error) {
        None => true,
        Some(state) => state.starts_with("57P") || state.starts_with("08") || is_not_the_primary(error),
    }
}
