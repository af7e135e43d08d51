//! Waiting. MySQL tells nobody anything, so a client looks: one task and one connection for all its waiters.
//!
//! Grants follow the line, so of the waiters of one name only the foremost needs a look. Each look also sees lease ends
//! ahead that nobody has acted on yet. A release by this client itself looks for its own waiter in the same request and
//! wakes it without waiting for the next look.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use onelock_core::{FencingToken, HolderId, Mode, Result, Ticket, Wake};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::bells::Bells;
use super::error::closed;
use super::link::Link;
use super::look::{Mark, condition};
use super::looking::Looking;
use super::pace::Seen;

/// Who waits in this client.
#[derive(Debug, Default)]
pub(super) struct Watch {
    state: Mutex<State>,
    /// Somebody became the foremost waiter of a name, or the line moved.
    moved: Notify,
    pub(super) bells: Bells,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) closed: bool,
    /// Whether the task runs that looks.
    pub(super) looking: bool,
    next: u64,
    /// The last one that joined with an answer that says what a look would say.
    joined: Option<Joined>,
    /// By encoded name and number.
    pub(super) names: BTreeMap<String, BTreeMap<FencingToken, Waiter>>,
}

#[derive(Debug)]
struct Joined {
    name: String,
    token: FencingToken,
    ahead: u32,
    at: Instant,
}

#[derive(Debug)]
pub(super) struct Waiter {
    id: u64,
    holder: HolderId,
    mode: Mode,
    tell: oneshot::Sender<Wake>,
}

impl Watch {
    /// Waits until the entry holds or is gone.
    ///
    /// # Cancel safety
    /// Safe: the waiter is forgotten. What the store says is looked at anew each time, so no wake-up is lost between two
    /// waits.
    pub(super) async fn wait(self: &Arc<Self>, link: &Arc<Link>, ticket: &Ticket) -> Result<Wake> {
        // Only a renewal can tell the number.
        let Some(token) = ticket.token else { return Ok(Wake::Ask) };
        let name = ticket.name.encoded().into_owned();
        let (tell, told) = oneshot::channel();
        let id = {
            let mut state = self.lock();
            if state.closed {
                return Err(closed());
            }
            state.next += 1;
            let id = state.next;
            let line = state.names.entry(name.clone()).or_default();
            line.insert(token, Waiter { id, holder: ticket.holder, mode: ticket.mode, tell });
            if line.first_key_value().is_some_and(|(first, _)| *first == token) {
                self.moved.notify_one();
            }
            if !std::mem::replace(&mut state.looking, true) {
                tokio::spawn(Looking::new(self).run(Arc::clone(link)));
            }
            id
        };
        let _forget = Forget { watch: self, name: &name, token, id };
        match told.await {
            Ok(wake) => Ok(wake),
            Err(_) if self.lock().closed => Err(closed()),
            Err(_) => Ok(Wake::Ask),
        }
    }

    /// An entry has joined a line, and so many have to leave before it holds: who waits for it now needs no look for that.
    pub(super) fn joined(&self, name: &str, token: FencingToken, ahead: u32) {
        self.lock().joined = Some(Joined { name: name.to_owned(), token, ahead, at: Instant::now() });
    }

    /// What the answer to its join said of the only one that waits, once, and when that was.
    pub(super) fn just_joined(&self) -> Option<(Seen, Instant)> {
        let mut state = self.lock();
        let [(name, line)] = &state.names.iter().take(2).collect::<Vec<_>>()[..] else { return None };
        let (token, waiter) = line.first_key_value()?;
        let joined =
            state.joined.as_ref().filter(|joined| joined.token == *token && joined.name == **name)?;
        let seen = Seen { moved: false, ahead: joined.ahead, alone: Some(waiter.holder) };
        let at = joined.at;
        state.joined = None;
        Some((seen, at))
    }

    /// A condition for a release on `name`: whether the foremost waiter of this client there holds then. Runs after
    /// `@now` was set and the expired were dropped.
    pub(super) fn after(&self, link: &Link, name: &str) -> (String, Option<FencingToken>) {
        let mark = self.foremost(name);
        match mark {
            None => ("0".into(), None),
            Some(mark) => (condition(link, &mark), Some(mark.token)),
        }
    }

    /// Ends the wait of the entry with this number.
    pub(super) fn wake(&self, name: &str, token: FencingToken, wake: Wake) {
        let waiter = {
            let mut state = self.lock();
            let Some(line) = state.names.get_mut(name) else { return };
            let waiter = line.remove(&token);
            if line.is_empty() {
                state.names.remove(name);
            }
            waiter
        };
        if let Some(waiter) = waiter {
            // An error means that it went away by itself.
            let _ = waiter.tell.send(wake);
            // The next in the line may hold beside it.
            self.moved.notify_one();
        }
    }

    /// Ends all waits.
    pub(super) fn close(&self) {
        let names = {
            let mut state = self.lock();
            state.closed = true;
            std::mem::take(&mut state.names)
        };
        drop(names);
        self.moved.notify_one();
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody became the foremost waiter of a name, or was told, within this time or before it.
    pub(super) async fn has_moved(&self, within: Duration) -> bool {
        let moved = self.moved.notified();
        match within {
            Duration::ZERO => moved.now_or_never().is_some(),
            _ => tokio::time::timeout(within, moved).await.is_ok(),
        }
    }

    pub(super) fn foremost(&self, name: &str) -> Option<Mark> {
        self.lock().names.get(name).and_then(|line| mark(name, line))
    }

    /// The foremost waiter of every name.
    pub(super) fn marks(&self) -> Vec<Mark> {
        self.lock().names.iter().filter_map(|(name, line)| mark(name, line)).collect()
    }
}

pub(super) fn mark(name: &str, line: &BTreeMap<FencingToken, Waiter>) -> Option<Mark> {
    let (token, waiter) = line.first_key_value()?;
    Some(Mark { name: name.to_owned(), token: *token, holder: waiter.holder, mode: waiter.mode })
}

/// Forgets a waiter whose future ended or was dropped.
struct Forget<'a> {
    watch: &'a Watch,
    name: &'a str,
    token: FencingToken,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        let mut state = self.watch.lock();
        let Some(line) = state.names.get_mut(self.name) else { return };
        if line.get(&self.token).is_some_and(|waiter| waiter.id == self.id) {
            line.remove(&self.token);
        }
        if line.is_empty() {
            state.names.remove(self.name);
        }
    }
}
