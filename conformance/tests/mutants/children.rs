//! A lock that is a line of numbered children, as on ZooKeeper: the first holds, each watches the one before it.

use std::sync::Arc;

use async_trait::async_trait;
use onelock_core::{
    Backend, Busy, Capabilities, FencingToken, Grant, HolderId, Info, Listing, LockName, Mode, Page, Place,
    Raise, Release, Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};

use super::kv::{Server, child};
use super::vehicle::{info, none, unsupported, view};

/// How such a lock is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Watches the child before its own, and looks at its own when that goes.
    Honest,
    /// Watches the parent: every waiter is woken by every change.
    WatchParent,
    /// When the child before its own goes it takes the lock for its own, without a look whether its own is there yet.
    NoLookAtItself,
    /// The children do not go with their client.
    Persistent,
}

/// One client.
#[derive(Debug)]
pub(crate) struct Children {
    server: Arc<Server>,
    way: Way,
}

/// Where a holder stands.
struct Spot {
    index: usize,
    number: i64,
    before: Option<i64>,
    retry_after: Option<std::time::Duration>,
}

impl Children {
    pub(crate) fn new(server: &Arc<Server>, way: Way) -> Self {
        Self { server: Arc::clone(server), way }
    }

    async fn find(&self, name: &LockName, holder: HolderId) -> Option<Spot> {
        let line = self.server.children(name.as_str()).await;
        let index = line.iter().position(|(_, value, _)| *value == holder.to_hex())?;
        let before = index.checked_sub(1).map(|i| line[i].0);
        let retry_after = if index == 1 { line[0].2 } else { None };
        Some(Spot { index, number: line[index].0, before, retry_after })
    }

    /// How many children there are.
    async fn count(&self, name: &LockName) -> usize {
        self.server.children(name.as_str()).await.len()
    }
}

pub(crate) fn capabilities() -> Capabilities {
    let mut capabilities = none();
    capabilities.fencing = true;
    capabilities.fifo = true;
    capabilities.push = true;
    capabilities
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for Children {
    fn info(&self) -> Info {
        info()
    }

    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        if request.mode != Mode::Exclusive {
            return Err(unsupported());
        }
        let (name, holder) = (&request.name, request.holder);
        let mut spot = self.find(name, holder).await;
        if spot.is_none() {
            if !request.queue && self.count(name).await > 0 {
                return Ok(Standing::Busy(Busy::default()));
            }
            let lease = (self.way != Way::Persistent).then_some(request.waiter_lease);
            self.server.create(name.as_str(), &holder.to_hex(), lease).await;
            spot = self.find(name, holder).await;
        }
        let Some(spot) = spot else { return Ok(Standing::Busy(Busy::default())) };
        let (key, token) = (child(name.as_str(), spot.number), FencingToken::new(spot.number)?);
        if spot.index == 0 {
            if self.way != Way::Persistent {
                self.server.expire(&key, request.lease).await;
            }
            return Ok(Standing::Held(Grant::new(token, request.lease)));
        }
        if !request.queue {
            self.server.del(&key).await;
            return Ok(Standing::Busy(Busy::default()));
        }
        let (lease, retry_after) = (request.waiter_lease, spot.retry_after);
        Ok(Standing::Waiting(Place::new(token, lease).retry_after(retry_after)))
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        let name = &ticket.name;
        loop {
            // Before the look, so that nothing is missed in between.
            let mut watch = self.server.watch();
            let Some(spot) = self.find(name, ticket.holder).await else { return Ok(Wake::Ask) };
            let token = FencingToken::new(spot.number)?;
            let Some(before) = spot.before else { return Ok(Wake::Held(token)) };
            if self.way == Way::WatchParent {
                let was = self.count(name).await;
                while self.count(name).await == was {
                    watch.changed(&self.server).await;
                }
                return Ok(Wake::Ask);
            }
            let key = child(name.as_str(), before);
            while self.server.get(&key).await.is_some() {
                watch.changed(&self.server).await;
            }
            if self.way == Way::NoLookAtItself {
                return Ok(Wake::Held(token));
            }
        }
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let mut answers = Vec::new();
        for one in due {
            let Some(spot) = self.find(&one.ticket.name, one.ticket.holder).await else {
                answers.push(Ok(Renewed::NotHeld));
                continue;
            };
            let lease = if spot.index == 0 { one.lease } else { one.waiter_lease };
            let there = self.server.expire(&child(one.ticket.name.as_str(), spot.number), lease).await;
            answers.push(FencingToken::new(spot.number).map(|token| match spot.index {
                _ if !there => Renewed::NotHeld,
                0 => Renewed::Held(Grant::new(token, lease)),
                _ => Renewed::Waiting(Place::new(token, lease).retry_after(spot.retry_after)),
            }));
        }
        answers
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        let Some(spot) = self.find(&ticket.name, ticket.holder).await else { return Ok(Release::NotHeld) };
        let done = self.server.del(&child(ticket.name.as_str(), spot.number)).await;
        Ok(if done { Release::Released } else { Release::NotHeld })
    }

    async fn raise(&self, _: &Ticket, _: FencingToken) -> Result<Raise> {
        Err(unsupported())
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        let mut line = Snapshot::empty(name.clone());
        for (i, (number, _, _)) in self.server.children(name.as_str()).await.into_iter().enumerate() {
            let part = if i == 0 { &mut line.holders } else { &mut line.waiters };
            part.push(view(FencingToken::new(number)?));
        }
        Ok(line)
    }

    async fn list(&self, _: &str, _: &Page) -> Result<Listing> {
        Err(unsupported())
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        let done = self.server.del(&child(name.as_str(), token.get())).await;
        Ok(if done { Release::Released } else { Release::NotHeld })
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}
