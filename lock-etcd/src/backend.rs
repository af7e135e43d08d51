//! The implementation of [`Backend`]: it connects, and calls the verbs.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{GetOptions, TxnOp};
use onelock_core::store::{Checked, undeclared};
use onelock_core::{
    Backend, BootClock, Capabilities, Clock, Error, ErrorKind, FencingToken, Info, Listing, LockName, Page,
    Raise, Release, Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};
use tokio::runtime::Handle;

use crate::client::{Cluster, closed};
use crate::config::EtcdConfig;
use crate::entries::Entries;
use crate::keys::Keys;
use crate::lease::Leases;
use crate::watches::Watches;
use crate::{acquire, inspect, line, release, renew, wait};

/// Locks kept by an etcd cluster.
///
/// Cheap enough to have one per process and cluster. When it is dropped without [`Backend::close`] its leases run out
/// in the store.
#[derive(Debug)]
pub struct EtcdBackend {
    info: Info,
    keys: Keys,
    leases: Arc<Leases>,
    entries: Arc<Entries>,
    watches: Arc<Watches>,
}

impl EtcdBackend {
    /// What every etcd cluster can do.
    pub const fn declared() -> Capabilities {
        // A number is a revision of the cluster: nobody can lift it.
        Capabilities::of_lines()
            .raise(false)
            // A reading of each goes into one transaction.
            .max_batch(128)
            .min_lease(Duration::from_secs(2))
            .lease_step(Duration::from_secs(1))
            .granularity(Duration::from_millis(50))
    }

    /// Connects to a cluster, and sees that it answers and lets the user read under the prefix.
    ///
    /// Needs a tokio runtime around; background work runs on it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] before any connection is made; [`ErrorKind::Unavailable`], [`ErrorKind::Timeout`]
    /// or [`ErrorKind::Denied`].
    ///
    /// # Cancel safety
    /// Safe: a dropped call leaves nothing behind.
    pub async fn connect(config: EtcdConfig) -> Result<Checked<Self>> {
        Self::connect_on(config, Arc::new(BootClock)).await
    }

    /// As [`EtcdBackend::connect`], with leases counted on `clock`: the one of the client above.
    ///
    /// # Errors
    /// As [`EtcdBackend::connect`].
    ///
    /// # Cancel safety
    /// Safe: a dropped call leaves nothing behind.
    pub async fn connect_on(config: EtcdConfig, clock: Arc<dyn Clock>) -> Result<Checked<Self>> {
        let runtime = Handle::try_current()
            .map_err(|_| Error::new(ErrorKind::Misuse, "an etcd client needs a tokio runtime around"))?;
        let info = Info::new(config.scheme(), config.address());
        let keys = Keys::new(&config.namespace);
        let cluster = Cluster::new(config, runtime.clone()).await?;
        let backend = Self {
            info,
            keys,
            leases: Leases::new(Arc::clone(&cluster), clock),
            entries: Arc::default(),
            watches: Watches::new(cluster),
        };
        backend.probe().await.map_err(|error| error.during("connect").at(&backend.info.address))?;
        runtime.spawn(release::sweep(Arc::clone(&backend.leases), Arc::clone(&backend.entries)));
        Ok(Checked::over(backend))
    }

    /// Reads one key under the prefix: the cluster answers, and the user may read.
    async fn probe(&self) -> Result<()> {
        let probe = TxnOp::get(self.keys.probe(), Some(GetOptions::new().with_count_only()));
        let cluster = &self.leases.cluster;
        match line::read(cluster, probe).await {
            // With an empty prefix the user may have rights on the keys of some names only.
            Err(error) if error.kind() == ErrorKind::Denied && self.keys.is_bare() => {
                cluster.client(cluster.current()?).await.map(|_| ()).map_err(Error::from)
            }
            answer => answer.map(|_| ()),
        }
    }

    /// Ends the tasks.
    fn end(&self) {
        self.leases.cluster.close();
        self.entries.begun.notify_one();
        self.watches.fail(&closed());
    }
}

/// A dropped client ends its tasks.
impl Drop for EtcdBackend {
    fn drop(&mut self) {
        self.end();
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for EtcdBackend {
    fn info(&self) -> Info {
        self.info.clone()
    }

    fn capabilities(&self) -> Capabilities {
        Self::declared()
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        acquire::acquire(&self.keys, &self.leases, &self.entries, request).await
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        wait::wait(&self.keys, &self.watches, &self.entries, ticket).await
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        renew::renew(&self.keys, &self.leases, &self.entries, due).await
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        release::release(&self.keys, &self.leases, &self.entries, ticket).await
    }

    async fn raise(&self, _ticket: &Ticket, _token: FencingToken) -> Result<Raise> {
        undeclared()
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        inspect::inspect(&self.keys, &self.leases.cluster, name).await
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        inspect::list(&self.keys, &self.leases.cluster, prefix, page).await
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        release::evict(&self.keys, &self.leases.cluster, name, token).await
    }

    /// Gives back every lease that no living entry can be on. The others run out, or another client resumes what is on them.
    async fn close(&self) -> Result<()> {
        let given_back = self.leases.revoke_but(&self.entries.take_all()).await;
        self.end();
        given_back
    }
}
