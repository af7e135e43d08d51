//! The implementation of [`Backend`]: it connects, and calls the verbs.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use onelock_core::store::Checked;
use onelock_core::{
    Backend, Capabilities, Error, ErrorKind, FencingToken, HolderId, Info, Listing, LockName, Page, Raise,
    Release, Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};
use sqlx::postgres::PgRow;
use tokio::task::JoinHandle;

use super::call::Call;
use super::config::PostgresConfig;
use super::inbox::Inbox;
use super::pool::{Again, Pool};
use super::sql::Sql;
use super::{listen, migrate};
use crate::Durability;

/// Locks in a PostgreSQL database.
///
/// A verb is one call of a function, which first takes the advisory lock of the name. A thousand locks and waiters share
/// a handful of connections, and one more that listens for promotions.
pub struct PostgresBackend {
    info: Info,
    durability: Durability,
    pub(super) shared: Arc<Shared>,
    tasks: [JoinHandle<()>; 2],
}

/// What the verbs and the background tasks use.
pub(super) struct Shared {
    pub(super) pool: Arc<Pool>,
    pub(super) inbox: Inbox,
    pub(super) sql: Sql,
}

impl PostgresBackend {
    /// Connects, makes the tables and functions when they are missing and `migrate` is on, and starts to listen.
    /// To be called within a tokio runtime, which then serves the notifications.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidConfig`]: an option out of range, no such database, no schema and `migrate` off;
    /// - [`ErrorKind::Denied`]: the login or a right is missing, or the connection is not as secure as asked;
    /// - [`ErrorKind::Foreign`]: the schema holds what is not ours; [`ErrorKind::Unsupported`]: another version of it;
    /// - [`ErrorKind::Unavailable`]: the server cannot be reached.
    ///
    /// # Cancel safety
    /// Safe: a migration is one transaction.
    pub async fn open(config: PostgresConfig) -> Result<Checked<Self>> {
        config.check()?;
        let address = format!("postgres://{}", config.address());
        let named = |error: Error| error.during("open").at(&address);
        let sql = Sql::new(&config.namespace, config.durability);
        let prepared = [&sql.acquire, &sql.renew, &sql.release].map(|verb| verb.sql.clone()).to_vec();
        let pool = Arc::new(Pool::new(&config, prepared));
        let mut conn = pool.connect().await.map_err(named)?;
        let migration = migrate::migration(&config.namespace)?;
        migrate::ensure(&mut conn, &config.namespace, config.migrate, &migration).await.map_err(named)?;
        pool.take_in(conn);
        let inbox = Inbox::new(HolderId::random()?);
        let shared = Arc::new(Shared { pool, inbox, sql });
        let tasks =
            [tokio::spawn(listen::listen(shared.clone())), tokio::spawn(listen::poll(shared.clone()))];
        // So that the first waiter need not be polled for. Where listening does not work it is done without.
        let _ = tokio::time::timeout(config.connect_timeout, shared.inbox.tried.notified()).await;
        shared.pool.warm().await.map_err(named)?;
        let info = Info::new("postgres", address);
        Ok(Checked::over(Self { info, durability: config.durability, shared, tasks }))
    }

    pub(super) async fn fetch<T>(
        &self,
        again: Again,
        call: Call<'_>,
        read: impl Fn(&[PgRow]) -> Result<T> + Send,
    ) -> Result<T> {
        self.shared.pool.fetch(again, &call, read).await
    }

    /// The only row of an answer, read.
    pub(super) async fn one<T>(
        &self,
        again: Again,
        call: Call<'_>,
        read: impl Fn(&PgRow) -> Result<T> + Send,
    ) -> Result<T> {
        self.fetch(again, call, only(read)).await
    }
}

impl Drop for PostgresBackend {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl fmt::Debug for PostgresBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresBackend").field("address", &self.info.address).finish_non_exhaustive()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for PostgresBackend {
    fn info(&self) -> Info {
        self.info.clone()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::of_lines().durable(self.durability == Durability::Durable)
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        self.join(request).await
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        self.until_held(ticket).await
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        self.renew_all(due).await
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        self.remove(ticket).await
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        self.lift(ticket, token).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        self.line(name).await
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        self.names(prefix, page).await
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        self.remove_number(name, token).await
    }

    async fn close(&self) -> Result<()> {
        for task in &self.tasks {
            task.abort();
        }
        self.shared.pool.close().await;
        Ok(())
    }
}

/// For an answer of one row.
fn only<T>(read: impl Fn(&PgRow) -> Result<T>) -> impl Fn(&[PgRow]) -> Result<T> {
    move |rows| match rows {
        [row] => read(row),
        _ => Err(Error::new(ErrorKind::Protocol, format!("{} rows instead of one", rows.len()))),
    }
}
