//! Redlock over five servers, one key on each, as it was published; and what people leave out of it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_conformance::faults::{Gate, Link};
use onelock_core::{
    Backend, BootClock, Busy, Capabilities, Clock, Error, ErrorKind, FencingToken, Grant, Info, Listing,
    LockName, Page, Raise, Release, Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};

use super::kv::Server;
use super::single::{self, Single};
use super::vehicle::{info, none, unsupported, view};

/// How such a lock is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// A majority of all servers, in less time than the lease, which counts from before the first was asked.
    Honest,
    /// The lease counts from when the last server has answered.
    NoLookAtTheTime,
    /// A majority of the servers that answered.
    MajorityOfWhatItGot,
}

/// How long one of the clients stalls before it asks the last server.
const PAUSE: Duration = Duration::from_millis(300);

/// One client.
#[derive(Debug)]
pub(crate) struct Redlock {
    nodes: Vec<Arc<dyn Backend>>,
    way: Way,
    pause: Duration,
}

impl Redlock {
    /// The first client is the slow one; `link` is the way to three of the five.
    pub(crate) fn new(servers: &[Arc<Server>], way: Way, client: usize, link: &Arc<Link>) -> Self {
        let open = Link::new();
        let node = |(i, server)| {
            let single = Arc::new(Single::new(server, single::Way::Honest, 0));
            Arc::new(Gate::new(single, if i < 3 { link } else { &open })) as Arc<dyn Backend>
        };
        let nodes = servers.iter().enumerate().map(node).collect();
        Self { nodes, way, pause: if client == 0 { PAUSE } else { Duration::ZERO } }
    }

    fn majority(&self, answers: usize) -> usize {
        let of = if self.way == Way::MajorityOfWhatItGot { answers } else { self.nodes.len() };
        of / 2 + 1
    }

    async fn renew_one(&self, due: &Renewal) -> Result<Renewed> {
        let (mut held, mut gone, mut token) = (0, 0, None);
        for node in &self.nodes {
            match node.renew(std::slice::from_ref(due)).await.remove(0) {
                Ok(Renewed::Held(grant)) => {
                    held += 1;
                    token = token.max(Some(grant.token));
                }
                Ok(_) => gone += 1,
                Err(_) => {}
            }
        }
        let majority = self.majority(held + gone);
        match token {
            Some(token) if held >= majority => Ok(Renewed::Held(Grant::new(token, due.lease))),
            _ if gone >= majority => Ok(Renewed::NotHeld),
            _ => Err(too_few()),
        }
    }
}

fn too_few() -> Error {
    Error::new(ErrorKind::Unavailable, "too few of the servers answered")
}

pub(crate) fn capabilities() -> Capabilities {
    none()
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for Redlock {
    fn info(&self) -> Info {
        info()
    }

    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        let sent = BootClock.now();
        let (mut grants, mut answers, mut unclear) = (Vec::new(), 0, false);
        for (i, node) in self.nodes.iter().enumerate() {
            if i + 1 == self.nodes.len() {
                tokio::time::sleep(self.pause).await;
            }
            match node.acquire(request).await {
                Ok(Standing::Held(grant)) => {
                    answers += 1;
                    grants.push(grant.token);
                }
                Ok(_) => answers += 1,
                Err(_) => unclear = true,
            }
        }
        let elapsed = BootClock.now().saturating_since(sent);
        // What the suite calls the lease counts from before the first request; what is believed here counts from now.
        let lease = match self.way {
            Way::NoLookAtTheTime => request.lease + elapsed,
            _ if elapsed >= request.lease => Duration::ZERO,
            _ => request.lease,
        };
        if let Some(token) = grants.iter().max()
            && grants.len() >= self.majority(answers)
            && !lease.is_zero()
        {
            return Ok(Standing::Held(Grant::new(*token, lease)));
        }
        self.release(&request.ticket()).await?;
        if unclear && answers < self.majority(self.nodes.len()) {
            return Err(too_few());
        }
        Ok(Standing::Busy(Busy::default()))
    }

    async fn wait(&self, _: &Ticket) -> Result<Wake> {
        Ok(Wake::Ask)
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let mut answers = Vec::new();
        for one in due {
            answers.push(self.renew_one(one).await);
        }
        answers
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        let mut released = 0;
        for node in &self.nodes {
            // A server that is not reached keeps its key until it expires.
            released += usize::from(matches!(node.release(ticket).await, Ok(Release::Released)));
        }
        let most = released >= self.majority(self.nodes.len());
        Ok(if most { Release::Released } else { Release::NotHeld })
    }

    async fn raise(&self, _: &Ticket, _: FencingToken) -> Result<Raise> {
        Err(unsupported())
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        let mut newest = None;
        for node in &self.nodes {
            let line = node.inspect(name).await?;
            newest = newest.max(line.holders.first().map(|holder| holder.token));
        }
        let mut line = Snapshot::empty(name.clone());
        line.holders.extend(newest.map(view));
        Ok(line)
    }

    async fn list(&self, _: &str, _: &Page) -> Result<Listing> {
        Err(unsupported())
    }

    async fn evict(&self, _: &LockName, _: FencingToken) -> Result<Release> {
        Err(unsupported())
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}
