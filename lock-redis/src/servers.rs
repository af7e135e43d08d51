//! The servers behind a backend: one, or the nodes of a cluster.

use std::borrow::Cow;
use std::sync::Arc;

use onelock_core::{Error, ErrorKind, Result};
use redis::{Cmd, Value};

use crate::cluster::{Call, Cluster, one};
use crate::config::{RedisConfig, Topology};
use crate::connect::Lead;
use crate::inbox::Inbox;
use crate::keys::{BUCKETS, slot_of};
use crate::link::{Answers, Link};
use crate::scripts::Script;
use crate::topology::Turn;

#[derive(Debug)]
pub(crate) enum Servers {
    /// One server, whichever that is.
    One(Arc<Link>),
    /// The slot of a key decides.
    Many(Arc<Cluster>),
}

impl Servers {
    pub(crate) fn new(config: &Arc<RedisConfig>, inbox: &Arc<Inbox>) -> Self {
        let lead = match (&config.topology, config.hosts.first()) {
            (Topology::Sentinel { master }, _) => Lead::Master(master.clone()),
            (Topology::Single, Some(host)) => Lead::Server(host.clone()),
            _ => return Self::Many(Cluster::new(config, inbox)),
        };
        Self::One(Link::new(config, lead, inbox))
    }

    /// Calls one script on the server of `slot`; beside the answer, how many replicas had it where that was too few.
    pub(crate) async fn join(
        &self,
        slot: u16,
        script: &'static Script,
        command: &Cmd,
    ) -> Result<(Value, Option<i64>)> {
        match self {
            Self::One(link) => link.ask(script, &[Cow::Borrowed(command)], false).await.and_then(one),
            Self::Many(cluster) => cluster.ask(slot, (script, command), None).await.and_then(one),
        }
    }

    /// Calls one script on the server of `slot`.
    pub(crate) async fn call(&self, slot: u16, script: &'static Script, command: &Cmd) -> Result<Value> {
        self.join(slot, script, command).await.and_then(enough)
    }

    /// Calls one script on the server of `slot`, or `part` where only some of its keys are there: in a cluster, while a slot is
    /// on its way.
    pub(crate) async fn call_or_part(&self, slot: u16, call: Call<'_>, part: Call<'_>) -> Result<Value> {
        match self {
            Self::One(_) => self.call(slot, call.0, call.1).await,
            Self::Many(cluster) => cluster.ask(slot, call, Some(part)).await.and_then(one).and_then(enough),
        }
    }

    /// Calls one script several times: one round trip to each server. Each call has its own answer.
    pub(crate) async fn call_all(
        &self,
        script: &'static Script,
        calls: Vec<(u16, Cmd)>,
    ) -> Vec<Result<Value>> {
        let answers = self.ask_all(script, calls, false).await;
        answers.into_iter().map(|answer| answer.and_then(one).and_then(enough)).collect()
    }

    /// The same, with `None` for a call of which only some keys are there: its parts may be served one by one.
    pub(crate) async fn call_divisible(
        &self,
        script: &'static Script,
        calls: Vec<(u16, Cmd)>,
    ) -> Vec<Result<Option<Value>>> {
        let partial = |answers: &Answers| answers.values.first().and_then(Turn::of) == Some(Turn::Partial);
        let read = |answers: Answers| match partial(&answers) {
            true => Ok(None),
            false => one(answers).and_then(enough).map(Some),
        };
        let answers = self.ask_all(script, calls, true).await;
        answers.into_iter().map(|answer| answer.and_then(read)).collect()
    }

    async fn ask_all(
        &self,
        script: &'static Script,
        calls: Vec<(u16, Cmd)>,
        divisible: bool,
    ) -> Vec<Result<Answers>> {
        match self {
            Self::One(link) => {
                let commands: Vec<_> = calls.iter().map(|(_, command)| Cow::Borrowed(command)).collect();
                match link.ask(script, &commands, false).await {
                    Ok(Answers { values, short }) => {
                        values.into_iter().map(|value| Ok(Answers { values: vec![value], short })).collect()
                    }
                    Err(error) => calls.iter().map(|_| Err(error.clone())).collect(),
                }
            }
            Self::Many(cluster) => cluster.ask_all(script, calls, divisible).await,
        }
    }

    /// Whether the keys of a script must be of one bucket.
    pub(crate) fn are_many(&self) -> bool {
        matches!(self, Self::Many(_))
    }

    /// Every server that keeps lines, each with a bucket of its own, in a fixed order.
    pub(crate) async fn all(&self) -> Result<Vec<(Arc<Link>, u32)>> {
        match self {
            Self::One(link) => Ok(vec![(Arc::clone(link), 0)]),
            Self::Many(cluster) => cluster.nodes((0..BUCKETS).map(|bucket| (slot_of(bucket), bucket))).await,
        }
    }

    pub(crate) fn close(&self) {
        match self {
            Self::One(link) => link.close(),
            Self::Many(cluster) => cluster.close(),
        }
    }
}

fn enough((value, short): (Value, Option<i64>)) -> Result<Value> {
    short.map_or(Ok(value), |replicas| Err(too_few(replicas)))
}

pub(crate) fn too_few(replicas: i64) -> Error {
    let text = format!("only {replicas} replicas had it in time, fewer than the option `replicas` asks for");
    Error::new(ErrorKind::Unavailable, text)
}
