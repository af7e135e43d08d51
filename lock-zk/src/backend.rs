//! The store behind the trait.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::{
    Backend, Capabilities, Clock, Error, ErrorKind, FencingToken, Info, Listing, LockName, Page, Raise,
    Release, Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};
use tokio::runtime::Handle;
use tokio::sync::watch;
use zookeeper_client as zk;

use crate::config::ZkConfig;
use crate::error::{failed, is_answer};
use crate::follow::Follows;
use crate::listings::Listings;
use crate::pool::Target;
use crate::table::{Table, reap};
use crate::{join, keep, layout, leave, look, wait};

/// What all verbs work on.
pub(crate) struct Core {
    pub(crate) target: Arc<Target>,
    pub(crate) table: Table,
    pub(crate) popular: Popular,
    pub(crate) follows: Follows,
    pub(crate) listings: Listings,
    /// Whether there is one server only, which then knows everything there is to know.
    pub(crate) standalone: bool,
    longest: Duration,
    closed: watch::Sender<bool>,
}

/// Names whose node was there when it was to be made: the next join does not try to make it.
#[derive(Default)]
pub(crate) struct Popular(Mutex<HashSet<LockName>>);

impl Popular {
    /// A hint only: when there are more, it begins anew.
    const MOST: usize = 10_000;

    fn lock(&self) -> MutexGuard<'_, HashSet<LockName>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the name; whether it was not noted yet.
    pub(crate) fn add(&self, name: &LockName) -> bool {
        let mut names = self.lock();
        let new = names.insert(name.clone());
        if names.len() > Self::MOST {
            names.retain(|other| other == name);
        }
        new
    }

    pub(crate) fn remove(&self, name: &LockName) {
        self.lock().remove(name);
    }
}

impl Core {
    pub(crate) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.is_closed() { Err(closed()) } else { Ok(()) }
    }

    /// Ends when the client is closed.
    pub(crate) async fn until_closed(&self) -> Error {
        // The sender lives in `self`.
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
        closed()
    }

    /// Refuses what no session of this server carries.
    pub(crate) fn check_need(&self, need: Duration) -> Result<()> {
        if need <= self.longest {
            return Ok(());
        }
        let human = humantime::format_duration;
        let text = format!(
            "a lease with its lock-delay of {} is longer than {}, the most that sessions of this server carry \
             (its maxSessionTimeout less the margins)",
            human(need),
            human(self.longest),
        );
        Err(Error::new(ErrorKind::InvalidLease, text))
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the ZooKeeper client has been closed")
}

/// A client of a ZooKeeper ensemble.
///
/// It keeps one session for questions and one for each class of leases in use. Dropped without [`Backend::close`], it
/// lets the entries that were not released live to the end of their leases.
pub struct ZkBackend {
    core: Arc<Core>,
}

impl ZkBackend {
    /// What servers with this `tickTime` can do, whose sessions carry leases up to `longest`.
    pub(crate) const fn declared(tick: Duration, longest: Duration) -> Capabilities {
        let mut capabilities = Capabilities::full();
        // The number is the server's transaction count: nobody can lift it.
        capabilities.raise = false;
        // A node belongs to the session that made it.
        capabilities.resume = false;
        capabilities.min_lease = tick.saturating_mul(2);
        capabilities.max_lease = Duration::from_millis(longest.as_millis() as u64);
        capabilities
    }

    /// Opens a session and looks at the node above all names.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] before any I/O; [`ErrorKind::Unavailable`] when no server can be reached;
    /// [`ErrorKind::Denied`] when the user may not read there; [`ErrorKind::Misuse`] outside a Tokio runtime.
    ///
    /// # Cancel safety
    /// Safe: a session that was half opened is closed.
    pub async fn connect(config: ZkConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        config.check()?;
        let base = layout::base(&config.path)?;
        let runtime = Handle::try_current()
            .map_err(|_| Error::new(ErrorKind::Misuse, "a client is made inside a Tokio runtime"))?;
        let target = Arc::new(Target::new(config, base, clock, runtime)?);
        let desk = target.desk().await?;
        let root = if target.base.is_empty() { "/" } else { &target.base };
        let client = desk.client().map_err(|error| failed(error, "list", root))?;
        match desk.ask(client.list_children(root)).await {
            Ok(_) | Err(zk::Error::NoNode) => {}
            Err(error) => return Err(failed(error, "list", root)),
        }
        // A server that stands alone has no list of servers. Whoever may not read it is in an ensemble, as far as we know.
        let standalone = match desk.ask(client.get_config()).await {
            Ok((config, _)) => config.is_empty(),
            Err(error) if is_answer(&error) => false,
            Err(error) => return Err(failed(error, "read", "/zookeeper/config")),
        };
        let core = Core {
            longest: target.longest(&desk),
            table: Table::default(),
            popular: Popular::default(),
            follows: Follows::default(),
            listings: Listings::default(),
            closed: watch::Sender::new(false),
            standalone,
            target,
        };
        let core = Arc::new(core);
        core.target.runtime.spawn(reap(Arc::clone(&core)));
        Ok(Self { core })
    }
}

impl Drop for ZkBackend {
    fn drop(&mut self) {
        self.core.table.abandon();
    }
}

impl std::fmt::Debug for ZkBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ZkBackend").field("address", &self.core.target.address).finish_non_exhaustive()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for ZkBackend {
    fn info(&self) -> Info {
        let scheme = if self.core.target.config.tls { "zks" } else { "zk" };
        Info { scheme: scheme.into(), address: self.core.target.address.clone() }
    }

    fn capabilities(&self) -> Capabilities {
        Self::declared(self.core.target.config.tick, self.core.longest)
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        join::acquire(&self.core, request).await
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        wait::wait(&self.core, ticket).await
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        keep::renew(&self.core, due).await
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        leave::release(&self.core, ticket).await
    }

    async fn raise(&self, _: &Ticket, _: FencingToken) -> Result<Raise> {
        self.core.check()?;
        let capabilities = self.capabilities();
        capabilities.require(capabilities.raise, "raise", "zookeeper")?;
        Err(Error::new(ErrorKind::Unsupported, "zookeeper cannot raise a number"))
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        look::inspect(&self.core, name).await
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        look::list(&self.core, prefix, page).await
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        leave::evict(&self.core, name, token).await
    }

    async fn close(&self) -> Result<()> {
        self.core.closed.send_replace(true);
        self.core.table.clear();
        self.core.target.close().await;
        Ok(())
    }
}
