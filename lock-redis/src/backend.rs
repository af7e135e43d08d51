//! The verbs of a lock on one Redis server.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    Backend, Capabilities, Error, ErrorKind, FencingToken, HolderId, Info, Listing, LockName, Page, Raise,
    Release, Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};
use redis::Cmd;

use crate::config::RedisConfig;
use crate::inbox::Inbox;
use crate::keys::{LineKeys, counter};
use crate::link::Link;
use crate::scripts::{self, Script};
use crate::{client, listing, reply};

/// How many entries one renewal script takes: enough to spread the cost of a call, few enough not to hold up others.
const BATCH: usize = 64;

/// The largest token [`Backend::raise`] takes. Scripts count up to 2^53, so 2^52 leaves as many numbers again.
const LARGEST_RAISE: i64 = 1 << 52;

/// Locks on one Redis server.
///
/// It keeps one connection, replaced when it fails or does not answer, and no task while nobody waits.
#[derive(Debug)]
pub struct RedisBackend {
    config: RedisConfig,
    capabilities: Capabilities,
    inbox: Arc<Inbox>,
    pub(crate) link: Arc<Link>,
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
        let inbox = Arc::new(Inbox::new(format!("{}:inbox:{}", config.prefix, HolderId::random()?.to_hex())));
        let link = Link::new(&config, client::new(&config)?, inbox.clone());
        let mut backend =
            Self { config, capabilities: Capabilities::full(), inbox, link, walks: Default::default() };
        backend.probe().await?;
        backend.examine().await?;
        Ok(backend)
    }

    /// Fails when the access list refuses a command the verbs need.
    async fn probe(&self) -> Result<()> {
        let mut command = scripts::PROBE.call(3);
        for kind in ["h", "z", "s"] {
            let own = self.inbox.channel().rsplit(':').next().unwrap_or_default();
            command.arg(format!("{}:{{0}}:{kind}:{own}", self.prefix()));
        }
        command.arg(self.inbox.channel());
        let missing = self.call(&scripts::PROBE, &command).await?;
        let missing: Vec<_> = reply::items(&missing)?.iter().map(reply::string).collect::<Result<_>>()?;
        if missing.is_empty() {
            return Ok(());
        }
        let text = format!(
            "the user lacks rights on the keys {0}:* or the channels {0}:inbox:*, or for the commands: {1}",
            self.prefix(),
            missing.join(", ")
        );
        Err(Error::new(ErrorKind::Denied, text))
    }

    /// Learns what the server would do with locks when its memory is full, and whether it keeps them over a restart.
    /// Without the right to ask, it is taken not to keep them.
    async fn examine(&mut self) -> Result<()> {
        let memory = self.section("memory").await?;
        let limited =
            memory.as_deref().and_then(|text| field(text, "maxmemory")).is_some_and(|max| max != "0");
        let policy =
            memory.as_deref().and_then(|text| field(text, "maxmemory_policy")).unwrap_or("noeviction");
        if limited && policy != "noeviction" {
            if !self.config.allow_eviction {
                let text = format!(
                    "the server drops keys when its memory is full (maxmemory-policy {policy}), and with them locks; \
                     use a server with noeviction, or say allow_eviction=true"
                );
                return Err(Error::new(ErrorKind::InvalidConfig, text));
            }
            // A counter has no expiry: only these policies can drop it, and then tokens start again.
            let counters_last = !policy.starts_with("allkeys");
            self.capabilities.fencing = counters_last;
            self.capabilities.raise = counters_last;
        }
        let persistence = self.section("persistence").await?;
        self.capabilities.durable =
            persistence.as_deref().and_then(|text| field(text, "aof_enabled")).is_some_and(|on| on == "1");
        Ok(())
    }

    async fn section(&self, name: &str) -> Result<Option<String>> {
        let mut command = Cmd::new();
        command.arg("INFO").arg(name);
        match self.link.command(&command).await {
            Ok(answer) => Ok(Some(reply::string(&answer)?.to_owned())),
            Err(e) if e.kind() == ErrorKind::Denied => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.config.prefix
    }

    fn keys(&self, name: &LockName) -> LineKeys {
        LineKeys::new(self.prefix(), name)
    }

    async fn call(&self, script: &'static Script, command: &Cmd) -> Result<redis::Value> {
        self.link.call(script, command).await
    }

    fn named<T>(&self, verb: &'static str, result: Result<T>) -> Result<T> {
        result.map_err(|e| e.during(verb).at(self.config.address()))
    }

    async fn try_acquire(&self, request: &Request) -> Result<Standing> {
        let times = Times::new(request.lease, request.waiter_lease, request.delay)?;
        let (lease, waiter_lease) = times.with_delay();
        let keys = self.keys(&request.name);
        let mut command = scripts::ACQUIRE.call(5);
        command.arg(&keys.line).arg(counter(self.prefix(), keys.bucket));
        command.arg(request.holder.to_hex()).arg(request.mode.to_string());
        command.arg(lease).arg(waiter_lease).arg(u8::from(request.queue));
        command.arg(self.inbox.channel()).arg(request.note.as_str());
        let answer = self.call(&scripts::ACQUIRE, &command).await?;
        let (lease, waiter_lease) = times.leases();
        reply::standing(&answer, lease, waiter_lease)
    }

    /// All of `due` in one round trip, in scripts of up to [`BATCH`] entries each.
    async fn renew_all(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let mut answers: Vec<_> = due.iter().map(|_| Err(Times::too_long())).collect();
        let timed = |(i, item): (usize, _)| Some((i, item, Times::of(item).ok()?));
        let items: Vec<_> = due.iter().enumerate().filter_map(timed).collect();
        let calls = items.chunks(BATCH).map(|chunk| {
            let mut command = scripts::RENEW.call(4 * chunk.len());
            for (_, item, _) in chunk {
                command.arg(&self.keys(&item.ticket.name).line);
            }
            for (_, item, times) in chunk {
                let (lease, waiter_lease) = times.with_delay();
                command.arg(item.ticket.holder.to_hex()).arg(lease).arg(waiter_lease);
            }
            command
        });
        let replies = match self.link.call_all(&scripts::RENEW, calls.collect()).await {
            Ok(replies) => replies,
            Err(e) => items.iter().map(|_| Err(e.clone())).collect(),
        };
        for (chunk, reply) in items.chunks(BATCH).zip(replies) {
            let leases: Vec<_> = chunk.iter().map(|(_, _, times)| times.leases()).collect();
            match reply.and_then(|reply| reply::renewals(&reply, &leases)) {
                Ok(renewed) => renewed.into_iter().zip(chunk).for_each(|(r, (i, ..))| answers[*i] = r),
                Err(e) => chunk.iter().for_each(|(i, ..)| answers[*i] = Err(e.clone())),
            }
        }
        answers
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
            self.inbox.expect(request.holder);
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
        self.named("wait", self.inbox.wait(ticket.holder).await)
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
        let mut command = scripts::RELEASE.call(4);
        command.arg(&self.keys(&ticket.name).line).arg(ticket.holder.to_hex());
        let answer = self.call(&scripts::RELEASE, &command).await;
        self.named("release", answer.and_then(|answer| reply::release(&answer)))
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        if token.get() > LARGEST_RAISE {
            let text = format!("Redis counts tokens up to {LARGEST_RAISE}; {token} cannot be kept");
            return self.named("raise", Err(Error::new(ErrorKind::Unsupported, text)));
        }
        let keys = self.keys(&ticket.name);
        let mut command = scripts::RAISE.call(5);
        command.arg(&keys.line).arg(counter(self.prefix(), keys.bucket));
        command.arg(ticket.holder.to_hex()).arg(token.get());
        let answer = self.call(&scripts::RAISE, &command).await;
        self.named("raise", answer.and_then(|answer| reply::raise(&answer)))
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        let mut command = scripts::INSPECT.call(4);
        command.arg(&self.keys(name).line);
        let answer = self.call(&scripts::INSPECT, &command).await;
        self.named("inspect", answer.and_then(|answer| reply::snapshot(&answer, name)))
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        self.named("list", listing::page(self, prefix, page).await)
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        let mut command = scripts::EVICT.call(4);
        command.arg(&self.keys(name).line).arg(token.get());
        let answer = self.call(&scripts::EVICT, &command).await;
        self.named("evict", answer.and_then(|answer| reply::release(&answer)))
    }

    async fn close(&self) -> Result<()> {
        self.link.close();
        Ok(())
    }
}

/// The times of one entry in the whole milliseconds of the scripts, rounded up.
#[derive(Clone, Copy)]
struct Times {
    lease: u64,
    waiter_lease: u64,
    delay: u64,
}

impl Times {
    /// Far beyond what the core allows; the sum of two and the clock stays far below 2^53.
    const MOST: u64 = 1 << 45;

    fn new(lease: Duration, waiter_lease: Duration, delay: Duration) -> Result<Self> {
        let millis = |time: Duration| {
            let whole = u64::try_from(time.as_nanos().div_ceil(1_000_000)).ok();
            whole.filter(|ms| *ms <= Self::MOST).ok_or_else(Self::too_long)
        };
        Ok(Self { lease: millis(lease)?, waiter_lease: millis(waiter_lease)?, delay: millis(delay)? })
    }

    fn of(item: &Renewal) -> Result<Self> {
        Self::new(item.lease, item.waiter_lease, item.ticket.delay)
    }

    fn with_delay(self) -> (u64, u64) {
        (self.lease + self.delay, self.waiter_lease + self.delay)
    }

    fn leases(self) -> (Duration, Duration) {
        (Duration::from_millis(self.lease), Duration::from_millis(self.waiter_lease))
    }

    fn too_long() -> Error {
        Error::new(ErrorKind::InvalidLease, "a lease is longer than Redis can count")
    }
}

/// A field of an `INFO` answer.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}
