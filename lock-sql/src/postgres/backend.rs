//! The implementation of [`Backend`]: it connects, and calls the verbs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::store::Checked;
use onelock_core::{
    Backend, Capabilities, Error, FencingToken, HolderId, Info, Listing, LockName, Page, Raise, Release,
    Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};
use tokio::task::JoinHandle;

use super::acquire::acquire;
use super::config::PostgresConfig;
use super::inspect::{inspect, list};
use super::listen::{Channel, listen};
use super::migrate;
use super::pool::{Pool, Postgres};
use super::release::{evict, release};
use super::renew::{raise, renew};
use super::sql::Schema;
use super::wait::{POLL, Unheard, wait};
use crate::Durability;
use crate::inbox::Inbox;
use crate::pool::Connect as _;

/// Locks in a PostgreSQL database.
///
/// A verb is one call of a function, which first takes the advisory lock of the name. A thousand locks and waiters share
/// a handful of connections, and one more that listens for promotions.
pub struct PostgresBackend {
    info: Info,
    shared: Arc<Shared>,
    listening: JoinHandle<()>,
}

/// What the verbs and the background tasks use.
pub(super) struct Shared {
    pub(super) pool: Pool,
    pub(super) inbox: Arc<Inbox>,
    pub(super) channel: Channel,
    pub(super) schema: Schema,
    /// How long to connect and to be answered may take.
    pub(super) patience: Duration,
}

impl PostgresBackend {
    /// Connects, makes the tables and functions when they are missing and `migrate` is on, and starts to listen.
    /// To be called within a tokio runtime, which then serves the notifications.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidConfig`](onelock_core::ErrorKind::InvalidConfig): an option out of range, no such database, no
    ///   schema and `migrate` off;
    /// - `Denied`: the login or a right is missing, or the connection is not as secure as asked;
    /// - `Foreign`: the schema holds what is not ours; `Unsupported`: another version of it;
    /// - `Unavailable`: the server cannot be reached.
    ///
    /// # Cancel safety
    /// Safe: a migration is one transaction.
    pub async fn open(config: PostgresConfig) -> Result<Checked<Self>> {
        config.check()?;
        let address = format!("postgres://{}", config.address());
        let named = |error: Error| error.during("open").at(&address);
        let pool = Pool::new(Postgres::new(&config), config.connections, config.request_timeout);
        let mut conn = pool.server.connect().await.map_err(named)?;
        let migration = migrate::migration(&config.namespace)?;
        let made = migrate::ensure(&mut conn.conn, &config.namespace, config.migrate, &migration).await;
        made.map_err(named)?;
        pool.give(conn);
        let durable = config.durability == Durability::Durable;
        let shared = Arc::new(Shared {
            pool,
            inbox: Arc::default(),
            channel: Channel::new(HolderId::random()?),
            schema: Schema { name: config.namespace.clone(), durable },
            patience: config.connect_timeout + config.request_timeout,
        });
        let listening = tokio::spawn(listen(shared.clone()));
        shared.inbox.poll_by(POLL, || Unheard(Arc::clone(&shared)));
        // So that the first waiter need not be polled for. Where listening does not work it is done without.
        let _ = tokio::time::timeout(config.connect_timeout, shared.channel.tried.notified()).await;
        Ok(Checked::over(Self { info: Info::new("postgres", address), shared, listening }))
    }

    fn end(&self) {
        self.listening.abort();
        self.shared.inbox.close();
    }
}

impl Drop for PostgresBackend {
    fn drop(&mut self) {
        self.end();
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
        Capabilities::of_lines().durable(self.shared.schema.durable)
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        acquire(&self.shared, request).await
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        wait(&self.shared, ticket).await
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        renew(&self.shared, due).await
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        release(&self.shared, ticket).await
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        raise(&self.shared, ticket, token).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        inspect(&self.shared, name).await
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        list(&self.shared, prefix, page).await
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        evict(&self.shared, name, token).await
    }

    async fn close(&self) -> Result<()> {
        self.end();
        self.shared.pool.close();
        Ok(())
    }
}
