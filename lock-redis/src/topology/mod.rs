//! The servers behind a backend: one, or the nodes of a cluster.

mod cluster;
pub(crate) mod epoch;
mod majority;
pub(crate) mod sentinel;
mod slots;

use std::sync::Arc;

use onelock_core::{Error, Result};
use redis::Cmd;

use crate::config::{RedisConfig, Topology};
use crate::connection::{Answer, Connection, Target};
use crate::keys::{BUCKETS, slot_of};
use crate::scripts::Script;
use crate::wait::Inbox;
use cluster::Cluster;
pub(crate) use slots::Redirect;

#[derive(Debug)]
pub(crate) enum Servers {
    /// One server, whichever that is.
    One(Arc<Connection>),
    /// The slot of a key decides.
    Many(Arc<Cluster>),
}

/// A script and what it is called with.
pub(crate) type Call = (&'static Script, Cmd);

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
            Self::Many(cluster) => cluster.reach(slot).await,
        }
    }

    /// Calls one script on the server of `slot`.
    pub(crate) async fn call(&self, slot: u16, script: &'static Script, command: Cmd) -> Result<Answer> {
        self.call_or_part(slot, &[(script, command)]).await
    }

    /// Makes the first of `calls` on the server of `slot`, or each time that only some of its keys are there the next: in a
    /// cluster, while a slot is on its way.
    pub(crate) async fn call_or_part(&self, slot: u16, calls: &[Call]) -> Result<Answer> {
        match self {
            Self::One(connection) => only(connection.ask(calls[0].0, &[&calls[0].1], false).await?),
            Self::Many(cluster) => cluster.ask(slot, calls).await,
        }
    }

    /// Calls one script several times: one round trip to each server. Each call has its own answer.
    pub(crate) async fn call_all(
        &self,
        script: &'static Script,
        calls: &[(u16, Cmd)],
    ) -> Vec<Result<Answer>> {
        match self {
            Self::One(connection) => {
                let commands: Vec<_> = calls.iter().map(|(_, command)| command).collect();
                match connection.ask(script, &commands, false).await {
                    Ok(answers) => answers.into_iter().map(Ok).collect(),
                    Err(error) => calls.iter().map(|_| Err(error.clone())).collect(),
                }
            }
            Self::Many(cluster) => cluster.ask_all(script, calls).await,
        }
    }

    /// Whether the keys of a script must be of one bucket.
    pub(crate) fn are_many(&self) -> bool {
        matches!(self, Self::Many(_))
    }

    /// Every server that keeps lines, each with a bucket of its own, in a fixed order.
    pub(crate) async fn all(&self) -> Result<Vec<(Arc<Connection>, u32)>> {
        match self {
            Self::One(connection) => Ok(vec![(Arc::clone(connection), 0)]),
            Self::Many(cluster) => cluster.nodes((0..BUCKETS).map(|bucket| (slot_of(bucket), bucket))).await,
        }
    }

    pub(crate) fn close(&self) {
        match self {
            Self::One(connection) => connection.close(),
            Self::Many(cluster) => cluster.close(),
        }
    }
}

fn only(mut answers: Vec<Answer>) -> Result<Answer> {
    answers.pop().ok_or_else(|| Error::new(onelock_core::ErrorKind::Protocol, "the server did not answer"))
}
