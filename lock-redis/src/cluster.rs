//! A cluster: which node serves a slot, and what to do when that has changed.
//!
//! There is a [`Link`] to each master that was needed. Each has the inbox subscribed, although a cluster spreads what is
//! published to all nodes: so a push comes straight from the node that promoted, and one that comes twice says the same.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use onelock_core::flight::SingleFlight;
use onelock_core::{Error, ErrorKind, Result};
use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::config::{Host, RedisConfig};
use crate::connect::Lead;
use crate::error;
use crate::inbox::{Inbox, closed, lock};
use crate::link::{Answers, Link};
use crate::scripts::Script;
use crate::survey::survey;
use crate::topology::{self, Range, Turn, View};

/// The shortest time between two looks at the topology.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Cluster {
    config: Arc<RedisConfig>,
    inbox: Arc<Inbox>,
    map: Mutex<Map>,
    looking: SingleFlight<Result<()>>,
    /// When the topology was looked at last.
    looked: Mutex<Option<Instant>>,
    stale: AtomicBool,
    closed: AtomicBool,
    this: Weak<Cluster>,
}

/// A script and what it is called with.
pub(crate) type Call<'a> = (&'static Script, &'a Cmd);

#[derive(Debug, Default)]
struct Map {
    ranges: Vec<Range>,
    links: HashMap<Host, Arc<Link>>,
}

impl Cluster {
    pub(crate) fn new(config: &Arc<RedisConfig>, inbox: &Arc<Inbox>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            config: Arc::clone(config),
            inbox: Arc::clone(inbox),
            map: Mutex::default(),
            looking: SingleFlight::default(),
            looked: Mutex::default(),
            stale: AtomicBool::new(true),
            closed: AtomicBool::new(false),
            this: this.clone(),
        })
    }

    /// Calls one script where the slot is served, wherever that is by now; in place of `call`, `part` where only some keys are
    /// there.
    pub(crate) async fn ask(&self, slot: u16, call: Call<'_>, part: Option<Call<'_>>) -> Result<Answers> {
        let until = Instant::now() + self.config.request_timeout;
        let mut link = self.owner(slot).await?;
        let (mut asking, mut now) = (false, call);
        loop {
            let answers = self.noted(link.ask(now.0, &[Cow::Borrowed(now.1)], asking).await)?;
            // Each of these answers means that nothing was done.
            let Some(turn) = answers.values.first().and_then(Turn::of) else { return Ok(answers) };
            if Instant::now() >= until {
                return Ok(answers);
            }
            if let (Turn::Partial, Some(part)) = (&turn, part)
                && !std::ptr::eq(now.0, part.0)
            {
                now = part;
                continue;
            }
            asking = matches!(turn, Turn::Ask(_));
            link = match turn {
                Turn::Moved(host) => {
                    self.stale.store(true, Ordering::Release);
                    self.link(host.at(&link))?
                }
                Turn::Ask(host) => self.link(host.at(&link))?,
                Turn::Partial | Turn::Later => {
                    now = call;
                    sleep(PAUSE).await;
                    self.stale.store(true, Ordering::Release);
                    self.owner(slot).await?
                }
            };
        }
    }

    /// Calls one script for several slots: one round trip to each node they are on. Where only some keys of a call are there
    /// it is asked again, unless it is `divisible`: then that is its answer.
    pub(crate) async fn ask_all(
        &self,
        script: &'static Script,
        calls: Vec<(u16, Cmd)>,
        divisible: bool,
    ) -> Vec<Result<Answers>> {
        let mut groups: BTreeMap<Host, (Arc<Link>, Vec<usize>)> = BTreeMap::new();
        let mut answers: Vec<Option<Result<Answers>>> = calls.iter().map(|_| None).collect();
        let fresh = self.fresh().await;
        for (i, (slot, _)) in calls.iter().enumerate() {
            match fresh.clone().and_then(|()| self.at(*slot)) {
                Ok(link) => {
                    let host = link.host().cloned().unwrap_or_else(|| Host::new("", 0));
                    groups.entry(host).or_insert_with(|| (link, Vec::new())).1.push(i);
                }
                Err(error) => answers[i] = Some(Err(error)),
            }
        }
        let calls = &calls;
        let sent = groups.into_values().map(|(link, which)| async move {
            let commands: Vec<_> = which.iter().map(|i| Cow::Borrowed(&calls[*i].1)).collect();
            let answer = self.noted(link.ask(script, &commands, false).await);
            (which, answer)
        });
        let mut astray = Vec::new();
        for (which, answer) in join_all(sent).await {
            match answer {
                Ok(Answers { values, short }) => {
                    for (i, value) in which.into_iter().zip(values) {
                        let turn = Turn::of(&value);
                        if turn.is_some() {
                            self.stale.store(true, Ordering::Release);
                        }
                        if turn.is_some_and(|turn| !divisible || turn != Turn::Partial) {
                            astray.push(i);
                        }
                        answers[i] = Some(Ok(Answers { values: vec![value], short }));
                    }
                }
                Err(error) => which.into_iter().for_each(|i| answers[i] = Some(Err(error.clone()))),
            }
        }
        let again = astray
            .into_iter()
            .map(|i| async move { (i, self.ask(calls[i].0, (script, &calls[i].1), None).await) });
        for (i, answer) in join_all(again).await {
            answers[i] = Some(answer);
        }
        let lost = || Err(Error::new(ErrorKind::Protocol, "a node gave fewer answers than asked for"));
        answers.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect()
    }

    /// The nodes that serve any of these slots, in the order of their addresses, each with what came with the first of
    /// its slots.
    pub(crate) async fn nodes<T>(
        &self,
        slots: impl Iterator<Item = (u16, T)>,
    ) -> Result<Vec<(Arc<Link>, T)>> {
        let mut nodes = BTreeMap::new();
        self.fresh().await?;
        for (slot, with) in slots {
            let link = self.at(slot)?;
            let host = link.host().cloned().unwrap_or_else(|| Host::new("", 0));
            nodes.entry(host).or_insert((link, with));
        }
        Ok(nodes.into_values().collect())
    }

    /// A node that fails may have been replaced: the next call looks.
    fn noted<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| {
            if error.is_retryable() {
                self.stale.store(true, Ordering::Release);
            }
        })
    }

    async fn owner(&self, slot: u16) -> Result<Arc<Link>> {
        self.fresh().await?;
        self.at(slot)
    }

    /// Looks at the topology when it may have changed. What was known of it is used as long as nothing better is.
    async fn fresh(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        if self.stale.load(Ordering::Acquire) {
            let looked = self.look().await;
            if lock(&self.map).ranges.is_empty() {
                return looked;
            }
        }
        Ok(())
    }

    /// Who serves a slot, as far as is known.
    fn at(&self, slot: u16) -> Result<Arc<Link>> {
        let host = host_of(&lock(&self.map).ranges, slot).cloned();
        match host {
            Some(host) => self.link(host),
            None => {
                self.stale.store(true, Ordering::Release);
                Err(Error::new(
                    ErrorKind::Unavailable,
                    format!("no node of the cluster serves slot {slot} now"),
                ))
            }
        }
    }

    fn link(&self, host: Host) -> Result<Arc<Link>> {
        let mut map = lock(&self.map);
        if self.closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        let new = || Link::new(&self.config, Lead::Node(host.clone(), self.this.clone()), &self.inbox);
        Ok(Arc::clone(map.links.entry(host.clone()).or_insert_with(new)))
    }

    /// Looks at the topology once more, whatever comes of it.
    pub(crate) async fn look_again(&self) {
        self.stale.store(true, Ordering::Release);
        // Whoever calls next looks again and says why it failed.
        let _ = self.look().await;
    }

    async fn look(&self) -> Result<()> {
        let Some(this) = self.this.upgrade() else { return Err(closed()) };
        let runtime = Handle::current();
        let looked = self.looking.join(&runtime, || async move { this.look_now().await });
        let gone = || Err(Error::new(ErrorKind::Unavailable, "the runtime of who was looking is gone"));
        looked.await.unwrap_or_else(gone)
    }

    async fn look_now(&self) -> Result<()> {
        let last = *lock(&self.looked);
        if let Some(last) = last {
            sleep_until(last + PAUSE).await;
        }
        // What fails from now on makes it stale again.
        self.stale.store(false, Ordering::Release);
        let longest = self.config.connect_timeout + self.config.request_timeout;
        let newest = timeout(longest, self.newest()).await;
        *lock(&self.looked) = Some(Instant::now());
        let slow = || {
            Err(Error::new(
                ErrorKind::Unavailable,
                format!("no node of the cluster answers within {longest:?}"),
            ))
        };
        match newest.unwrap_or_else(|_| slow()) {
            Ok(view) => {
                self.take_over(view);
                Ok(())
            }
            Err(error) => {
                self.stale.store(true, Ordering::Release);
                Err(error)
            }
        }
    }

    /// The newest view of the nodes in use, or else of those in the configuration.
    async fn newest(&self) -> Result<View> {
        let known: Vec<_> = lock(&self.map).links.values().cloned().collect();
        let views = match survey(known.iter().map(|link| topology::view(link)).collect()).await {
            Ok(views) => views,
            Err(_) => {
                let seeds = self.config.hosts.iter().map(|host| self.link(host.clone()));
                let seeds: Vec<_> = seeds.collect::<Result<_>>()?;
                survey(seeds.iter().map(|link| topology::view(link)).collect()).await?
            }
        };
        let newest = views.into_iter().max_by_key(|view| (view.serves, view.epoch));
        newest.ok_or_else(|| Error::new(ErrorKind::Unavailable, "no node of the cluster answers"))
    }

    fn take_over(&self, view: View) {
        let mut map = lock(&self.map);
        let before = std::mem::replace(&mut map.ranges, view.ranges.clone());
        let Map { ranges, links } = &mut *map;
        links.retain(|host, link| {
            let used = ranges.iter().any(|range| range.host == *host);
            if !used {
                link.retire();
            }
            used
        });
        drop(map);
        // A push may have been lost with the node that sent it.
        self.inbox.ask(|slot| host_of(&before, slot) != host_of(&view.ranges, slot));
    }

    /// There is a new connection to this node: what came over the old one may have been lost.
    pub(crate) fn lost_touch(&self, host: &Host) {
        let ranges = lock(&self.map).ranges.clone();
        self.inbox.ask(|slot| host_of(&ranges, slot) == Some(host));
    }

    pub(crate) fn close(&self) {
        let map = lock(&self.map);
        self.closed.store(true, Ordering::Release);
        map.links.values().for_each(|link| link.close());
    }
}

fn host_of(ranges: &[Range], slot: u16) -> Option<&Host> {
    ranges.iter().find(|range| range.holds(slot)).map(|range| &range.host)
}

/// What an answer for one call says.
pub(crate) fn one(answers: Answers) -> Result<(Value, Option<i64>)> {
    let Answers { values, short } = answers;
    match values.into_iter().next() {
        Some(Value::ServerError(e)) => Err(error::from_server(e.code(), e.details().unwrap_or_default())),
        Some(value) => Ok((value, short)),
        None => Err(Error::new(ErrorKind::Protocol, "the server did not answer")),
    }
}
