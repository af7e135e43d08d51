//! The MySQL and MariaDB store as the seam sees it: each verb is in the file of its name.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::store::Checked;
use onelock_core::{
    Backend, Capabilities, FencingToken, Info, Listing, LockName, Page, Raise, Release, Renewal, Renewed,
    Request, Result, Snapshot, Standing, Ticket, Wake,
};

use super::acquire::acquire;
use super::config::MySqlConfig;
use super::inspect::{inspect, list};
use super::open::open;
use super::pool::Client;
use super::release::{evict, release, sweep};
use super::renew::{raise, renew};
use super::wait::{FIRST, Waiters};
use crate::inbox::Inbox;

/// The counters of a request's entries are locked together: a larger batch would keep others out of more of them for longer.
pub(super) const CAPABILITIES: Capabilities = Capabilities::of_lines().max_batch(128);

/// Locks in a MySQL or MariaDB database.
///
/// Every verb is one request. A client has a few connections for all its locks and one more for all its waiters.
pub struct MySqlBackend {
    info: Info,
    durable: bool,
    poll: Duration,
    client: Arc<Client>,
    inbox: Arc<Inbox>,
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
        let client = Arc::new(Client::new(&config));
        let durable = open(&client, &config).await.map_err(|error| error.during("open").at(&address))?;
        tokio::spawn(sweep(Arc::downgrade(&client)));
        let info = Info::new("mysql", address);
        let store = Self { info, durable, poll: config.poll, client, inbox: Arc::default() };
        store.poll();
        Ok(Checked::over(store))
    }

    fn poll(&self) {
        self.inbox.poll_by((FIRST.min(self.poll), self.poll), || Waiters(Arc::clone(&self.client)));
    }

    fn end(&self) {
        self.inbox.close();
        self.client.close();
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
        acquire(&self.client, request).await
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        if ticket.token.is_none() {
            // Only a renewal can find the number.
            return Ok(Wake::Ask);
        }
        // The runtime that polled may have ended.
        self.poll();
        self.inbox.wait(ticket).await
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let renewed = renew(&self.client, due).await;
        for (renewal, renewed) in due.iter().zip(&renewed) {
            if let Ok(renewed) = renewed {
                self.inbox.renewed(renewal.ticket.holder, renewed);
            }
        }
        renewed
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        self.inbox.settle(ticket.holder, Wake::Ask);
        let released = release(&self.client, ticket).await;
        self.inbox.released(&ticket.name);
        released
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
        let evicted = evict(&self.client, name, token).await;
        self.inbox.released(name);
        evicted
    }

    async fn close(&self) -> Result<()> {
        self.end();
        Ok(())
    }
}
