//! The store behind the trait: opens the file, and calls the verbs.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::store::Checked;
use onelock_core::{
    Backend, Capabilities, Clock, FencingToken, Info, Listing, LockName, Page, Raise, Release, Renewal,
    Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};

use super::config::SqliteConfig;
use super::thread::Queue;
use super::{acquire, file, inspect, release, renew};

/// The store's clock is the client's own.
pub(super) const CAPABILITIES: Capabilities = Capabilities::of_lines().granularity(Duration::ZERO);

/// Locks in one SQLite file.
///
/// Any number of processes, containers included, may share the file as long as they run on one kernel. Leases run on
/// the host's boot clock, so a step of the wall clock moves nothing; what an earlier boot left is dropped.
///
/// Each backend has one thread and one connection. Verbs that arrive while a transaction is under way share the next
/// one, in the order of their arrival.
#[derive(Debug)]
pub struct SqliteBackend {
    info: Info,
    queue: Queue,
}

impl SqliteBackend {
    /// Opens the file, making it when it does not exist, and starts the backend's thread.
    ///
    /// `clock` must be system wide where other processes share the file: [`onelock_core::BootClock`] is.
    ///
    /// # Errors
    /// - [`onelock_core::ErrorKind::InvalidConfig`]: no such folder, a folder as the file, an option out of range;
    /// - [`onelock_core::ErrorKind::Denied`]: the file or its folder cannot be written;
    /// - [`onelock_core::ErrorKind::Foreign`]: the file is not ours; it is left as it is, byte for byte;
    /// - [`onelock_core::ErrorKind::Unsupported`]: a newer version wrote it, it is on a network file system, or the operating system
    ///   tells no boot id;
    /// - [`onelock_core::ErrorKind::Full`], [`onelock_core::ErrorKind::Unavailable`], [`onelock_core::ErrorKind::Timeout`]: the disk is
    ///   full, other writers keep it busy, it fails, or does not answer.
    ///
    /// # Cancel safety
    /// Safe: the thread ends when nobody waits for it any more.
    pub async fn open(mut config: SqliteConfig, clock: Arc<dyn Clock>) -> Result<Checked<Self>> {
        config.check()?;
        config.path = file::absolute(&config.path)?;
        let address = format!("sqlite://{}", config.path.display());
        let queue = Queue::start(config, clock).await.map_err(|e| e.during("open").at(&address))?;
        Ok(Checked::over(Self { info: Info::new("sqlite", address), queue }))
    }
}

#[async_trait]
impl Backend for SqliteBackend {
    fn info(&self) -> Info {
        self.info.clone()
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        acquire::acquire(&self.queue, request).await
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        self.queue.wait(ticket).await
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        renew::renew(&self.queue, due).await
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        release::release(&self.queue, ticket).await
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        renew::raise(&self.queue, ticket, token).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        inspect::inspect(&self.queue, name).await
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        inspect::list(&self.queue, prefix, page).await
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        release::evict(&self.queue, name, token).await
    }

    async fn close(&self) -> Result<()> {
        self.queue.close().await;
        Ok(())
    }
}
