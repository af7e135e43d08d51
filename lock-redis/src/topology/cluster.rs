//! A cluster: which node serves a slot, and what to do when that has changed.
//!
//! There is a [`Connection`] to each master that was needed. Each has the inbox subscribed, although a cluster spreads what is
//! published to all nodes: so a push comes straight from the node that promoted, and one that comes twice says the same.
//!
//! The driver's own client does not serve: what a join must prove belongs to the connection it is sent on, `WAIT` must follow on
//! the same one, and a line in a slot that is on its way is served by other scripts.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use onelock_core::flight::SingleFlight;
use onelock_core::{Error, ErrorKind, Host, Result};
use redis::Cmd;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::majority::majority;
use super::slots::{ClusterView, Range, Redirect, view};
use super::{Call, only};
use crate::config::RedisConfig;
use crate::connection::{Answer, Connection, Target};
use crate::error::closed;
use crate::scripts::Script;
use crate::wait::{Inbox, lock};

/// The shortest time between two reads of the slot map.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Cluster {
    config: Arc<RedisConfig>,
    inbox: Arc<Inbox>,
    map: Mutex<Map>,
    reading: SingleFlight<Result<()>>,
    /// When the slot map was read last.
    read: Mutex<Option<Instant>>,
    stale: AtomicBool,
    closed: AtomicBool,
    this: Weak<Cluster>,
}

#[derive(Debug, Default)]
struct Map {
    ranges: Vec<Range>,
    connections: HashMap<Host, Arc<Connection>>,
}

impl Cluster {
    pub(super) fn new(config: &Arc<RedisConfig>, inbox: &Arc<Inbox>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            config: Arc::clone(config),
            inbox: Arc::clone(inbox),
            map: Mutex::default(),
            reading: SingleFlight::default(),
            read: Mutex::default(),
            stale: AtomicBool::new(true),
            closed: AtomicBool::new(false),
            this: this.clone(),
        })
    }

    /// Connects to the node of a slot.
    pub(super) async fn reach(&self, slot: u16) -> Result<()> {
        let reached = self.owner(slot).await?.reach().await;
        self.noted(reached)
    }

    /// Calls one script where the slot is served, wherever that is by now; each time that only some keys are there, the next.
    pub(super) async fn ask(&self, slot: u16, calls: &[Call]) -> Result<Answer> {
        let until = Instant::now() + self.config.request_timeout;
        let mut node = self.owner(slot).await?;
        let (mut asking, mut now) = (false, 0);
        loop {
            let (script, command) = &calls[now];
            let answer = only(self.noted(node.ask(script, &[command], asking).await)?)?;
            // Each of these answers means that nothing was done.
            let Some(redirect) = Redirect::of(&answer.value) else { return Ok(answer) };
            if Instant::now() >= until {
                return Ok(answer);
            }
            if redirect == Redirect::Partial && now + 1 < calls.len() {
                now += 1;
                continue;
            }
            asking = matches!(redirect, Redirect::Ask(_));
            node = match redirect {
                Redirect::Moved(host) => {
                    self.is_stale();
                    self.node(host.at(&node))?
                }
                Redirect::Ask(host) => self.node(host.at(&node))?,
                Redirect::Partial | Redirect::Later => {
                    now = 0;
                    sleep(PAUSE).await;
                    self.is_stale();
                    self.owner(slot).await?
                }
            };
        }
    }

    /// Calls one script for several slots: one round trip to each node they are on. Where only some keys of a call are there,
    /// that is its answer: its parts may be served one by one.
    pub(super) async fn ask_all(&self, script: &'static Script, calls: &[(u16, Cmd)]) -> Vec<Result<Answer>> {
        let mut groups: BTreeMap<Host, (Arc<Connection>, Vec<usize>)> = BTreeMap::new();
        let mut answers: Vec<Option<Result<Answer>>> = calls.iter().map(|_| None).collect();
        let fresh = self.fresh().await;
        for (i, (slot, _)) in calls.iter().enumerate() {
            match fresh.clone().and_then(|()| self.at(*slot)) {
                Ok((host, node)) => groups.entry(host).or_insert_with(|| (node, Vec::new())).1.push(i),
                Err(error) => answers[i] = Some(Err(error)),
            }
        }
        let sent = groups.into_values().map(|(node, which)| async move {
            let commands: Vec<_> = which.iter().map(|i| &calls[*i].1).collect();
            let answer = self.noted(node.ask(script, &commands, false).await);
            (which, answer)
        });
        let mut moved = Vec::new();
        for (which, answer) in join_all(sent).await {
            match answer {
                Ok(values) => {
                    for (i, answer) in which.into_iter().zip(values) {
                        match Redirect::of(&answer.value) {
                            None | Some(Redirect::Partial) => {}
                            Some(_) => moved.push(i),
                        }
                        answers[i] = Some(Ok(answer));
                    }
                }
                Err(error) => which.into_iter().for_each(|i| answers[i] = Some(Err(error.clone()))),
            }
        }
        let again =
            moved.into_iter().map(async |i| (i, self.ask(calls[i].0, &[(script, calls[i].1.clone())]).await));
        for (i, answer) in join_all(again).await {
            answers[i] = Some(answer);
        }
        let lost = || Err(Error::new(ErrorKind::Protocol, "a node gave fewer answers than asked for"));
        answers.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect()
    }

    /// The nodes that serve any of these slots, in the order of their addresses, each with what came with the first of
    /// its slots.
    pub(super) async fn nodes<T>(
        &self,
        slots: impl Iterator<Item = (u16, T)>,
    ) -> Result<Vec<(Arc<Connection>, T)>> {
        let mut nodes = BTreeMap::new();
        self.fresh().await?;
        for (slot, with) in slots {
            let (host, node) = self.at(slot)?;
            nodes.entry(host).or_insert((node, with));
        }
        Ok(nodes.into_values().collect())
    }

    fn is_stale(&self) {
        self.stale.store(true, Ordering::Release);
    }

    /// A node that fails may have been replaced: the next call reads the map.
    fn noted<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| {
            if error.is_retryable() {
                self.is_stale();
            }
        })
    }

    async fn owner(&self, slot: u16) -> Result<Arc<Connection>> {
        self.fresh().await?;
        Ok(self.at(slot)?.1)
    }

    /// Reads the slot map when it may have changed. What was known of it is used as long as nothing better is.
    async fn fresh(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        if self.stale.load(Ordering::Acquire) {
            let Some(this) = self.this.upgrade() else { return Err(closed()) };
            let runtime = Handle::current();
            let read = self.reading.join(&runtime, || async move { this.read_map().await }).await;
            if lock(&self.map).ranges.is_empty() {
                let gone =
                    || Err(Error::new(ErrorKind::Unavailable, "the runtime of the reading task is gone"));
                return read.unwrap_or_else(gone);
            }
        }
        Ok(())
    }

    /// Who serves a slot, as far as is known.
    fn at(&self, slot: u16) -> Result<(Host, Arc<Connection>)> {
        let served = |range: &&Range| range.holds(slot);
        let host = lock(&self.map).ranges.iter().find(served).map(|range| range.host.clone());
        let unserved = || {
            self.is_stale();
            Error::new(ErrorKind::Unavailable, format!("no node of the cluster serves slot {slot} now"))
        };
        let host = host.ok_or_else(unserved)?;
        let node = self.node(host.clone())?;
        Ok((host, node))
    }

    fn node(&self, host: Host) -> Result<Arc<Connection>> {
        let mut map = lock(&self.map);
        if self.closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        let new = || Connection::new(&self.config, Target::Node(host.clone()), &self.inbox);
        Ok(Arc::clone(map.connections.entry(host.clone()).or_insert_with(new)))
    }

    async fn read_map(&self) -> Result<()> {
        let last = *lock(&self.read);
        if let Some(last) = last {
            sleep_until(last + PAUSE).await;
        }
        // What fails from now on makes it stale again.
        self.stale.store(false, Ordering::Release);
        let longest = self.config.connect_timeout + self.config.request_timeout;
        let newest = timeout(longest, self.newest()).await;
        *lock(&self.read) = Some(Instant::now());
        let slow = || {
            let text = format!("no node of the cluster answers within {longest:?}");
            Err(Error::new(ErrorKind::Unavailable, text))
        };
        let newest = newest.unwrap_or_else(|_| slow());
        newest.map(|view| self.take_over(view)).inspect_err(|_| self.is_stale())
    }

    /// The newest view of the nodes in use, or else of those in the configuration.
    async fn newest(&self) -> Result<ClusterView> {
        let known: Vec<_> = lock(&self.map).connections.values().cloned().collect();
        let views = match majority(known.iter().map(|node| view(node)).collect()).await {
            Ok(views) => views,
            Err(_) => {
                let seeds = self.config.hosts.iter().map(|host| self.node(host.clone()));
                let seeds: Vec<_> = seeds.collect::<Result<_>>()?;
                majority(seeds.iter().map(|node| view(node)).collect()).await?
            }
        };
        let newest = views.into_iter().max_by_key(|view| (view.serves, view.epoch));
        newest.ok_or_else(|| Error::new(ErrorKind::Unavailable, "no node of the cluster answers"))
    }

    fn take_over(&self, view: ClusterView) {
        let mut map = lock(&self.map);
        let changed = map.ranges != view.ranges;
        let Map { ranges, connections } = &mut *map;
        *ranges = view.ranges;
        connections.retain(|host, node| {
            let used = ranges.iter().any(|range| range.host == *host);
            if !used {
                node.retire();
            }
            used
        });
        drop(map);
        if changed {
            // A push may have been lost with the node that sent it.
            self.inbox.ask_all();
        }
    }

    pub(super) fn close(&self) {
        let map = lock(&self.map);
        self.closed.store(true, Ordering::Release);
        map.connections.values().for_each(|node| node.close());
    }
}
