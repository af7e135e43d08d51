//! The store behind the trait.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::store::{Checked, undeclared};
use onelock_core::{
    Backend, Capabilities, Clock, Error, ErrorKind, FencingToken, Info, Listing, LockName, Page, Raise,
    Release, Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};
use tokio::runtime::Handle;
use zookeeper_client as zk;

use crate::acquire::acquire;
use crate::config::ZkConfig;
use crate::entries::Entries;
use crate::error::failed;
use crate::session::Servers;
use crate::sessions::{Sessions, carries};
use crate::{inspect, keys, release, renew, wait};

/// A client of a ZooKeeper ensemble.
///
/// It keeps one session for questions and one for each class of leases in use. Dropped without [`Backend::close`], it
/// lets the entries that were not released live to the end of their leases.
pub struct ZkBackend {
    sessions: Arc<Sessions>,
    entries: Arc<Entries>,
    longest: Duration,
}

impl ZkBackend {
    /// What servers with this `tickTime` can do, whose sessions carry leases up to `longest`.
    pub(crate) const fn declared(tick: Duration, longest: Duration) -> Capabilities {
        // The number is the server's transaction count: nobody can lift it. A node belongs to the session that made it.
        Capabilities::of_lines()
            .raise(false)
            .resume(false)
            .min_lease(tick.saturating_mul(2))
            .max_lease(Duration::from_millis(longest.as_millis() as u64))
    }

    /// Opens a session and looks at the node above all names.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] before any I/O; [`ErrorKind::Unavailable`] when no server can be reached;
    /// [`ErrorKind::Denied`] when the user may not read there; [`ErrorKind::Misuse`] outside a Tokio runtime.
    ///
    /// # Cancel safety
    /// Safe: a session that was half opened is closed.
    pub async fn connect(config: ZkConfig, clock: Arc<dyn Clock>) -> Result<Checked<Self>> {
        config.check()?;
        let base = keys::base(&config.path)?;
        let runtime = Handle::try_current()
            .map_err(|_| Error::new(ErrorKind::Misuse, "a client is made inside a Tokio runtime"))?;
        let servers = Arc::new(Servers {
            #[cfg(feature = "zk-tls")]
            tls: crate::tls::certificates(&config)?.map(zk::TlsDynamicCerts::new),
            config,
            base,
            clock,
            runtime,
            standalone: OnceLock::new(),
        });
        let sessions = Sessions::new(Arc::clone(&servers));
        let desk = sessions.desk().await?;
        // It takes the right to list the names, however many there are.
        match desk.data(servers.root()).await {
            Ok(_) | Err(zk::Error::NoNode) => {}
            Err(error) => return Err(failed(error, "read", servers.root())),
        }
        // A standalone server has no list of servers. One that refuses to show it counts as one of an ensemble.
        let config = desk.data("/zookeeper/config").await;
        servers.standalone.get_or_init(|| config.is_ok_and(|(config, _)| config.is_empty()));
        let entries = Arc::new(Entries::default());
        servers.runtime.spawn(release::reap(Arc::clone(&sessions), Arc::clone(&entries)));
        let longest = desk.capacity();
        Ok(Checked::over(Self { sessions, entries, longest }))
    }
}

impl std::fmt::Debug for ZkBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ZkBackend({})", self.sessions.servers.config.address())
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for ZkBackend {
    fn info(&self) -> Info {
        let config = &self.sessions.servers.config;
        Info::new(config.scheme(), config.address())
    }

    fn capabilities(&self) -> Capabilities {
        Self::declared(self.sessions.servers.config.tick, self.longest)
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        carries(self.longest, request.lease.max(request.waiter_lease) + request.delay)?;
        acquire(&self.sessions, &self.entries, request).await
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        wait::wait(&self.sessions.servers, &self.entries, ticket).await
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        renew::renew(&self.sessions, &self.entries, due).await
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        release::release(&self.sessions, &self.entries, ticket).await
    }

    async fn raise(&self, _: &Ticket, _: FencingToken) -> Result<Raise> {
        undeclared()
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        inspect::inspect(&self.sessions, name).await
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        inspect::list(&self.sessions, prefix, page).await
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        release::evict(&self.sessions, name, token).await
    }

    async fn close(&self) -> Result<()> {
        self.sessions.close(&self.entries.clear()).await;
        Ok(())
    }
}
