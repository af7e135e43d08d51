//! The implementation of [`Backend`]: it connects, and calls the verbs.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use onelock_core::store::Checked;
use onelock_core::{
    Backend, Capabilities, Error, ErrorKind, FencingToken, HolderId, Info, Listing, LockName, Page, Raise,
    Release, Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::acquire::acquire;
use super::client::{Channel, Client};
use super::config::PostgresConfig;
use super::inspect::{inspect, list};
use super::listen::listen;
use super::migrate;
use super::pool::{Pool, Postgres};
use super::release::{evict, release};
use super::renew::{raise, renew};
use super::sql::Schema;
use super::wait::{POLL, Unheard, wait};
use crate::Durability;
use crate::hosts::OPENING;
use crate::inbox::Inbox;
use crate::pool::Connect as _;

/// Locks in a PostgreSQL database.
///
/// A verb is one call of a function, which first takes the advisory lock of the name. A thousand locks and waiters share
/// a handful of connections, and one more that listens for promotions.
pub struct PostgresBackend {
    info: Info,
    client: Arc<Client>,
    inbox: Arc<Inbox>,
    listening: JoinHandle<()>,
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
    /// - `Unavailable`: the server cannot be reached; `Timeout`: it does not answer, or somebody has left a transaction open that
    ///   makes the schema.
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
        let made = migrate::ensure(&mut conn.conn, &config.namespace, config.migrate, &migration);
        let late = |_| {
            Err(Error::new(ErrorKind::Timeout, "the server did not make the schema, or show it, in time"))
        };
        timeout(OPENING, made).await.unwrap_or_else(late).map_err(named)?;
        pool.give(conn);
        let durable = config.durability == Durability::Durable;
        let schema = Schema { name: config.namespace.clone(), durable };
        let channel = Channel::new(HolderId::random()?);
        let client = Arc::new(Client { pool, schema, channel });
        let inbox = Arc::<Inbox>::default();
        let listening = tokio::spawn(listen(Arc::clone(&client), Arc::clone(&inbox)));
        inbox.poll_by(POLL, || Unheard(Arc::clone(&client)));
        // Ends what was begun where the caller gives up.
        let store = Self { info: Info::new("postgres", address), client, inbox, listening };
        // So that the first waiter need not be polled for. Where listening does not work it is done without.
        let _ = timeout(config.connect_timeout, store.client.channel.tried.notified()).await;
        Ok(Checked::over(store))
    }

    fn end(&self) {
        self.listening.abort();
        self.inbox.close();
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
        Capabilities::of_lines().durable(self.client.schema.durable)
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        acquire(&self.client, &self.inbox, request).await
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        wait(&self.client, &self.inbox, ticket).await
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        renew(&self.client, &self.inbox, due).await
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        release(&self.client, &self.inbox, ticket).await
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        raise(&self.client, ticket, token).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        inspect(&self.client, name).await
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        list(&self.client, prefix, page).await
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        evict(&self.client, name, token).await
    }

    async fn close(&self) -> Result<()> {
        self.end();
        self.client.pool.close();
        Ok(())
    }
}
