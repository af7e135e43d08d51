//! The verbs.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Client, Compare, CompareOp, GetOptions, Txn, TxnOp};
use futures_util::future::join_all;
use onelock_core::{
    Backend, BootClock, Capabilities, Clock, Error, ErrorKind, FencingToken, HolderId, Info, Listing,
    LockName, Page, Raise, Release, Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::config::EtcdConfig;
use crate::crowds::Crowds;
use crate::entries::{Entries, Entry, take_out};
use crate::error::Failure;
use crate::keys::Keys;
use crate::lease::{Leases, Means, revoke};
use crate::lines::{kv, read};
use crate::members::Members;
use crate::strays::Strays;
use crate::watches::Watches;

/// How often a client looks for entries of its own whose time has passed.
pub(crate) const SWEEP: Duration = Duration::from_millis(250);

/// Locks kept by an etcd cluster.
///
/// Cheap enough to have one per process and cluster. When it is dropped without [`Backend::close`] its leases run out
/// in the store.
#[derive(Debug)]
pub struct EtcdBackend {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) keys: Keys,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) members: Arc<Members>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) watches: Watches,
    pub(crate) entries: Entries,
    pub(crate) strays: Strays,
    /// Where a join gets its turn.
    pub(crate) crowds: Crowds,
    info: Info,
}

impl EtcdBackend {
    /// What every etcd cluster can do.
    #[must_use]
    pub const fn declared() -> Capabilities {
        let mut caps = Capabilities::full();
        // A number is a revision of the cluster: nobody can lift it.
        caps.raise = false;
        caps.min_lease = Duration::from_secs(2);
        caps.lease_step = Duration::from_secs(1);
        caps.granularity = Duration::from_millis(50);
        caps
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
    pub async fn connect(config: EtcdConfig) -> Result<Self> {
        Self::connect_on(config, Arc::new(BootClock)).await
    }

    /// As [`EtcdBackend::connect`], with leases counted on `clock`: the one of the client above.
    ///
    /// # Errors
    /// As [`EtcdBackend::connect`].
    ///
    /// # Cancel safety
    /// Safe: a dropped call leaves nothing behind.
    pub async fn connect_on(config: EtcdConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        let runtime = Handle::try_current()
            .map_err(|_| Error::new(ErrorKind::Misuse, "an etcd client needs a tokio runtime around"))?;
        let info = Info { scheme: config.scheme().into(), address: config.address() };
        let keys = Keys::new(&config.prefix);
        let members = Members::new(config, runtime.clone()).await?;
        let (spent, to_revoke) = mpsc::unbounded_channel();
        let by = Means { members: Arc::clone(&members), clock: Arc::clone(&clock), runtime: runtime.clone() };
        let shared = Arc::new(Shared {
            keys,
            leases: Leases::new(by, spent),
            watches: Watches::new(Arc::clone(&members), runtime.clone()),
            entries: Entries::default(),
            strays: Strays::default(),
            crowds: Crowds::new(),
            clock,
            members,
            info,
        });
        let backend = Self { shared };
        backend.shared.probe().await.map_err(|error| backend.place(error, "connect"))?;
        runtime.spawn(sweep(Arc::clone(&backend.shared)));
        runtime.spawn(revoke_spent(Arc::clone(&backend.shared.members), to_revoke));
        Ok(backend)
    }

    fn place(&self, error: Error, verb: &'static str) -> Error {
        error.during(verb).at(&self.shared.info.address)
    }
}

/// A dropped client ends its tasks.
impl Drop for EtcdBackend {
    fn drop(&mut self) {
        self.shared.members.close();
        self.shared.watches.close();
        self.shared.entries.some.notify_one();
    }
}

/// Takes out entries of this client that nobody renewed in time, or nobody knows, while others keep their lease alive.
async fn sweep(shared: Arc<Shared>) {
    let mut moved = shared.members.moved.subscribe();
    while shared.members.open().is_ok() {
        if shared.entries.is_empty() && shared.strays.is_empty() {
            shared.entries.some.notified().await;
        }
        tokio::select! {
            () = tokio::time::sleep(SWEEP) => {}
            _ = moved.changed() => {}
        }
        let lapsed = shared.entries.lapsed(shared.clock.now());
        let each = lapsed.iter().map(|(holder, entry)| shared.take_out(*holder, entry));
        tokio::join!(join_all(each), shared.take_out_strays());
    }
}

/// Gives back leases that are not used any more. One that cannot be given back ends by itself.
async fn revoke_spent(members: Arc<Members>, mut spent: mpsc::UnboundedReceiver<i64>) {
    let mut moved = members.moved.subscribe();
    loop {
        tokio::select! {
            id = spent.recv() => {
                let Some(id) = id else { return };
                let _ = revoke(&members, id).await;
            }
            _ = moved.changed() => {
                if members.open().is_err() {
                    return;
                }
            }
        }
    }
}

impl Shared {
    /// Reads one key under the prefix: the cluster answers, and the user may read.
    async fn probe(&self) -> Result<()> {
        let call = |client: Arc<Client>| {
            let key = self.keys.probe();
            async move { kv(&client).get(key, Some(GetOptions::new().with_count_only())).await }
        };
        match self.members.request(call).await.map_err(Error::from) {
            // With an empty prefix the user may have rights on the keys of some names only.
            Err(error) if error.kind() == ErrorKind::Denied && self.keys.is_bare() => {
                match self.members.client().await {
                    Ok(_) => Ok(()),
                    Err(error) => Err(error.into()),
                }
            }
            answer => answer.map(|_| ()),
        }
    }

    async fn take_out(&self, holder: HolderId, entry: &Entry) {
        // One that was renewed meanwhile stays; one that could not be taken out is tried again.
        let due = self.entries.get(holder).is_some_and(|now| now.ends == entry.ends);
        if due && take_out(&self.members, entry).await.is_ok() {
            self.entries.forget(holder, entry.number);
        }
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        let span = self.keys.line(&ticket.name);
        let key = span.entry(ticket.mode, ticket.holder);
        // Kept until the answer is here: with the last entry on it a closed lease is revoked.
        let entry = self.entries.remove(ticket.holder);
        let answer = self.delete(&key).await;
        match (&answer, entry) {
            // The lease may live on with others, so this client keeps trying.
            (Err(_), Some(entry)) => {
                self.entries.put(ticket.holder, Entry { ends: self.clock.now(), ..entry })
            }
            (Ok(_), _) => self.watches.left(&span, &key),
            (Err(_), None) => {}
        }
        answer
    }

    /// Deletes an entry. Its key is that of one holder, who is one acquisition, so there is nothing else to compare.
    async fn delete(&self, key: &[u8]) -> Result<Release> {
        let mut tries = self.members.tries();
        let mut unclear = false;
        loop {
            let Some(limit) = tries.next().await else {
                return Err(self.members.late(self.members.try_time()));
            };
            let call = |client: Arc<Client>| async move { kv(&client).delete(key, None).await };
            match self.members.attempt(limit, call).await {
                // An earlier try may have done it and lost the answer.
                Ok(answer) if answer.deleted() > 0 || unclear => return Ok(Release::Released),
                Ok(_) => return Ok(Release::NotHeld),
                Err(Failure::Other(error)) if error.is_retryable() && tries.more() => unclear = true,
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        let line = read(&self.members, &self.keys.line(name), Some(token.get())).await?.line;
        let Some(seat) = line.into_iter().find(|seat| seat.number == token.get()) else {
            return Ok(Release::NotHeld);
        };
        let mut tries = self.members.tries();
        let mut unclear = false;
        loop {
            let Some(limit) = tries.next().await else {
                return Err(self.members.late(self.members.try_time()));
            };
            let same = Compare::create_revision(&seat.key[..], CompareOp::Equal, seat.number);
            let txn = Txn::new().when([same]).and_then([TxnOp::delete(&seat.key[..], None)]);
            let call = |client: Arc<Client>| async move { kv(&client).txn(txn).await };
            match self.members.attempt(limit, call).await {
                Ok(answer) if answer.succeeded() || unclear => return Ok(Release::Released),
                Ok(_) => return Ok(Release::NotHeld),
                Err(Failure::Other(error)) if error.is_retryable() && tries.more() => unclear = true,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Gives back every lease that no entry is on. The others run out, or another client resumes what is on them.
    async fn close(&self) -> Result<()> {
        if self.members.open().is_err() {
            return Ok(());
        }
        self.watches.close();
        let in_use = self.entries.take_all();
        let leases = self.leases.take_all();
        let idle = leases.iter().filter(|lease| !in_use.contains(&lease.id));
        let given_back = join_all(idle.map(|lease| revoke(&self.members, lease.id))).await;
        self.members.close();
        self.entries.some.notify_one();
        given_back.into_iter().collect()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for EtcdBackend {
    fn info(&self) -> Info {
        self.shared.info.clone()
    }

    fn capabilities(&self) -> Capabilities {
        Self::declared()
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        self.shared.join(request).await.map_err(|error| self.place(error, "acquire"))
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        self.shared.members.open().map_err(|error| self.place(error, "wait"))?;
        let span = self.shared.keys.line(&ticket.name);
        let key = span.entry(ticket.mode, ticket.holder);
        let number = ticket.token.map(FencingToken::get);
        let wake = self.shared.watches.wait(&span, &key, number).await;
        if let Ok(Wake::Held(token)) = &wake {
            self.shared.entries.holds(ticket.holder, token.get());
        }
        wake.map_err(|error| self.place(error, "wait"))
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let answers = self.shared.renew(due).await;
        answers.into_iter().map(|answer| answer.map_err(|error| self.place(error, "renew"))).collect()
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        self.shared.release(ticket).await.map_err(|error| self.place(error, "release"))
    }

    async fn raise(&self, _ticket: &Ticket, _token: FencingToken) -> Result<Raise> {
        self.shared.members.open().map_err(|error| self.place(error, "raise"))?;
        let text = "etcd does not offer `raise`: its numbers are revisions of the cluster";
        Err(self.place(Error::new(ErrorKind::Unsupported, text), "raise"))
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        self.shared.inspect(name).await.map_err(|error| self.place(error, "inspect"))
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        self.shared.list(prefix, page).await.map_err(|error| self.place(error, "list"))
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        self.shared.evict(name, token).await.map_err(|error| self.place(error, "evict"))
    }

    async fn close(&self) -> Result<()> {
        self.shared.close().await.map_err(|error| self.place(error, "close"))
    }
}
