//! The servers behind a backend: one, or the nodes of a cluster.

mod cluster;
pub(crate) mod epoch;
mod majority;
pub(crate) mod sentinel;
mod slots;

use std::sync::Arc;
use std::time::Duration;

use onelock_core::Result;
use redis::Cmd;

use crate::config::{RedisConfig, Topology};
use crate::connection::{Connection, Target};
use crate::keys::LineKeys;
use crate::reply::Answer;
use crate::scripts::{Call, Script, Way};
use crate::wait::Inbox;
use cluster::Cluster;
pub(crate) use slots::Redirect;

// What only a cluster does has a place of its own: a future is as large as the largest thing that it may wait for.
#[derive(Debug)]
pub(crate) enum Servers {
    /// One server, whichever that is.
    One(Arc<Connection>),
    /// The slot of a key decides.
    Many(Arc<Cluster>),
}

/// How many entries one script takes: enough to spread the cost of a call, few enough not to hold up others.
const BATCH: usize = 64;

impl Servers {
    pub(crate) fn new(config: &Arc<RedisConfig>, inbox: &Arc<Inbox>) -> Self {
        let target = match (&config.topology, config.hosts.first()) {
            (Topology::Sentinel { master }, _) => Target::Master(master.clone()),
            (Topology::Single, Some(host)) => Target::Server(host.clone()),
            _ => return Self::Many(Cluster::new(config, inbox)),
        };
        Self::One(Connection::new(config, target, inbox))
    }

    /// Connects to the server of `slot`, where that is not done.
    pub(crate) async fn reach(&self, slot: u16) -> Result<()> {
        match self {
            Self::One(connection) => connection.reach().await,
            Self::Many(cluster) => Box::pin(cluster.reach(slot)).await,
        }
    }

    /// Calls one script on the server of `slot`, or each time that only some of its keys are there the next.
    pub(crate) async fn call(&self, slot: u16, calls: &[Call]) -> Result<Answer> {
        match self {
            Self::One(connection) => {
                let (script, command) = &calls[0];
                Answer::only(connection.ask(script, &[command], false).await?)
            }
            // What can be done in several ways is renewed or released: it is asked again anyhow, and must keep nobody waiting.
            Self::Many(cluster) => Box::pin(cluster.ask(slot, calls, calls.len() == 1)).await,
        }
    }

    /// Calls the first of these scripts for a line, or each time that only some of its keys are there the next.
    pub(crate) async fn call_ways(
        &self,
        ways: &'static [Way],
        line: &LineKeys,
        add: impl Fn(&mut Cmd),
    ) -> Result<Answer> {
        let (keys, ways) = (line.line(), if self.are_many() { ways } else { &ways[..1] });
        let call = |(script, count): &Way| {
            let mut command = script.call(&keys[..*count]);
            add(&mut command);
            (*script, command)
        };
        self.call(line.slot(), &ways.iter().map(call).collect::<Vec<_>>()).await
    }

    /// Calls one script for many lines, in one round trip to each server: each answer with the lines that it is about, which are
    /// at most [`BATCH`], and of one slot where there are many servers. `add` gives the arguments of each. Of many servers the slower
    /// ones have this `grace`.
    pub(crate) async fn call_lines(
        &self,
        script: &'static Script,
        lines: &[LineKeys],
        gate: Option<&str>,
        add: impl Fn(usize, &mut Cmd),
        grace: Duration,
    ) -> Vec<(Vec<usize>, Result<Answer>)> {
        let slot = |i: &usize| if self.are_many() { lines[*i].slot() } else { 0 };
        let mut order: Vec<_> = (0..lines.len()).collect();
        order.sort_by_cached_key(slot);
        let batches = order.chunk_by(|a, b| slot(a) == slot(b)).flat_map(|lines| lines.chunks(BATCH));
        let batches: Vec<_> = batches.map(<[_]>::to_vec).collect();
        let call = |batch: &Vec<usize>| {
            let keys: Vec<_> = batch.iter().flat_map(|i| lines[*i].line()).chain(gate).collect();
            let mut command = script.call(&keys);
            batch.iter().for_each(|i| add(*i, &mut command));
            (slot(&batch[0]), command)
        };
        let calls: Vec<_> = batches.iter().map(call).collect();
        let answers = match self {
            Self::One(connection) => {
                let commands: Vec<_> = calls.iter().map(|(_, command)| command).collect();
                connection.ask_each(script, &commands).await
            }
            Self::Many(cluster) => cluster.ask_all(script, &calls, grace).await,
        };
        batches.into_iter().zip(answers).collect()
    }

    /// Whether the keys of a script must be of one bucket.
    pub(crate) fn are_many(&self) -> bool {
        matches!(self, Self::Many(_))
    }

    /// Every server that keeps lines, each with a bucket of its own, in a fixed order.
    pub(crate) async fn all(&self) -> Result<Vec<(Arc<Connection>, u32)>> {
        match self {
            Self::One(connection) => Ok(vec![(Arc::clone(connection), 0)]),
            Self::Many(cluster) => cluster.nodes().await,
        }
    }

    pub(crate) fn close(&self) {
        match self {
            Self::One(connection) => connection.close(),
            Self::Many(cluster) => cluster.close(),
        }
    }
}
