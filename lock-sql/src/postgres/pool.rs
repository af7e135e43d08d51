//! A handful of connections. Not the driver's pool: that one asks the server before and after each use.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onelock_core::{Error, ErrorKind, Result};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, SqlSafeStr as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::call::Call;
use super::config::PostgresConfig;
use super::connect::Connector;
use super::error::{denied, explain, is_collision, is_full, is_not_the_primary, is_unprepared, state};
use crate::unharmed::{legible, unharmed};

/// Makes sure of the level that the functions ask for, whatever the database's default is.
const SESSION: &str = "SET default_transaction_isolation = 'read committed'";

/// How long a connection may be idle before it is closed. One is kept.
const IDLE: Duration = Duration::from_secs(10);

/// How long after a refused connection more are asked for again.
const AGAIN: Duration = Duration::from_secs(5);

pub(super) struct Pool {
    connector: Connector,
    schema: String,
    /// What every session prepares when it is first used, so that these requests take one round trip from then on.
    prepared: Vec<Arc<str>>,
    connect_timeout: Duration,
    request_timeout: Duration,
    state: Mutex<State>,
    /// How many connections there are.
    open: Arc<AtomicUsize>,
    /// As many as the pool may have connections now.
    permits: Arc<Semaphore>,
    /// For one connection more: callers that keep all others, and do not go on, must not cost any lease.
    reserve: Arc<Semaphore>,
    /// Whether a connection made now is one session of the server: proven, or it is not used as one.
    direct: AtomicBool,
}

struct State {
    /// The longest idle first.
    free: Vec<(Conn, Instant)>,
    /// How many permits the pool was made with, and has now.
    most: usize,
    size: usize,
    /// When the server refused a further connection.
    refused: Option<Instant>,
}

struct Conn {
    conn: PgConnection,
    /// Whether it has its level set and its statements prepared.
    ready: bool,
    _counted: Counted,
}

/// One of the connections that there are.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A connection in use. It goes back only when its last request was answered.
struct Lent {
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
            self.pool.give(conn);
            self.pool.reap();
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
            connector: Connector::new(config),
            schema: config.namespace.clone(),
            connect_timeout: config.connect_timeout,
            request_timeout: config.request_timeout,
            state: Mutex::new(State {
                free: Vec::new(),
                most: config.connections.into(),
                size: config.connections.into(),
                refused: None,
            }),
            open: Arc::default(),
            permits: Arc::new(Semaphore::new(config.connections.into())),
            reserve: Arc::new(Semaphore::new(1)),
            direct: AtomicBool::new(false),
        }
    }

    pub(super) fn connector(&self) -> &Connector {
        &self.connector
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
        self.give(self.counted(conn));
    }

    fn counted(&self, conn: PgConnection) -> Conn {
        self.open.fetch_add(1, Ordering::AcqRel);
        Conn { conn, ready: false, _counted: Counted(Arc::clone(&self.open)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give(&self, conn: Conn) {
        self.state().free.push((conn, Instant::now()));
    }

    /// Closes what has been idle for long: others may need the server's connections.
    pub(super) fn reap(&self) {
        let mut idle = Vec::new();
        {
            let free = &mut self.state().free;
            let old = free.iter().take_while(|(_, since)| since.elapsed() >= IDLE).count();
            idle.extend(free.drain(..old.min(free.len().saturating_sub(1))));
        }
    }

    /// Connects; nothing is set in the session yet.
    pub(super) async fn connect(&self) -> Result<PgConnection> {
        self.connector.connect().await.map_err(|e| denied(e, "CONNECT on the database"))
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
        let mut tries = 0;
        loop {
            let lent = self.lend(call.verb.urgent).await;
            // An earlier try may have reached the server before its connection broke.
            let (mut lent, fresh) = lent.map_err(|error| if tries == 0 { error.unsent() } else { error })?;
            let error = match self.try_on(&mut lent, call, &read).await {
                Ok(answer) => return answer,
                Err(error) => error,
            };
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
                    let broken = std::mem::take(&mut self.state().free);
                    drop(broken);
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

    /// A connection, and whether it was made for this use. Where the server has none left, one of those that there are.
    async fn lend(self: &Arc<Self>, mut urgent: bool) -> Result<(Lent, bool)> {
        let end = Instant::now() + self.request_timeout;
        loop {
            self.grow();
            let permit = match tokio::time::timeout_at(end, self.permit(urgent)).await {
                Ok(permit) => permit?,
                Err(_) => return Err(Error::new(ErrorKind::Unavailable, "every connection stayed busy")),
            };
            let free = self.state().free.pop();
            let fresh = free.is_none();
            let conn = match free {
                Some((conn, _)) => conn,
                None => match self.connector.connect().await {
                    Ok(conn) => self.counted(conn),
                    Err(error) if is_full(&error) && self.shrink(permit) => {
                        urgent = false;
                        continue;
                    }
                    Err(error) => return Err(denied(error, "CONNECT on the database")),
                },
            };
            let pool = Arc::clone(self);
            return Ok((Lent { pool, conn: Some(conn), answered: false, _permit: permit }, fresh));
        }
    }

    async fn permit(&self, urgent: bool) -> Result<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.permits).acquire_owned();
        let permit = if urgent {
            tokio::select! {
                biased;
                permit = permit => permit,
                permit = Arc::clone(&self.reserve).acquire_owned() => permit,
            }
        } else {
            permit.await
        };
        permit.map_err(|_| Error::new(ErrorKind::Closed, "the PostgreSQL store was closed"))
    }

    /// The server refused a further connection: whether to wait for one of those that there are. Then the pool has one less for
    /// a while, so those who wait are served in turn.
    fn shrink(&self, permit: OwnedSemaphorePermit) -> bool {
        if self.open.load(Ordering::Acquire) == 0 {
            return false;
        }
        if Arc::ptr_eq(permit.semaphore(), &self.reserve) {
            return true;
        }
        let mut state = self.state();
        if state.size < 2 {
            return false;
        }
        permit.forget();
        state.size -= 1;
        state.refused = Some(Instant::now());
        true
    }

    /// Asks for more connections again some time after one was refused.
    fn grow(&self) {
        let mut state = self.state();
        if state.refused.is_some_and(|since| since.elapsed() >= AGAIN) {
            self.permits.add_permits(state.most - state.size);
            (state.size, state.refused) = (state.most, None);
        }
    }

    /// Refuses further requests and ends the connections that are not in use.
    pub(super) async fn close(&self) {
        self.permits.close();
        self.reserve.close();
        let free = std::mem::take(&mut self.state().free);
        for (conn, _) in free {
            // The server ends connections that are silent.
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
