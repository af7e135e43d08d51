//! A handful of connections. Not the driver's pool: that one asks the server before and after each use.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_core::{Error, ErrorKind, Result};
use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, Postgres, SqlSafeStr as _};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::config::PostgresConfig;
use super::error::{explain, is_collision, is_unprepared};

/// Makes sure of the level that the functions ask for, whatever the database's default is.
const SESSION: &str = "SET default_transaction_isolation = 'read committed'";

pub(super) struct Pool {
    options: PgConnectOptions,
    /// What every connection prepares when it is made, so that these requests take one round trip from the first on.
    prepared: Vec<Arc<str>>,
    connect_timeout: Duration,
    request_timeout: Duration,
    free: Mutex<Vec<PgConnection>>,
    permits: Semaphore,
    /// Whether statements are prepared: not behind a pooler that gives each transaction another connection.
    prepare: AtomicBool,
}

/// A connection in use. It goes back only when its last request was answered.
struct Lent<'p> {
    pool: &'p Pool,
    conn: Option<PgConnection>,
    answered: bool,
    _permit: SemaphorePermit<'p>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if self.answered
            && let Some(conn) = self.conn.take()
        {
            self.pool.give(conn);
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
            connect_timeout: config.connect_timeout,
            request_timeout: config.request_timeout,
            free: Mutex::new(Vec::new()),
            permits: Semaphore::new(config.connections.into()),
            prepare: AtomicBool::new(true),
        }
    }

    pub(super) fn options(&self) -> &PgConnectOptions {
        &self.options
    }

    /// Takes in a connection.
    ///
    /// # Errors
    /// When what it prepares cannot be prepared.
    pub(super) async fn take_in(&self, mut conn: PgConnection) -> Result<()> {
        self.make_ready(&mut conn).await.map_err(explain)?;
        self.give(conn);
        Ok(())
    }

    async fn make_ready(&self, conn: &mut PgConnection) -> Result<(), sqlx::Error> {
        for sql in &self.prepared {
            if !self.prepare.load(Ordering::Relaxed) {
                break;
            }
            match conn.prepare(AssertSqlSafe(sql.clone()).into_sql_str()).await {
                Ok(_) => {}
                Err(error) if is_unprepared(&error) => self.prepare.store(false, Ordering::Relaxed),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn give(&self, conn: PgConnection) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(conn);
    }

    /// A connection that has prepared nothing yet.
    pub(super) async fn connect(&self) -> Result<PgConnection> {
        self.connected(false).await
    }

    async fn connected(&self, ready: bool) -> Result<PgConnection> {
        let connect = async {
            let mut conn = self.options.connect().await?;
            conn.execute(SESSION).await?;
            if ready {
                self.make_ready(&mut conn).await?;
            }
            Ok(conn)
        };
        match tokio::time::timeout(self.connect_timeout, connect).await {
            Ok(conn) => conn.map_err(explain),
            // Nothing was asked yet.
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "the server could not be reached in time")),
        }
    }

    /// Sends a request in one round trip and gives the rows of its answer.
    pub(super) async fn fetch<'q>(
        &self,
        again: Again,
        build: impl Fn() -> Query<'q, Postgres, PgArguments> + Send + Sync,
    ) -> Result<Vec<PgRow>> {
        let mut tries = 0;
        loop {
            let mut lent = self.lend().await?;
            let fresh = lent.1;
            let lent = &mut lent.0;
            let Some(conn) = &mut lent.conn else {
                return Err(Error::new(ErrorKind::Unavailable, "no connection"));
            };
            let prepare = self.prepare.load(Ordering::Relaxed);
            let answer = build().persistent(prepare).fetch_all(conn);
            let error = match tokio::time::timeout(self.request_timeout, answer).await {
                Ok(Ok(rows)) => {
                    lent.answered = true;
                    return Ok(rows);
                }
                Ok(Err(error)) => error,
                Err(_) => return Err(Error::new(ErrorKind::Timeout, "the server did not answer in time")),
            };
            tries += 1;
            let answered = error.as_database_error().is_some();
            if is_unprepared(&error) && prepare {
                self.prepare.store(false, Ordering::Relaxed);
                continue;
            }
            let broken = !answered || super::error::state(&error).is_some_and(|s| s.starts_with("57P"));
            lent.answered = !broken;
            let retry = if broken { !fresh && again == Again::Yes } else { is_collision(&error) };
            if broken {
                // The others broke with it.
                self.free.lock().unwrap_or_else(PoisonError::into_inner).clear();
            }
            if !retry || tries > 3 {
                return Err(explain(error));
            }
        }
    }

    /// A connection, and whether it was made for this use.
    async fn lend(&self) -> Result<(Lent<'_>, bool)> {
        let closed = |_| Error::new(ErrorKind::Closed, "the PostgreSQL store was closed");
        let permit = match tokio::time::timeout(self.request_timeout, self.permits.acquire()).await {
            Ok(permit) => permit.map_err(closed)?,
            Err(_) => return Err(Error::new(ErrorKind::Unavailable, "every connection stayed busy")),
        };
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let fresh = free.is_none();
        let conn = match free {
            Some(conn) => conn,
            None => self.connected(true).await?,
        };
        Ok((Lent { pool: self, conn: Some(conn), answered: false, _permit: permit }, fresh))
    }

    /// Refuses further requests and ends the connections that are not in use.
    pub(super) async fn close(&self) {
        self.permits.close();
        let free = std::mem::take(&mut *self.free.lock().unwrap_or_else(PoisonError::into_inner));
        for conn in free {
            // The server ends what it does not hear of any more.
            let _ = tokio::time::timeout(self.request_timeout, conn.close()).await;
        }
    }
}
