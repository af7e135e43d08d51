//! The verbs of a lock, in the layout of a line.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use onelock_core::{
    Backend, Capabilities, Error, ErrorKind, FencingToken, HolderId, Info, Listing, LockName, Page, Raise,
    Release, Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};
use redis::Cmd;

use crate::config::{Gate, Layout, RedisConfig, Topology};
use crate::inbox::Inbox;
use crate::keys::{self, LineKeys, slot_of};
use crate::reply::Asked;
use crate::scripts::{self, Script};
use crate::servers::{Servers, too_few};
use crate::{examine, listing, reply};

/// How many entries one renewal script takes: enough to spread the cost of a call, few enough not to hold up others.
const BATCH: usize = 64;

/// The largest token [`Backend::raise`] takes. Scripts count up to 2^53, so 2^52 leaves as many numbers again.
const LARGEST_RAISE: i64 = 1 << 52;

/// Locks on Redis: one server, the master that sentinels watch over, or a cluster.
///
/// It keeps one connection to each server it needs, replaced when it fails or does not answer, and no task while nobody
/// waits.
#[derive(Debug)]
pub struct RedisBackend {
    config: Arc<RedisConfig>,
    /// The key that the voting verbs look at.
    gate: Option<String>,
    capabilities: Capabilities,
    inbox: Arc<Inbox>,
    pub(crate) servers: Servers,
    pub(crate) walks: listing::Walks,
}

impl RedisBackend {
    /// What a server with its settings as they come can do.
    pub(crate) const fn declared() -> Capabilities {
        let mut caps = Capabilities::full();
        // It keeps no append-only file unless told to.
        caps.durable = false;
        caps
    }

    /// The same where a replica can be promoted.
    pub(crate) const fn declared_of_many() -> Capabilities {
        let mut caps = Self::declared();
        // A replica may not have it: and numbers past those of the epoch are not made good by the next one.
        caps.raise = false;
        caps
    }

    pub(crate) const fn declared_of(topology: &Topology) -> Capabilities {
        match topology {
            Topology::Single => Self::declared(),
            Topology::Sentinel { .. } | Topology::Cluster => Self::declared_of_many(),
        }
    }

    /// Connects, and checks that the server can keep locks: rights, memory policy, role.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a configuration that cannot work or a server that may evict locks;
    /// [`ErrorKind::Denied`] naming the rights that are missing; [`ErrorKind::Unavailable`] when the server cannot be
    /// reached or is a replica.
    ///
    /// # Cancel safety
    /// Safe: a connection half made is closed.
    pub async fn connect(config: RedisConfig) -> Result<Self> {
        config.check()?;
        let at = config.address();
        Self::open(config).await.map_err(|e| e.during("connect").at(at))
    }

    async fn open(config: RedisConfig) -> Result<Self> {
        if config.layout != Layout::Line {
            let text = "the plain layout has a backend of its own: `PlainBackend`";
            return Err(Error::new(ErrorKind::InvalidConfig, text));
        }
        let config = Arc::new(config);
        let channel = format!("{}:inbox:{}", config.prefix, HolderId::random()?.to_hex());
        let inbox = Arc::new(Inbox::new(channel, config.replicas == 0));
        let servers = Servers::new(&config, &inbox);
        examine::rights(&servers, &config.prefix, inbox.channel()).await?;
        let declared = Self::declared_of(&config.topology);
        let capabilities = examine::capabilities(&servers, &config, declared).await?;
        let gate = (config.gate == Gate::RunId).then(|| keys::gate(&config.prefix));
        if gate.is_some() {
            examine::may_ask(&servers).await?;
        }
        Ok(Self { config, gate, capabilities, inbox, servers, walks: Default::default() })
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.config.prefix
    }

    fn keys(&self, name: &LockName) -> LineKeys {
        LineKeys::new(self.prefix(), name)
    }

    /// The number of keys of a voting verb that has `others` beside the gate.
    fn keys_with_gate(&self, others: usize) -> usize {
        others + usize::from(self.gate.is_some())
    }

    /// The slot of a line, where there are many servers.
    fn at(&self, name: &LockName) -> u16 {
        if self.servers.are_many() { slot_of(self.keys(name).bucket) } else { 0 }
    }

    async fn call(&self, bucket: u32, script: &'static Script, command: &Cmd) -> Result<redis::Value> {
        self.servers.call(slot_of(bucket), script, command).await
    }

    /// What one script may take: up to [`BATCH`] lines, given by their buckets; of one bucket where there are many
    /// servers. Each with its slot.
    pub(crate) fn batches(&self, buckets: impl Iterator<Item = u32>) -> Vec<(u16, Vec<usize>)> {
        let mut lines: Vec<_> = buckets.enumerate().map(|(i, bucket)| (bucket, i)).collect();
        let many = self.servers.are_many();
        if many {
            lines.sort_unstable();
        }
        let same = |a: &(u32, usize), b: &(u32, usize)| !many || a.0 == b.0;
        let batches = lines.chunk_by(same).flat_map(|lines| lines.chunks(BATCH));
        batches.map(|batch| (slot_of(batch[0].0), batch.iter().map(|(_, i)| *i).collect())).collect()
    }

    fn named<T>(&self, verb: &'static str, result: Result<T>) -> Result<T> {
        result.map_err(|e| e.during(verb).at(self.config.address()))
    }

    async fn try_acquire(&self, request: &Request) -> Result<Standing> {
        let times = Times::new(request.lease, request.waiter_lease, request.delay)?;
        let (lease, waiter_lease) = times.with_delay();
        let keys = self.keys(&request.name);
        let mut command = scripts::ACQUIRE.call(self.keys_with_gate(5));
        command.arg(&keys.line()).arg(keys.counter()).arg(&self.gate);
        command.arg(request.holder.to_hex()).arg(request.mode.to_string());
        command.arg(lease).arg(waiter_lease).arg(u8::from(request.queue));
        command.arg(self.inbox.channel()).arg(request.note.as_str());
        let (answer, short) = self.servers.join(slot_of(keys.bucket), &scripts::ACQUIRE, &command).await?;
        let standing = reply::standing(&answer, Asked::new(request.holder, times.leases()))?;
        match (standing, short) {
            (Standing::Busy(_), _) | (_, None) => Ok(standing),
            (_, Some(replicas)) => {
                // Whether or not this arrives, the error tells the caller that something may be left.
                let _ = self.leave(&request.ticket()).await;
                Err(too_few(replicas))
            }
        }
    }

    async fn leave(&self, ticket: &Ticket) -> Result<Release> {
        let keys = self.keys(&ticket.name);
        let (mut whole, mut part) = (scripts::RELEASE.call(4), scripts::RELEASE_PART.call(2));
        whole.arg(&keys.line()).arg(ticket.holder.to_hex());
        part.arg(&keys.line()[..2]).arg(ticket.holder.to_hex());
        let slot = slot_of(keys.bucket);
        let (whole, part) = ((&scripts::RELEASE, &whole), (&scripts::RELEASE_PART, &part));
        reply::release(&self.servers.call_or_part(slot, whole, part).await?)
    }

    /// All of `due` in one round trip to each server, in scripts of up to [`BATCH`] entries each.
    async fn renew_all(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let mut answers: Vec<_> = due.iter().map(|_| Err(Times::too_long())).collect();
        let timed = |(i, item): (usize, _)| Some((i, item, Times::of(item).ok()?));
        let items: Vec<(usize, &Renewal, Times)> = due.iter().enumerate().filter_map(timed).collect();
        let keys: Vec<_> = items.iter().map(|(_, item, _)| self.keys(&item.ticket.name)).collect();
        let batches = self.batches(keys.iter().map(|keys| keys.bucket));
        let calls = batches.iter().map(|(slot, batch)| {
            let mut command = scripts::RENEW.call(self.keys_with_gate(4 * batch.len()));
            for i in batch {
                command.arg(&keys[*i].line());
            }
            command.arg(&self.gate);
            for (_, item, times) in batch.iter().map(|i| &items[*i]) {
                let (lease, waiter_lease) = times.with_delay();
                command.arg(item.ticket.holder.to_hex()).arg(lease).arg(waiter_lease);
            }
            (*slot, command)
        });
        let replies = self.servers.call_divisible(&scripts::RENEW, calls.collect()).await;
        for ((_, batch), reply) in batches.iter().zip(replies) {
            let asked = |i: &usize| Asked::new(items[*i].1.ticket.holder, items[*i].2.leases());
            let Some(reply) = reply.transpose() else {
                // The slot is on its way, with some of these lines, or a line has fewer keys than four.
                let alone = batch.iter().map(|i| self.renew_alone(&keys[*i], items[*i].1, items[*i].2));
                let renewed = join_all(alone).await;
                renewed.into_iter().zip(batch).for_each(|(r, i)| answers[items[*i].0] = r);
                continue;
            };
            let asked: Vec<_> = batch.iter().map(asked).collect();
            match reply.and_then(|reply| reply::renewals(&reply, &asked)) {
                Ok(renewed) => renewed.into_iter().zip(batch).for_each(|(r, i)| answers[items[*i].0] = r),
                Err(e) => batch.iter().for_each(|i| answers[items[*i].0] = Err(e.clone())),
            }
        }
        answers
    }

    /// One entry, in a slot that is on its way to another node.
    async fn renew_alone(&self, keys: &LineKeys, item: &Renewal, times: Times) -> Result<Renewed> {
        let (holder, (lease, waiter_lease)) = (item.ticket.holder, times.with_delay());
        let (mut whole, mut part) = (scripts::RENEW.call(4), scripts::RENEW_PART.call(2));
        whole.arg(&keys.line()).arg(holder.to_hex()).arg(lease).arg(waiter_lease);
        part.arg(&keys.line()[..2]).arg(holder.to_hex()).arg(lease);
        let (whole, part) = ((&scripts::RENEW, &whole), (&scripts::RENEW_PART, &part));
        let answer = self.servers.call_or_part(slot_of(keys.bucket), whole, part).await?;
        let answers = reply::renewals(&answer, &[Asked::new(holder, times.leases())])?;
        answers.into_iter().next().unwrap_or_else(|| Err(Error::new(ErrorKind::Protocol, "no answer")))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for RedisBackend {
    fn info(&self) -> Info {
        Info { scheme: self.config.scheme().into(), address: self.config.address() }
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        if request.queue {
            self.inbox.expect(request.holder, self.at(&request.name));
        }
        let result = self.try_acquire(request).await;
        // A waiter keeps its place, and so does one of whom nobody knows whether it waits: until its release.
        let may_wait = match &result {
            Ok(standing) => matches!(standing, Standing::Waiting(_)),
            Err(e) => e.is_unclear(),
        };
        if request.queue && !may_wait {
            self.inbox.forget(request.holder);
        }
        self.named("acquire", result)
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        self.named("wait", self.inbox.wait(ticket.holder, self.at(&ticket.name)).await)
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        if due.is_empty() {
            return Vec::new();
        }
        let answers = self.renew_all(due).await;
        let forget = |answer: &Result<Renewed>| matches!(answer, Ok(Renewed::Held(_) | Renewed::NotHeld));
        for (item, _) in due.iter().zip(&answers).filter(|(_, answer)| forget(answer)) {
            self.inbox.forget(item.ticket.holder);
        }
        answers.into_iter().map(|answer| self.named("renew", answer)).collect()
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        self.inbox.forget(ticket.holder);
        self.named("release", self.leave(ticket).await)
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        if !self.capabilities.raise {
            self.named("raise", self.inbox.check_open())?;
            let text = "a raise can be lost in a failover, or with a counter that is evicted";
            return self.named("raise", Err(Error::new(ErrorKind::Unsupported, text)));
        }
        if token.get() > LARGEST_RAISE {
            let text = format!("Redis counts tokens up to {LARGEST_RAISE}; {token} cannot be kept");
            return self.named("raise", Err(Error::new(ErrorKind::Unsupported, text)));
        }
        let keys = self.keys(&ticket.name);
        let mut command = scripts::RAISE.call(self.keys_with_gate(5));
        command.arg(&keys.line()).arg(keys.counter()).arg(&self.gate);
        command.arg(ticket.holder.to_hex()).arg(token.get());
        let answer = self.call(keys.bucket, &scripts::RAISE, &command).await;
        self.named("raise", answer.and_then(|answer| reply::raise(&answer)))
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        let keys = self.keys(name);
        let mut command = scripts::INSPECT.call(4);
        command.arg(&keys.line());
        let answer = self.call(keys.bucket, &scripts::INSPECT, &command).await;
        self.named("inspect", answer.and_then(|answer| reply::snapshot(&answer, name)))
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        self.named("list", listing::page(self, prefix, page).await)
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        let keys = self.keys(name);
        let mut command = scripts::EVICT.call(4);
        command.arg(&keys.line()).arg(token.get());
        let answer = self.call(keys.bucket, &scripts::EVICT, &command).await;
        self.named("evict", answer.and_then(|answer| reply::release(&answer)))
    }

    async fn close(&self) -> Result<()> {
        self.servers.close();
        self.inbox.close();
        Ok(())
    }
}

/// The times of one entry in the whole milliseconds of the scripts, rounded up.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    lease: u64,
    waiter_lease: u64,
    delay: u64,
}

impl Times {
    /// Far beyond what the core allows; the sum of two and the clock stays far below 2^53.
    const MOST: u64 = 1 << 45;

    pub(crate) fn new(lease: Duration, waiter_lease: Duration, delay: Duration) -> Result<Self> {
        let millis = |time: Duration| {
            let whole = u64::try_from(time.as_nanos().div_ceil(1_000_000)).ok();
            whole.filter(|ms| *ms <= Self::MOST).ok_or_else(Self::too_long)
        };
        Ok(Self { lease: millis(lease)?, waiter_lease: millis(waiter_lease)?, delay: millis(delay)? })
    }

    pub(crate) fn of(item: &Renewal) -> Result<Self> {
        Self::new(item.lease, item.waiter_lease, item.ticket.delay)
    }

    pub(crate) fn with_delay(self) -> (u64, u64) {
        (self.lease + self.delay, self.waiter_lease + self.delay)
    }

    pub(crate) fn leases(self) -> (Duration, Duration) {
        (Duration::from_millis(self.lease), Duration::from_millis(self.waiter_lease))
    }

    pub(crate) fn too_long() -> Error {
        Error::new(ErrorKind::InvalidLease, "a lease is longer than Redis can count")
    }
}
