//! What a case holds in its hand.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, watch};

use super::Fault;
use super::corruptor::Corruptor;
use super::trigger::{Act, Trap, Trigger};

/// The way of some clients to their store.
#[derive(Debug)]
pub struct Link {
    now: watch::Sender<Now>,
    /// How many requests went in. Counted by gates around backends only: a [`Proxy`](super::Proxy) sees bytes.
    pub requests: Counter,
    /// How many bytes went through a [`Proxy`](super::Proxy), both ways together.
    pub bytes: Counter,
    /// How many round trips were begun through a [`Proxy`](super::Proxy): how often a client sent after something had come
    /// back. What it sends in pieces before that is one; so are requests that it sends together. Where it speaks HTTP/2 only
    /// what begins a request counts.
    pub turns: Counter,
    /// How often a fault or a trigger did something to what was under way: pieces lost, stopped, delayed or altered,
    /// connections refused or ended. A run in which this stays 0 has proven nothing.
    pub hits: Counter,
    trap: watch::Sender<Trap>,
    /// How many pieces may go through although their way stalls.
    singles: Semaphore,
    corruptor: Mutex<Corruptor>,
}

/// A count.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// How many by now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// So many more.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }
}

/// The fault, and the how manieth it is: the same one set again starts anew.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) fault: Fault,
    pub(super) round: u64,
}

impl Link {
    /// A link on which nothing is wrong.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            now: watch::Sender::new(Now { fault: Fault::None, round: 0 }),
            requests: Counter::default(),
            bytes: Counter::default(),
            turns: Counter::default(),
            hits: Counter::default(),
            trap: watch::Sender::default(),
            singles: Semaphore::new(0),
            corruptor: Mutex::new(Corruptor::new(0)),
        })
    }

    /// From now on this happens.
    pub fn set(&self, fault: Fault) {
        if let Fault::Mangle(seed) = fault {
            *self.corruptor() = Corruptor::new(seed);
        }
        self.singles.forget_permits(usize::MAX);
        self.now.send_modify(|now| *now = Now { fault, round: now.round + 1 });
    }

    /// Nothing is wrong any more. A [`Trigger`] stays.
    pub fn heal(&self) {
        self.set(Fault::None);
    }

    /// Lets one piece through that stalls on a [`Proxy`](super::Proxy), or the next one to come under this fault.
    pub fn let_one_through(&self) {
        self.singles.add_permits(1);
    }

    /// Ends when one piece may go through; it takes the permission.
    pub(super) async fn one_may_pass(&self) {
        // Never closed.
        if let Ok(single) = self.singles.acquire().await {
            single.forget();
        }
    }

    /// Lies in wait for a request, in place of any trigger set before.
    pub fn arm(&self, trigger: Trigger) {
        self.trap.send_replace(Trap::new(trigger));
    }

    /// Lets go what a trigger holds, and takes it off if it has not struck yet.
    pub fn let_go(&self) {
        self.trap.send_replace(Trap::default());
    }

    /// Ends when the trigger has struck.
    pub async fn struck(&self) {
        // The sender lives in `self`: it cannot be closed.
        let _ = self.trap.subscribe().wait_for(Trap::has_struck).await;
    }

    /// What happens now.
    #[must_use]
    pub fn fault(&self) -> Fault {
        self.now().fault
    }

    pub(super) fn now(&self) -> Now {
        *self.now.borrow()
    }

    /// Ends when the fault is one that `pick` wants.
    pub async fn until(&self, mut pick: impl FnMut(Fault) -> bool) {
        let _ = self.now.subscribe().wait_for(|now| pick(now.fault)).await;
    }

    /// Ends when another fault is set, or the same one again.
    pub(super) async fn changes_from(&self, round: u64) {
        let _ = self.now.subscribe().wait_for(|now| now.round != round).await;
    }

    pub(super) fn corruptor(&self) -> MutexGuard<'_, Corruptor> {
        self.corruptor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the trigger looks for something in this piece of a stream of requests, of which `seen` was there before,
    /// and strikes now.
    pub fn springs(&self, seen: &[u8], piece: &[u8]) -> Option<Act> {
        let mut act = None;
        self.trap.send_if_modified(|trap| {
            act = trap.springs(seen, piece);
            act.is_some()
        });
        if act.is_some() {
            self.hits.add(1);
        }
        act
    }

    /// How many bytes of a stream must be remembered so that no match is missed between two pieces.
    pub(super) fn memory(&self) -> usize {
        self.trap.borrow().memory()
    }

    /// Ends when nothing is held by a trigger.
    pub async fn released(&self) {
        let _ = self.trap.subscribe().wait_for(|trap| !trap.has_struck()).await;
    }
}
