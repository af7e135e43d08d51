//! The functions of a line, called by prepared statements on as many connections as a client of this library has, and one
//! connection that listens.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock::HolderId;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgListener, PgPoolOptions, PgSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _, Row as _};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;

use super::pool::Pool;
use super::told::Told;
use crate::networked::Way;
use crate::plain::{self, Plain};
use crate::subject::{Ask, Client, Failure, Lock, Need};

/// As many as a client of this library has unless told otherwise.
const CONNECTIONS: usize = 4;

const DURABLE: &str = include_str!("../../../lock-sql/src/postgres/sql/acquire_and_flush.sql");
const RELAXED: &str = include_str!("../../../lock-sql/src/postgres/sql/acquire.sql");
const RELEASE: &str = include_str!("../../../lock-sql/src/postgres/sql/release.sql");

pub(super) struct Floor {
    pub(super) durable: bool,
}

struct Shared {
    pool: Pool<PgConnection>,
    options: PgConnectOptions,
    acquire: Arc<str>,
    release: Arc<str>,
    channel: String,
    told: Arc<Told>,
    lease: i64,
}

struct Connections {
    shared: Arc<Shared>,
    listens: AbortOnDrop,
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(super) fn options(server: SocketAddr) -> PgConnectOptions {
    PgConnectOptions::new_without_pgpass()
        .host(&server.ip().to_string())
        .port(server.port())
        .username("postgres")
        .database("postgres")
        .ssl_mode(PgSslMode::Disable)
        .disable_statement_logging()
}

#[async_trait]
impl Way for Floor {
    async fn open(&self, server: SocketAddr, lease: Duration) -> Result<Arc<dyn Client>, Failure> {
        let acquire = if self.durable { DURABLE.to_owned() } else { RELAXED.replace("{durable}", "false") };
        let own = |sql: &str| Arc::<str>::from(sql.trim().replace("{schema}", "onelock"));
        let shared = Shared {
            pool: Pool::new(CONNECTIONS),
            options: options(server),
            acquire: own(&acquire),
            release: own(RELEASE),
            channel: format!("onelock_{}", HolderId::random()?.to_hex()),
            told: Arc::default(),
            lease: i64::try_from(lease.as_micros())?,
        };
        let listens = listen(&shared).await?;
        let (permit, _) = shared.pool.lend().await?;
        shared.pool.take_back(shared.connect().await?);
        drop(permit);
        Ok(Arc::new(Connections { shared: Arc::new(shared), listens }))
    }

    fn lacks(&self, need: Need) -> Option<String> {
        super::lacks_waiting(need)
    }
}

/// Takes what the client's channel tells.
async fn listen(shared: &Shared) -> Result<AbortOnDrop, Failure> {
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(shared.options.clone());
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.listen(&shared.channel).await?;
    let told = Arc::clone(&shared.told);
    Ok(AbortOnDrop(tokio::spawn(async move {
        // Whoever waits when the connection is lost waits for ever, and the workload's patience ends.
        while let Ok(notification) = listener.recv().await {
            let holder = notification.payload().strip_prefix('h').and_then(|rest| rest.get(..32));
            holder.into_iter().for_each(|holder| told.tell(holder));
        }
    })))
}

impl Shared {
    async fn connect(&self) -> Result<PgConnection, Failure> {
        let mut connection = self.options.connect().await?;
        connection.execute("SET default_transaction_isolation = 'read committed'").await?;
        Ok(connection)
    }

    async fn lend(&self) -> Result<(OwnedSemaphorePermit, PgConnection), Failure> {
        let (permit, free) = self.pool.lend().await?;
        match free {
            Some(connection) => Ok((permit, connection)),
            None => Ok((permit, self.connect().await?)),
        }
    }
}

#[async_trait]
impl Client for Connections {
    fn prepare(&self, ask: &Ask<'_>) -> Result<Arc<dyn Lock>, Failure> {
        Ok(plain::lock(Name { shared: Arc::clone(&self.shared), name: ask.name.to_owned() }))
    }

    async fn ping(&self) -> Result<bool, Failure> {
        let (_permit, mut connection) = self.shared.lend().await?;
        sqlx::query("SELECT 1").fetch_one(&mut connection).await?;
        self.shared.pool.take_back(connection);
        Ok(true)
    }

    async fn close(&self) -> Result<(), Failure> {
        self.listens.0.abort();
        self.shared.pool.close().await
    }
}

struct Name {
    shared: Arc<Shared>,
    name: String,
}

impl Plain for Name {
    /// The holder.
    type Kept = Vec<u8>;

    async fn take(&self, wait: bool) -> Result<Option<Vec<u8>>, Failure> {
        let shared = &self.shared;
        let id = HolderId::random()?;
        let (holder, hex) = (id.as_u128().to_be_bytes().to_vec(), id.to_hex());
        let query = sqlx::query(AssertSqlSafe(Arc::clone(&shared.acquire))).bind(self.name.clone());
        let query = query.bind(holder.clone()).bind("x").bind(shared.lease).bind(shared.lease).bind(0_i64);
        let query = query.bind(wait).bind(shared.channel.clone()).bind("floor:1").bind(0_i32);
        let told = wait.then(|| shared.told.expect(&hex));
        let (permit, mut connection) = shared.lend().await?;
        let row = query.fetch_one(&mut connection).await?;
        shared.pool.take_back(connection);
        drop(permit);
        let (token, whose): (Option<i64>, Vec<u8>) = (row.try_get("token")?, row.try_get("whose")?);
        // Its own id where it holds.
        if token.is_some() && whose == holder {
            shared.told.forget(&hex);
            return Ok(Some(holder));
        }
        match told {
            Some(told) if token.is_some() => Ok(told.await.map(|()| Some(holder))?),
            // Whoever was not let in has no number.
            _ => Ok(None),
        }
    }

    async fn give_back(&self, holder: Vec<u8>) -> Result<(), Failure> {
        let shared = &self.shared;
        let query = sqlx::query(AssertSqlSafe(Arc::clone(&shared.release)));
        let query = query.bind(self.name.clone()).bind(holder);
        let (_permit, mut connection) = shared.lend().await?;
        let row = query.fetch_one(&mut connection).await?;
        shared.pool.take_back(connection);
        match row.try_get(0)? {
            true => Ok(()),
            false => Err("the lock was not held any more".into()),
        }
    }
}
