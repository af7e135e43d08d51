//! The two requests of a session lock, as prepared statements, each lock on a connection of its own.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, Row as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::mysql::{ask, filled, options};
use crate::networked::Way;
use crate::plain::{self, Plain};
use crate::subject::{Ask, Client, Failure, Lock, Need};

/// As many as a client of this library has unless told otherwise.
const CONNECTIONS: usize = 32;

const TAKE: &str = include_str!("../../../lock-sql/src/session/mysql/sql/take.sql");
const GIVE: &str = include_str!("../../../lock-sql/src/session/mysql/sql/give.sql");

pub(super) struct Floor;

struct Shared {
    options: MySqlConnectOptions,
    permits: Arc<Semaphore>,
    free: Mutex<Vec<Session>>,
    lease: u64,
    attempt: Prepared,
    take: Prepared,
    give: Prepared,
}

/// A statement, and which value each of its marks is.
struct Prepared {
    sql: Arc<str>,
    order: Vec<&'static str>,
}

struct Session {
    connection: MySqlConnection,
    own: String,
}

struct Connections(Arc<Shared>);

#[async_trait]
impl Way for Floor {
    async fn open(&self, server: SocketAddr, lease: Duration) -> Result<Arc<dyn Client>, Failure> {
        let shared = Shared {
            options: options(server),
            permits: Arc::new(Semaphore::new(CONNECTIONS)),
            free: Mutex::default(),
            lease: lease.as_secs().max(1),
            attempt: Prepared::new(TAKE, "0"),
            take: Prepared::new(TAKE, "31536000"),
            give: Prepared::new(GIVE, ""),
        };
        shared.take_back(shared.connect().await?);
        Ok(Arc::new(Connections(Arc::new(shared))))
    }

    fn lacks(&self, need: Need) -> Option<String> {
        super::lacks_waiting(need)
    }
}

impl Prepared {
    /// What is the same for every lock is filled in.
    fn new(text: &str, patience: &str) -> Self {
        let same = [(":idle", ""), (":patience", patience), (":shift", "0"), (":asked", "0")];
        let text = filled(text, &same);
        let (mut sql, mut order, mut rest) = (String::new(), Vec::new(), text.trim_end_matches([';', '\n']));
        let next = |rest: &str| {
            let found =
                [":key", ":own", ":tag"].into_iter().filter_map(|name| Some((rest.find(name)?, name)));
            found.min()
        };
        while let Some((at, name)) = next(rest) {
            sql.push_str(&rest[..at]);
            sql.push('?');
            order.push(name);
            rest = &rest[at + name.len()..];
        }
        sql.push_str(rest);
        Self { sql: sql.into(), order }
    }

    async fn ask(&self, session: &mut Session, key: &str) -> Result<MySqlRow, Failure> {
        let mut query = sqlx::query(AssertSqlSafe(Arc::clone(&self.sql)));
        for name in &self.order {
            query = match *name {
                ":key" => query.bind(key),
                ":own" => query.bind(&session.own),
                _ => query.bind(&b"floor tag"[..]),
            };
        }
        Ok(query.fetch_one(&mut session.connection).await?)
    }
}

impl Shared {
    async fn connect(&self) -> Result<Session, Failure> {
        let mut connection = self.options.connect().await?;
        connection
            .execute(sqlx::raw_sql(sqlx::AssertSqlSafe(format!("SET wait_timeout = {}", self.lease))))
            .await?;
        let id: i64 = ask(&mut connection, "SELECT CAST(CONNECTION_ID() AS SIGNED)").await?.try_get(0)?;
        Ok(Session { connection, own: format!("floor/{id}/") })
    }

    async fn lend(&self) -> Result<(OwnedSemaphorePermit, Session), Failure> {
        let permit = Arc::clone(&self.permits).acquire_owned().await?;
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match free {
            Some(session) => Ok((permit, session)),
            None => Ok((permit, self.connect().await?)),
        }
    }

    fn take_back(&self, session: Session) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(session);
    }
}

#[async_trait]
impl Client for Connections {
    fn prepare(&self, ask: &Ask<'_>) -> Result<Arc<dyn Lock>, Failure> {
        Ok(plain::lock(Name { shared: Arc::clone(&self.0), key: ask.name.to_owned() }))
    }

    async fn ping(&self) -> Result<bool, Failure> {
        let (_permit, mut session) = self.0.lend().await?;
        ask(&mut session.connection, "SELECT 1").await?;
        self.0.take_back(session);
        Ok(true)
    }

    async fn close(&self) -> Result<(), Failure> {
        let free = std::mem::take(&mut *self.0.free.lock().unwrap_or_else(PoisonError::into_inner));
        for session in free {
            session.connection.close().await?;
        }
        Ok(())
    }
}

struct Name {
    shared: Arc<Shared>,
    key: String,
}

impl Plain for Name {
    type Kept = (OwnedSemaphorePermit, Session);

    async fn take(&self, wait: bool) -> Result<Option<Self::Kept>, Failure> {
        let (permit, mut session) = self.shared.lend().await?;
        let take = if wait { &self.shared.take } else { &self.shared.attempt };
        let number: Option<i64> = take.ask(&mut session, &self.key).await?.try_get(1)?;
        if number.is_none() {
            self.shared.take_back(session);
            return Ok(None);
        }
        Ok(Some((permit, session)))
    }

    async fn give_back(&self, (_permit, mut session): Self::Kept) -> Result<(), Failure> {
        let gone: Option<i64> = self.shared.give.ask(&mut session, &self.key).await?.try_get(1)?;
        self.shared.take_back(session);
        if gone == Some(1) { Ok(()) } else { Err("the lock was not held any more".into()) }
    }
}
