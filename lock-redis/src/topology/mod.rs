//! The servers behind a backend: one, or the nodes of a cluster, and how a script is called there.

mod cluster;
pub(crate) mod epoch;
mod majority;
pub(crate) mod sentinel;
mod slots;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use onelock_core::toolkit::{Mutex, SingleFlight};
use onelock_core::{Error, ErrorKind, Result};
use redis::Cmd;
use tokio::time::{Instant, sleep};

use crate::config::{RedisConfig, Topology};
use crate::connection::Connection;
use crate::error;
use crate::keys::{BUCKETS, LineKeys, slot};
use crate::reply::Answer;
use crate::scripts::{Script, Way};
use crate::wait::Inbox;
use cluster::{PAUSE, SlotMap};
use majority::some;

/// How many entries one script takes: enough to spread the cost of a call, few enough not to hold up others.
const BATCH: usize = 64;

/// The servers, and which of them serves which slot: one server, whichever that is, serves all.
#[derive(Debug)]
pub(crate) struct Servers {
    config: Arc<RedisConfig>,
    inbox: Arc<Inbox>,
    map: Mutex<SlotMap>,
    reading: SingleFlight<Result<()>>,
}

impl Servers {
    pub(crate) fn new(config: &Arc<RedisConfig>, inbox: &Arc<Inbox>) -> Arc<Self> {
        let one = config.hosts.first().filter(|_| config.topology != Topology::Cluster);
        Arc::new(Self {
            config: Arc::clone(config),
            inbox: Arc::clone(inbox),
            map: Mutex::new(SlotMap::of(one)),
            reading: SingleFlight::default(),
        })
    }

    /// Whether the keys of a script must be of one slot.
    pub(crate) fn are_many(&self) -> bool {
        self.config.topology == Topology::Cluster
    }

    /// Connects to the server of `slot`, where that is not done.
    pub(crate) async fn reach(self: &Arc<Self>, slot: u16) -> Result<()> {
        let reached = self.owner(slot).await?.reach().await;
        self.noted(reached)
    }

    /// Calls one script where the slot is served, wherever that is by now.
    pub(crate) async fn call(self: &Arc<Self>, slot: u16, script: &Script, command: &Cmd) -> Result<Answer> {
        let until = Instant::now() + self.config.request_timeout;
        let (mut node, mut asking, mut redirects) = (self.owner(slot).await?, false, 0);
        loop {
            let answer = self.noted(node.ask(script, command, asking).await)?;
            let is_redirect = self.are_many() && slots::is_redirect(&answer.value);
            if !is_redirect || Instant::now() >= until || !script.patient && answer.is_partial() {
                return Ok(answer);
            }
            asking = error::has_code(&answer.value, &["ASK"]);
            if !asking {
                self.is_stale();
            }
            // More often than where a slot has moved, and is on its way from there, nodes send it to each other.
            redirects += 1;
            let there = slots::there(&answer.value, &node.host);
            if redirects > 2 || there.is_none() {
                sleep(PAUSE).await;
            }
            node = match there {
                Some(host) => self.node(host)?,
                None => self.owner(slot).await?,
            };
        }
    }

    /// Calls the first of these scripts for a line, or each time that only some of its keys are there the next. What can be done
    /// in several ways is renewed or released: it is asked again anyhow, and must keep nobody waiting.
    pub(crate) async fn call_ways(
        self: &Arc<Self>,
        ways: &[Way],
        line: &LineKeys,
        add: impl Fn(&mut Cmd),
    ) -> Result<Answer> {
        let (keys, mut answer) = (line.line(), Err(error::miscounted()));
        for (script, count) in ways {
            let mut command = script.call(&keys[..*count]);
            add(&mut command);
            answer = self.call(line.slot(), script, &command).await;
            if !answer.as_ref().is_ok_and(Answer::is_partial) {
                break;
            }
        }
        answer
    }

    /// Calls one script for many lines, all at once: each answer with the lines that it is about, which are at most [`BATCH`], and of one
    /// slot where there are many servers. `add` gives the arguments of each. Where only some keys of a call
    /// are there, that is its answer. Once one call is answered the others have this `grace`.
    pub(crate) async fn call_lines(
        self: &Arc<Self>,
        script: &'static Script,
        lines: &[LineKeys],
        gate: Option<&str>,
        add: impl Fn(usize, &mut Cmd),
        grace: Duration,
    ) -> Vec<(Vec<usize>, Result<Answer>)> {
        let late =
            || Error::new(ErrorKind::Timeout, "other requests have been answered, and this one has not yet");
        let slot = |i: &usize| if self.are_many() { lines[*i].slot() } else { 0 };
        let mut order: Vec<_> = (0..lines.len()).collect();
        order.sort_by_cached_key(slot);
        let (mut sent, mut answers) = (Vec::new(), Vec::new());
        for batch in order.chunk_by(|a, b| slot(a) == slot(b)).flat_map(|lines| lines.chunks(BATCH)) {
            let keys: Vec<_> = batch.iter().flat_map(|i| lines[*i].line()).chain(gate).collect();
            let mut command = script.call(&keys);
            batch.iter().for_each(|i| add(*i, &mut command));
            let (this, nth, slot) = (Arc::clone(self), answers.len(), slot(&batch[0]));
            // A task of its own: one that stalls keeps no other's answers, and is found not to answer all the same.
            let asked = tokio::spawn(async move { (nth, this.call(slot, script, &command).await) });
            sent.push(async move { asked.await.map_err(|_| late()) });
            answers.push((batch.to_vec(), Err(late())));
        }
        let (all, longest) = (sent.len(), self.config.connect_timeout + self.config.request_timeout);
        for (nth, answer) in some(sent, all, grace.min(longest)).await.into_iter().flatten() {
            answers[nth].1 = answer;
        }
        answers
    }

    /// The servers that keep lines, in the order of their addresses, each with a bucket of its own.
    pub(crate) async fn all(self: &Arc<Self>) -> Result<Vec<(Arc<Connection>, u32)>> {
        let mut nodes = BTreeMap::new();
        self.fresh().await?;
        for bucket in 0..BUCKETS {
            let node = self.at(slot(&bucket.to_string()))?;
            nodes.entry(node.host.clone()).or_insert((node, bucket));
        }
        Ok(nodes.into_values().collect())
    }
}
