//! A cluster: which node serves a slot, and what to do when that has changed.
//!
//! There is a [`Connection`] to each master that was needed. Each has the inbox subscribed, although a cluster spreads what is
//! published to all nodes: so a push comes straight from the node that promoted, and one that comes twice says the same.
//!
//! The driver's own client does not serve: what a join must prove belongs to the connection it is sent on, `WAIT` must follow on
//! the same one, and a line in a slot that is on its way is served by other scripts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use onelock_core::toolkit::{Mutex, SingleFlight};
use onelock_core::{Error, ErrorKind, Host, Result};
use redis::Cmd;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::majority::{majority, some};
use super::slots::{ClusterView, Range, Redirect, view};
use crate::config::RedisConfig;
use crate::connection::{Connection, Target};
use crate::error::closed;
use crate::keys::{BUCKETS, slot};
use crate::reply::Answer;
use crate::scripts::{Call, Script};
use crate::wait::Inbox;

/// The shortest time between two reads of the slot map.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Cluster {
    config: Arc<RedisConfig>,
    inbox: Arc<Inbox>,
    state: Mutex<State>,
    reading: SingleFlight<Result<()>>,
}

/// A master, by its address.
type Node = (Host, Arc<Connection>);

#[derive(Debug, Default)]
struct State {
    ranges: Vec<Range>,
    connections: BTreeMap<Host, Arc<Connection>>,
    /// When the slot map was read last.
    read: Option<Instant>,
    /// Whether nothing has shown since that it has changed.
    good: bool,
    closed: bool,
}

impl Cluster {
    pub(super) fn new(config: &Arc<RedisConfig>, inbox: &Arc<Inbox>) -> Arc<Self> {
        Arc::new(Self {
            config: Arc::clone(config),
            inbox: Arc::clone(inbox),
            state: Mutex::default(),
            reading: SingleFlight::default(),
        })
    }

    /// Connects to the node of a slot.
    pub(super) async fn reach(self: &Arc<Self>, slot: u16) -> Result<()> {
        let reached = self.owner(slot).await?.1.reach().await;
        self.noted(reached)
    }

    /// Calls one script where the slot is served, wherever that is by now; each time that only some keys are there, the next,
    /// and all again after the last where it is `patient`.
    pub(super) async fn ask(self: &Arc<Self>, slot: u16, calls: &[Call], patient: bool) -> Result<Answer> {
        let until = Instant::now() + self.config.request_timeout;
        let (mut here, mut node) = self.owner(slot).await?;
        let (mut asking, mut now) = (false, 0);
        loop {
            let (script, command) = &calls[now];
            let answer = Answer::only(self.noted(node.ask(script, &[command], asking).await)?)?;
            // Each of these answers means that nothing was done.
            let Some(redirect) = Redirect::of(&answer.value) else { return Ok(answer) };
            let last = redirect != Redirect::Partial || now + 1 == calls.len();
            if Instant::now() >= until || (redirect == Redirect::Partial && last && !patient) {
                return Ok(answer);
            }
            if !last {
                now += 1;
                continue;
            }
            asking = matches!(redirect, Redirect::Ask(_));
            if !asking {
                self.is_stale();
            }
            (here, node) = match redirect {
                Redirect::Moved(there) | Redirect::Ask(there) if there.host.is_empty() => {
                    self.node(Host::new(here.host, there.port))?
                }
                Redirect::Moved(there) | Redirect::Ask(there) => self.node(there)?,
                Redirect::Partial | Redirect::Later => {
                    now = 0;
                    sleep(PAUSE).await;
                    self.owner(slot).await?
                }
            };
        }
    }

    /// Calls one script for several slots: one round trip to each node they are on. Where only some keys of a call are there,
    /// that is its answer: its parts may be served one by one. Once one node has answered the others have this `grace`.
    pub(super) async fn ask_all(
        self: &Arc<Self>,
        script: &'static Script,
        calls: &[(u16, Cmd)],
        grace: Duration,
    ) -> Vec<Result<Answer>> {
        let mut groups: BTreeMap<Host, (Arc<Connection>, Vec<usize>)> = BTreeMap::new();
        // What fails here is asked by itself.
        let _ = self.fresh().await;
        for (i, (slot, _)) in calls.iter().enumerate() {
            if let Ok((host, node)) = self.at(*slot) {
                groups.entry(host).or_insert_with(|| (node, Vec::new())).1.push(i);
            }
        }
        let mut answers = vec![None; calls.len()];
        let sent = groups.into_values().map(|(node, which)| {
            let late =
                || Error::new(ErrorKind::Timeout, "other nodes have answered, and this one has not yet");
            which.iter().for_each(|i| answers[*i] = Some(Err(late())));
            let commands: Vec<_> = which.iter().map(|i| calls[*i].1.clone()).collect();
            let this = Arc::clone(self);
            // A task of its own: one that stands still keeps no other's answers, and is found not to answer all the same.
            let asked = tokio::spawn(async move {
                let answers = node.ask_each(script, &commands.iter().collect::<Vec<_>>()).await;
                which.into_iter().zip(answers).map(|(i, answer)| (i, this.noted(answer))).collect::<Vec<_>>()
            });
            async move { asked.await.map_err(|_| late()) }
        });
        let sent: Vec<_> = sent.collect();
        let (all, longest) = (sent.len(), self.config.connect_timeout + self.config.request_timeout);
        for (i, answer) in some(sent, all, grace.min(longest)).await.into_iter().flatten().flatten() {
            let redirect = answer.as_ref().ok().and_then(|answer| Redirect::of(&answer.value));
            answers[i] = matches!(redirect, None | Some(Redirect::Partial)).then_some(answer);
        }
        let all = answers.into_iter().zip(calls).map(async |(answer, (slot, command))| match answer {
            Some(answer) => answer,
            None => self.ask(*slot, &[(script, command.clone())], false).await,
        });
        join_all(all).await
    }

    /// The nodes that serve lines, in the order of their addresses, each with a bucket of its own.
    pub(super) async fn nodes(self: &Arc<Self>) -> Result<Vec<(Arc<Connection>, u32)>> {
        let mut nodes = BTreeMap::new();
        self.fresh().await?;
        for bucket in 0..BUCKETS {
            let (host, node) = self.at(slot(&bucket.to_string()))?;
            nodes.entry(host).or_insert((node, bucket));
        }
        Ok(nodes.into_values().collect())
    }

    fn is_stale(&self) {
        self.state.lock().good = false;
    }

    /// A node that fails may have been replaced: the next call reads the map.
    fn noted<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| {
            if error.is_retryable() {
                self.is_stale();
            }
        })
    }

    async fn owner(self: &Arc<Self>, slot: u16) -> Result<Node> {
        self.fresh().await?;
        self.at(slot)
    }

    /// Reads the slot map when it may have changed. What was known of it is used as long as nothing better is.
    async fn fresh(self: &Arc<Self>) -> Result<()> {
        let (good, known) = {
            let state = self.state.lock();
            (state.good, !state.ranges.is_empty())
        };
        if good {
            return Ok(());
        }
        let (this, runtime) = (Arc::clone(self), Handle::current());
        let read = self.reading.join(&runtime, || async move { this.read_map().await }).await;
        let gone = || Err(Error::new(ErrorKind::Unavailable, "the runtime of the reading task is gone"));
        read.unwrap_or_else(gone).or_else(|error| if known { Ok(()) } else { Err(error) })
    }

    /// Who serves a slot, as far as is known.
    fn at(&self, slot: u16) -> Result<Node> {
        let served = |range: &&Range| range.holds(slot);
        let host = self.state.lock().ranges.iter().find(served).map(|range| range.host.clone());
        let unserved = || {
            self.is_stale();
            Error::new(ErrorKind::Unavailable, format!("no node of the cluster serves slot {slot} now"))
        };
        self.node(host.ok_or_else(unserved)?)
    }

    fn node(&self, host: Host) -> Result<Node> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(closed());
        }
        let new = || Connection::new(&self.config, Target::Node(host.clone()), &self.inbox);
        let node = Arc::clone(state.connections.entry(host.clone()).or_insert_with(new));
        Ok((host, node))
    }

    async fn read_map(&self) -> Result<()> {
        let last = self.state.lock().read;
        if let Some(last) = last {
            sleep_until(last + PAUSE).await;
        }
        // What fails from now on makes it stale again.
        self.state.lock().good = true;
        let longest = self.config.connect_timeout + self.config.request_timeout;
        let newest = timeout(longest, self.newest()).await.unwrap_or_else(|_| {
            let text = format!("no node of the cluster answers within {longest:?}");
            Err(Error::new(ErrorKind::Unavailable, text))
        });
        self.state.lock().read = Some(Instant::now());
        newest.map(|view| self.take_over(view)).inspect_err(|_| self.is_stale())
    }

    /// The newest view of the nodes in use, or else of those in the configuration.
    async fn newest(&self) -> Result<ClusterView> {
        let known: Vec<_> = self.state.lock().connections.clone().into_iter().collect();
        let views = match majority(known.iter().map(view).collect()).await {
            Ok(views) => views,
            Err(_) => {
                let seeds = self.config.hosts.iter().map(|host| self.node(host.clone()));
                let seeds: Vec<_> = seeds.collect::<Result<_>>()?;
                majority(seeds.iter().map(view).collect()).await?
            }
        };
        let newest = views.into_iter().max_by_key(|view| (view.serves, view.epoch));
        newest.ok_or_else(|| Error::new(ErrorKind::Unavailable, "no node of the cluster answers"))
    }

    fn take_over(&self, view: ClusterView) {
        let mut state = self.state.lock();
        let changed = state.ranges != view.ranges;
        state.connections.retain(|host, _| view.ranges.iter().any(|range| range.host == *host));
        state.ranges = view.ranges;
        drop(state);
        if changed {
            // A push may have been lost with the node that sent it.
            self.inbox.ask_all();
        }
    }

    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.connections.values().for_each(|node| node.close());
    }
}
