//! The verbs of a lock in the plain layout: one key, as `SET name value NX PX` makes it.
//!
//! It excludes the users of every library that locks this way, and keeps what that allows: exclusive locks, asked for
//! again and again.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::store::{Checked, undeclared};
use onelock_core::{
    Backend, Capabilities, Error, ErrorKind, FencingToken, HolderId, Info, Listing, LockName, Page, Raise,
    Release, Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};

use crate::acquire::Times;
use crate::config::{Layout, RedisConfig, Topology};
use crate::connection::check;
use crate::error::too_few;
use crate::keys::{bucket, slot};
use crate::renew::BATCH;
use crate::reply::Asked;
use crate::topology::Servers;
use crate::wait::Inbox;
use crate::{reply, scripts};

/// How often somebody who waits asks.
const POLL: Duration = Duration::from_millis(100);

/// Exclusive locks that the users of other libraries respect, and whose locks are respected.
///
/// A lock's key is the prefix (empty by default) and its name, as it is.
#[derive(Debug)]
pub struct PlainBackend {
    config: Arc<RedisConfig>,
    capabilities: Capabilities,
    servers: Servers,
}

impl PlainBackend {
    /// Connects, and checks that the server can keep locks: rights, memory policy, role.
    ///
    /// # Errors
    /// As [`RedisBackend::connect`](crate::RedisBackend::connect); a right on the keys of a lock is found missing by the verb that needs it.
    ///
    /// # Cancel safety
    /// Safe: a connection half made is closed.
    pub async fn connect(config: RedisConfig) -> Result<Checked<Self>> {
        config.check()?;
        let at = config.address();
        Self::open(config).await.map(Checked::over).map_err(|e| e.during("connect").at(at))
    }

    async fn open(config: RedisConfig) -> Result<Self> {
        if config.layout != Layout::Plain {
            return Err(Error::new(ErrorKind::InvalidConfig, "this is the backend of the plain layout only"));
        }
        let config = Arc::new(config);
        let servers = Servers::new(&config, &Arc::new(Inbox::new(String::new(), false)));
        let probe = format!("{}onelock-probe:{}", config.namespace, HolderId::random()?.to_hex());
        check::plain_rights(&servers, &probe, slot_of(&probe)).await?;
        // The counter is another key, and in a cluster perhaps on another node.
        let fencing = config.topology != Topology::Cluster;
        let declared = Capabilities::minimal().fencing(fencing).delay(true).resume(true);
        let capabilities = check::capabilities(&servers, &config, declared).await?;
        Ok(Self { config, capabilities, servers })
    }

    fn key(&self, name: &LockName) -> String {
        format!("{}{}", self.config.namespace, name.as_str())
    }

    fn counter(name: &LockName) -> String {
        format!("onelock:plain:{{{}}}:n", bucket(&name.encoded()))
    }

    async fn try_acquire(&self, request: &Request) -> Result<Standing> {
        let times = Times::new(request.lease, request.waiter_lease, request.delay)?;
        let (key, counted) = (self.key(&request.name), self.capabilities.fencing || !self.servers.are_many());
        let mut command = scripts::PLAIN_ACQUIRE.call(if counted { 2 } else { 1 });
        command.arg(&key);
        if counted {
            command.arg(Self::counter(&request.name));
        }
        command.arg(request.holder.to_hex()).arg(times.with_delay().0).arg(request.note.as_str());
        command.arg(u16::from(request.epoch));
        let (answer, short) =
            self.servers.call(slot_of(&key), &scripts::PLAIN_ACQUIRE, command).await?.joined()?;
        let standing = reply::standing(&answer, Asked::new(request.holder, times.leases()))?;
        match (standing, short) {
            (Standing::Held(_), Some(replicas)) => {
                // Whether or not this arrives, the error tells the caller that something may be left.
                let _ = self.remove(&request.name, &request.holder.to_hex()).await;
                Err(too_few(replicas))
            }
            _ => Ok(standing),
        }
    }

    /// Removes the lock of a holder, or of `#` and a number.
    async fn remove(&self, name: &LockName, whose: &str) -> Result<Release> {
        let key = self.key(name);
        let mut command = scripts::PLAIN_RELEASE.call(1);
        command.arg(&key).arg(whose);
        reply::release(&self.servers.call(slot_of(&key), &scripts::PLAIN_RELEASE, command).await?.value()?)
    }

    async fn renew_all(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let (mut answers, mut items) = (Vec::with_capacity(due.len()), Vec::with_capacity(due.len()));
        for (at, item) in due.iter().enumerate() {
            let times = Times::of(item);
            // Replaced by the server's answer where it is asked.
            answers.push(times.as_ref().map(|_| Renewed::NotHeld).map_err(Clone::clone));
            items.extend(times.ok().map(|times| (at, item, times)));
        }
        let mut keys: Vec<_> =
            items.iter().map(|(_, item, _)| self.key(&item.ticket.name)).enumerate().collect();
        let many = self.servers.are_many();
        if many {
            keys.sort_by_cached_key(|(_, key)| slot_of(key));
        }
        let same = |a: &(usize, String), b: &(usize, String)| !many || slot_of(&a.1) == slot_of(&b.1);
        let batches: Vec<_> = keys.chunk_by(same).flat_map(|keys| keys.chunks(BATCH)).collect();
        let calls = batches.iter().map(|batch| {
            let mut command = scripts::PLAIN_RENEW.call(batch.len());
            batch.iter().for_each(|(_, key)| {
                command.arg(key);
            });
            for (_, item, times) in batch.iter().map(|(i, _)| &items[*i]) {
                command.arg(item.ticket.holder.to_hex()).arg(times.with_delay().0);
            }
            (slot_of(&batch[0].1), command)
        });
        let replies = self.servers.call_all(&scripts::PLAIN_RENEW, &calls.collect::<Vec<_>>()).await;
        for (batch, reply) in batches.iter().zip(replies) {
            let asked = |i: usize| Asked::new(items[i].1.ticket.holder, items[i].2.leases());
            let asked: Vec<_> = batch.iter().map(|(i, _)| asked(*i)).collect();
            match reply.and_then(|reply| reply::renewals(&reply.value()?, &asked)) {
                Ok(renewed) => {
                    renewed.into_iter().zip(*batch).for_each(|(r, (i, _))| answers[items[*i].0] = r)
                }
                Err(e) => batch.iter().for_each(|(i, _)| answers[items[*i].0] = Err(e.clone())),
            }
        }
        answers
    }
}

/// The slot of a key that may have a hash tag of its own.
fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    slot(tag.filter(|tag| !tag.is_empty()).unwrap_or(key))
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for PlainBackend {
    fn info(&self) -> Info {
        Info::new(self.config.scheme(), self.config.address())
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        self.try_acquire(request).await
    }

    /// There is no line to wait in and nobody who tells: asking again after a while may help.
    async fn wait(&self, _ticket: &Ticket) -> Result<Wake> {
        tokio::time::sleep(POLL).await;
        Ok(Wake::Ask)
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        self.renew_all(due).await
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        self.remove(&ticket.name, &ticket.holder.to_hex()).await
    }

    async fn raise(&self, _ticket: &Ticket, _token: FencingToken) -> Result<Raise> {
        undeclared()
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        let key = self.key(name);
        let mut command = scripts::PLAIN_INSPECT.call(1);
        command.arg(&key);
        let answer = self.servers.call(slot_of(&key), &scripts::PLAIN_INSPECT, command).await?;
        reply::snapshot(&answer.value()?, name)
    }

    /// Nothing tells a lock's key from any other.
    async fn list(&self, _prefix: &str, _page: &Page) -> Result<Listing> {
        undeclared()
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        self.remove(name, &format!("#{token}")).await
    }

    async fn close(&self) -> Result<()> {
        self.servers.close();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_in_the_slot_that_redis_gives_it() {
        assert_eq!(
            ["foo", "{user}x", "a{}b", "a{foo"].map(slot_of),
            [12182, 5474, slot("a{}b"), slot("a{foo")]
        );
    }
}
