//! Which server serves a slot, and what to do when that has changed, as it does in a cluster.
//!
//! There is a [`Connection`] to each master that was needed. Each has the inbox subscribed, although a cluster spreads what is
//! published to all nodes: so a push comes straight from the node that promoted, and one that comes twice says the same.
//!
//! The driver's own client does not serve: what a join must prove belongs to the connection it is sent on, `WAIT` must follow on
//! the same one, and a line in a slot that is on its way is served by other scripts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use onelock_core::{Error, ErrorKind, Host, Result};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until, timeout};

use super::Servers;
use super::majority::majority;
use super::slots::{Range, view};
use crate::connection::Connection;

/// The shortest time between two reads of the slot map.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// The slot map, and the connections to its nodes.
#[derive(Debug, Default)]
pub(super) struct SlotMap {
    ranges: Vec<Range>,
    connections: BTreeMap<Host, Arc<Connection>>,
    /// When it was read last.
    read: Option<Instant>,
    /// Whether nothing has shown since that it has changed.
    good: bool,
}

impl SlotMap {
    /// One server serves all slots; without one, that is to be read.
    pub(super) fn of(one: Option<&Host>) -> Self {
        Self { ranges: one.map(|host| (0..=u16::MAX, host.clone())).into_iter().collect(), ..Self::default() }
    }
}

impl Servers {
    /// Each connection ends with the last call that is under way on it.
    pub(crate) fn close(&self) {
        self.inbox.close();
        self.map.lock().connections.clear();
    }

    pub(super) fn is_stale(&self) {
        self.map.lock().good = false;
    }

    /// A node that fails may have been replaced: the next call reads the map.
    pub(super) fn noted<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| {
            if error.is_retryable() {
                self.is_stale();
            }
        })
    }

    pub(super) async fn owner(self: &Arc<Self>, slot: u16) -> Result<Arc<Connection>> {
        self.fresh().await?;
        if let Ok(node) = self.at(slot) {
            return Ok(node);
        }
        // The map may be of a moment in which nobody served it.
        self.fresh().await?;
        self.at(slot)
    }

    /// Reads the slot map when it may have changed. What was known of it is used as long as nothing better is.
    pub(super) async fn fresh(self: &Arc<Self>) -> Result<()> {
        if !self.are_many() || self.map.lock().good {
            return Ok(());
        }
        let (this, runtime) = (Arc::clone(self), Handle::current());
        // In a place of its own: a future is as large as the largest thing that it may wait for.
        let read = Box::pin(self.reading.join(&runtime, || async move { this.read_map().await })).await;
        let gone = || Err(Error::new(ErrorKind::Unavailable, "the runtime of the reading task is gone"));
        let known = !self.map.lock().ranges.is_empty();
        read.unwrap_or_else(gone).or_else(|error| if known { Ok(()) } else { Err(error) })
    }

    /// The node that serves a slot, as far as is known.
    pub(super) fn at(&self, slot: u16) -> Result<Arc<Connection>> {
        let mut map = self.map.lock();
        let Some((_, host)) = map.ranges.iter().find(|(slots, _)| slots.contains(&slot)) else {
            map.good = false;
            let text = format!("no node of the cluster serves slot {slot} now");
            return Err(Error::new(ErrorKind::Unavailable, text));
        };
        let host = host.clone();
        drop(map);
        self.node(host)
    }

    pub(super) fn node(&self, host: Host) -> Result<Arc<Connection>> {
        let mut map = self.map.lock();
        self.inbox.check_open()?;
        let new = |host: &Host| Connection::new(&self.config, host.clone(), &self.inbox);
        Ok(Arc::clone(map.connections.entry(host).or_insert_with_key(new)))
    }

    async fn read_map(&self) -> Result<()> {
        let last = self.map.lock().read;
        if let Some(last) = last {
            sleep_until(last + PAUSE).await;
        }
        // What fails from now on makes it stale again.
        self.map.lock().good = true;
        let longest = self.config.connect_timeout + self.config.request_timeout;
        let newest = timeout(longest, self.newest()).await.unwrap_or_else(|_| {
            let text = format!("no node of the cluster answers within {longest:?}");
            Err(Error::new(ErrorKind::Unavailable, text))
        });
        self.map.lock().read = Some(Instant::now());
        newest.map(|ranges| self.take_over(ranges)).inspect_err(|_| self.is_stale())
    }

    /// The newest view of the nodes in use, or else of those in the configuration.
    async fn newest(&self) -> Result<Vec<Range>> {
        let known: Vec<_> = self.map.lock().connections.values().cloned().collect();
        let views = match majority(known.iter().map(view).collect()).await {
            Ok(views) => views,
            Err(_) => {
                let seeds = self.config.hosts.iter().map(|host| self.node(host.clone()));
                let seeds: Vec<_> = seeds.collect::<Result<_>>()?;
                majority(seeds.iter().map(view).collect()).await?
            }
        };
        let newest = views.into_iter().max_by_key(|(age, _)| *age).map(|(_, ranges)| ranges);
        newest.ok_or_else(|| Error::new(ErrorKind::Unavailable, "no node of the cluster answers"))
    }

    fn take_over(&self, ranges: Vec<Range>) {
        let mut map = self.map.lock();
        let changed = map.ranges != ranges;
        map.connections.retain(|host, _| ranges.iter().any(|(_, serves)| serves == host));
        map.ranges = ranges;
        drop(map);
        if changed {
            // A push may have been lost with the node that sent it.
            self.inbox.connection_lost();
        }
    }
}
