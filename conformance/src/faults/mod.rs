//! Ways to lose requests and replies between a client and its store.
//!
//! A [`Link`] is what a case holds in its hand. A store behind TCP puts a [`Proxy`] on it; a store inside this process a
//! [`Gate`] around its backend. A [`Node`] is a store behind a simulated network, late and lossy from a seed.

mod courier;
mod gate;
mod node;
mod proxy;
mod slow;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

pub use courier::Courier;
pub use gate::Gate;
pub use node::{Net, Node, Weather};
pub use proxy::Proxy;
pub use slow::Slow;

/// What happens on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: all goes through.
    None,
    /// Nothing goes through; what is under way arrives late, when the link heals.
    Stall,
    /// Connections are reset, new ones too.
    Reset,
    /// Requests go through, their replies are lost.
    LoseReplies,
}

/// The way of some clients to their store.
#[derive(Debug)]
pub struct Link {
    fault: watch::Sender<Fault>,
    requests: AtomicU64,
}

impl Link {
    /// A link on which nothing is wrong.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { fault: watch::Sender::new(Fault::None), requests: AtomicU64::new(0) })
    }

    /// From now on this happens.
    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }

    /// Nothing is wrong any more.
    pub fn heal(&self) {
        self.set(Fault::None);
    }

    /// How many requests went in. Counted by a [`Gate`] only: a [`Proxy`] sees bytes.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    fn count(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    fn now(&self) -> Fault {
        *self.fault.borrow()
    }

    fn watch(&self) -> watch::Receiver<Fault> {
        self.fault.subscribe()
    }

    /// Ends when the fault is one that `pick` wants.
    async fn until(&self, pick: impl FnMut(&Fault) -> bool) {
        // The sender lives in `self`: it cannot be closed.
        let _ = self.watch().wait_for(pick).await;
    }
}
