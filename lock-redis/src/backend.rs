//! The store in both layouts: connects, and calls the verbs.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::store::Checked;
use onelock_core::toolkit::Unanswered;
use onelock_core::{
    Backend, Capabilities, FencingToken, HolderId, Info, Listing, LockName, Page, Raise, Release, Renewal,
    Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};

use crate::config::{Layout, RedisConfig, Topology};
use crate::connection::check;
use crate::inspect::Found;
use crate::keys::Keys;
use crate::topology::Servers;
use crate::wait::Inbox;
use crate::{acquire, inspect, release, renew};

/// How often a waiter asks, in the plain layout.
const POLL: Duration = Duration::from_millis(100);

/// Locks on Redis: one server, the master that sentinels watch over, or a cluster.
///
/// It keeps one connection to each server it needs, replaced when it fails or does not answer, and no task.
#[derive(Debug)]
pub struct RedisBackend {
    config: Arc<RedisConfig>,
    keys: Keys,
    capabilities: Capabilities,
    inbox: Arc<Inbox>,
    servers: Arc<Servers>,
    found: Found,
    unanswered: Unanswered,
}

impl RedisBackend {
    /// What a server with its settings as they come can do.
    pub(crate) const fn declared() -> Capabilities {
        // It keeps no append-only file unless asked to.
        Capabilities::of_lines().durable(false)
    }

    /// The same where a replica can be promoted.
    pub(crate) const fn declared_of_many() -> Capabilities {
        // A replica may not have it: and numbers past those of the epoch are not made good by the next one.
        Self::declared().raise(false)
    }

    /// Connects, and checks that the server can keep locks: rights, memory policy, role.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](onelock_core::ErrorKind::InvalidConfig) for a configuration that cannot work or a server that may evict locks;
    /// [`ErrorKind::Denied`](onelock_core::ErrorKind::Denied) naming the rights that are missing; [`ErrorKind::Unavailable`](onelock_core::ErrorKind::Unavailable) when the server cannot be
    /// reached or is a replica. In the plain layout a right on the keys of a lock is found missing by the verb that needs it.
    ///
    /// # Cancel safety
    /// Safe: a connection half made is closed.
    pub async fn connect(config: RedisConfig) -> Result<Checked<Self>> {
        config.check()?;
        let at = config.address();
        Self::open(config).await.map(Checked::over).map_err(|e| e.during("connect").at(at))
    }

    async fn open(config: RedisConfig) -> Result<Self> {
        let config = Arc::new(config);
        let id = HolderId::random()?.to_hex();
        let single = config.topology == Topology::Single;
        let (channel, declared) = match config.layout {
            Layout::Line if single => (format!("{}:inbox:{id}", config.namespace), Self::declared()),
            Layout::Line => (format!("{}:inbox:{id}", config.namespace), Self::declared_of_many()),
            Layout::Plain => {
                // Nothing is pushed, and the counter is another key, in a cluster perhaps on another node.
                let fencing = config.topology != Topology::Cluster;
                (String::new(), Capabilities::minimal().fencing(fencing).delay(true).resume(true))
            }
        };
        let inbox = Arc::new(Inbox::new(channel, config.replicas == 0));
        let servers = Servers::new(&config, &inbox);
        let capabilities = check::capabilities(&servers, &config, declared).await?;
        check::rights(&servers, &config, &inbox.channel).await?;
        let (keys, found) = (Keys::new(&config), Found::default());
        let unanswered = Unanswered::new(config.request_timeout);
        Ok(Self { config, keys, capabilities, inbox, servers, found, unanswered })
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for RedisBackend {
    fn info(&self) -> Info {
        Info::new(self.config.scheme(), self.config.address())
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        if request.queue {
            self.inbox.expect(request.holder);
        }
        let (channel, unanswered) = (&self.inbox.channel, &self.unanswered);
        let result = acquire::acquire(&self.servers, &self.keys, channel, unanswered, request).await;
        match &result {
            // A waiter keeps its place, and so does one of which nobody knows whether it waits: until its release.
            Ok(Standing::Waiting(_)) => {}
            Err(e) if e.is_unclear() => {}
            _ => self.inbox.forget(request.holder),
        }
        result
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        if self.config.layout == Layout::Plain {
            // There is no line to wait in: asking again after a while may help.
            tokio::time::sleep(POLL).await;
            return Ok(Wake::Ask);
        }
        let slot = self.keys.of(&ticket.name).slot();
        self.inbox.wait(ticket.holder, ticket.token, || self.servers.reach(slot)).await
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let answers = renew::renew(&self.servers, &self.keys, due).await;
        let ended = |answer: &Result<Renewed>| matches!(answer, Ok(Renewed::Held(_) | Renewed::NotHeld));
        for (item, _) in due.iter().zip(&answers).filter(|(_, answer)| ended(answer)) {
            self.inbox.forget(item.ticket.holder);
        }
        answers
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        self.inbox.forget(ticket.holder);
        let released = release::release(&self.servers, &self.keys, ticket).await;
        self.unanswered.released(ticket.holder, released)
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        renew::raise(&self.servers, &self.keys, ticket, token).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        inspect::inspect(&self.servers, &self.keys, name).await
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        inspect::list(&self.servers, &self.keys, &self.found, prefix, page).await
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        release::evict(&self.servers, &self.keys, name, token).await
    }

    async fn close(&self) -> Result<()> {
        self.servers.close();
        Ok(())
    }
}
