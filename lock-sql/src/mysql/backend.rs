//! The MySQL and MariaDB store as the seam sees it: each verb is in the file of its name.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use onelock_core::store::Checked;
use onelock_core::{
    Backend, Capabilities, FencingToken, Info, Listing, LockName, Page, Raise, Release, Renewal, Renewed,
    Request, Result, Snapshot, Standing, Ticket, Wake,
};

use super::acquire::acquire;
use super::config::MySqlConfig;
use super::inspect::{inspect, list};
use super::keys::key;
use super::open::open;
use super::pool::Pool;
use super::release::{evict, release, sweep};
use super::renew::{raise, renew};
use super::wait::Poller;

/// The counters of a request's entries are locked together: a larger batch would keep others out of more of them for longer.
pub(super) const CAPABILITIES: Capabilities = Capabilities::of_lines().max_batch(128);

/// Locks in a MySQL or MariaDB database.
///
/// Every verb is one request. A client has a few connections for all its locks and one more for all its waiters.
pub struct MySqlBackend {
    info: Info,
    durable: bool,
    pool: Arc<Pool>,
    poller: Arc<Poller>,
}

impl MySqlBackend {
    /// Connects, checks the server, and makes the tables when there are none and the user may.
    ///
    /// Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidConfig`](onelock_core::ErrorKind::InvalidConfig): an option out of range, no such database;
    /// - `Unavailable`, `Timeout`: the server cannot be reached, is read-only or does not answer;
    /// - `Denied`: wrong credentials, a right is missing (the message names it);
    /// - `Unsupported`: a cluster with several writers, a server that is too old, tables of another version, commits that
    ///   do not wait for the disk and no `durability=relaxed`;
    /// - `Foreign`: tables of our names that are not ours; they are left alone.
    ///
    /// # Cancel safety
    /// Safe: the connections are closed.
    pub async fn connect(config: MySqlConfig) -> Result<Checked<Self>> {
        config.check()?;
        let address = format!("mysql://{}", config.address());
        let pool = Arc::new(Pool::new(&config));
        let found = open(&pool, &config).await.map_err(|error| error.during("open").at(&address))?;
        tokio::spawn(sweep(Arc::downgrade(&pool)));
        let info = Info::new("mysql", address);
        let poller = Arc::new(Poller::new(config.poll));
        Ok(Checked::over(Self { info, durable: found.durable, pool, poller }))
    }

    fn end(&self) {
        self.poller.close();
        self.pool.close();
    }
}

impl fmt::Debug for MySqlBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlBackend").field("address", &self.info.address).finish_non_exhaustive()
    }
}

impl Drop for MySqlBackend {
    fn drop(&mut self) {
        // The tasks of this client end; connections in use end with their requests.
        self.end();
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for MySqlBackend {
    fn info(&self) -> Info {
        self.info.clone()
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES.durable(self.durable)
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        acquire(&self.pool, request).await
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        self.poller.wait(&self.pool, ticket).await
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        renew(&self.pool, due).await
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        let released = release(&self.pool, ticket).await;
        self.poller.released(&ticket.name);
        released
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        raise(&self.pool, ticket, token).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        inspect(&self.pool, name).await
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        list(&self.pool, prefix, page).await
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        let evicted = evict(&self.pool, name, token).await?;
        if evicted == Release::Released {
            // A waiter of this client learns that it is gone; those of others by their next poll or renewal.
            self.poller.wake(&key(name), token, Wake::Ask);
        }
        self.poller.released(name);
        Ok(evicted)
    }

    async fn close(&self) -> Result<()> {
        self.end();
        Ok(())
    }
}
