//! Waiting. MySQL tells nobody anything, so a client looks: one task and one connection for all its waiters.
//!
//! Grants follow the line, so of the waiters of one name only the foremost needs a look. Each look also sees lease ends
//! ahead that nobody has acted on yet. A release by this client itself looks for its own waiter in the same request and
//! wakes it without waiting for the next look.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use lock_core::{FencingToken, HolderId, Mode, Result, Ticket, Wake};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::error::closed;
use super::link::Link;
use super::look::{ENTRIES, Mark, Stay, condition, look_many, look_one};
use super::pace::{Pace, Seen};
use super::rows::Entries;

/// The pause after a look, at least, for each entry it looked at: however many lines, the looks of one client keep the
/// server no busier than that.
const PER_ENTRY: Duration = Duration::from_micros(100);
/// How long the task stays when nobody waits.
const LINGER: Duration = Duration::from_secs(1);
/// How rarely to look while the server cannot be reached.
const UNREACHED: Duration = Duration::from_millis(500);
/// Pauses up to this are spent at the server, because timers here are a millisecond late; and for about so long again a
/// look goes on there. Who joins meanwhile waits for it.
const AT_SERVER: Duration = Duration::from_millis(1);

/// Who waits in this client.
#[derive(Debug, Default)]
pub(super) struct Watch {
    state: Mutex<State>,
    /// Somebody became the foremost waiter of a name, or the line moved.
    moved: Notify,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    looking: bool,
    next: u64,
    /// The last one that joined with an answer that says what a look would say.
    joined: Option<Joined>,
    /// By encoded name and number.
    names: BTreeMap<String, BTreeMap<FencingToken, Waiter>>,
}

#[derive(Debug)]
struct Joined {
    name: String,
    token: FencingToken,
    ahead: u32,
    at: Instant,
}

#[derive(Debug)]
struct Waiter {
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
        let name = ticket.name.encoded();
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
                let looking = Looking { watch: Arc::clone(self), over: false };
                tokio::spawn(looking.run(Arc::clone(link)));
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
    fn just_joined(&self) -> Option<(Seen, Instant)> {
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody became the foremost waiter of a name, or was told, within this time or before it.
    async fn has_moved(&self, within: Duration) -> bool {
        let moved = self.moved.notified();
        match within {
            Duration::ZERO => moved.now_or_never().is_some(),
            _ => tokio::time::timeout(within, moved).await.is_ok(),
        }
    }

    fn foremost(&self, name: &str) -> Option<Mark> {
        self.lock().names.get(name).and_then(|line| mark(name, line))
    }

    /// The foremost waiter of every name.
    fn marks(&self) -> Vec<Mark> {
        self.lock().names.iter().filter_map(|(name, line)| mark(name, line)).collect()
    }

    /// One look at all that waits, after its pause at the server; where one waits and its turn is next it goes on there.
    /// Sees moves of many lines by the change of `fronts`.
    async fn look(&self, link: &Link, fronts: &mut i64, mut stay: Stay) -> Result<Seen> {
        let (mut marks, mut sum) = (self.marks(), 0);
        let alone = if let [mark] = &marks[..] { Some(mark.holder) } else { None };
        let mut seen = Seen { moved: false, ahead: u32::MAX, alone };
        while !marks.is_empty() {
            let mut again = Vec::new();
            if let [mark] = &marks[..] {
                let (wake, ahead) = look_one(link, mark, stay).await?;
                seen.ahead = seen.ahead.min(ahead);
                if let Some(wake) = wake {
                    self.wake(&mark.name, mark.token, wake);
                    again.push(mark.name.clone());
                }
                stay.pause = Duration::ZERO;
            } else {
                for marks in marks.chunks(ENTRIES) {
                    let (look, there) = look_many(link, marks, stay.pause).await?;
                    stay.pause = Duration::ZERO;
                    sum ^= look.fronts;
                    seen.ahead = seen.ahead.min(look.ahead);
                    for mark in marks {
                        let among = |entries: &Entries| entries.contains(&(mark.name.clone(), mark.token));
                        let wake = match &there {
                            _ if among(&look.held) => Wake::Held(mark.token),
                            Some(there) if !among(there) => Wake::Ask,
                            _ => continue,
                        };
                        self.wake(&mark.name, mark.token, wake);
                        again.push(mark.name.clone());
                    }
                }
            }
            seen.moved |= !again.is_empty();
            // Who is behind them may hold beside them.
            marks = again.iter().filter_map(|name| self.foremost(name)).collect();
        }
        seen.moved |= std::mem::replace(fronts, sum) != sum;
        Ok(seen)
    }
}

fn mark(name: &str, line: &BTreeMap<FencingToken, Waiter>) -> Option<Mark> {
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

/// The task that looks, while somebody waits.
struct Looking {
    watch: Arc<Watch>,
    over: bool,
}

impl Looking {
    async fn run(mut self, link: Arc<Link>) {
        let (mut pace, mut fronts) = (Pace::new(link.poll), 0);
        let at_server = AT_SERVER.min(link.request_timeout / 4);
        let mut answered = Instant::now();
        loop {
            let lines = u32::try_from(self.watch.lock().names.len()).unwrap_or(u32::MAX);
            let idle = lines == 0;
            let pause = pace.pause.max(PER_ENTRY.saturating_mul(lines).min(UNREACHED));
            let left = pause.saturating_sub(answered.elapsed());
            // The last of a pause is spent at the server.
            let here = if idle { LINGER } else { left.saturating_sub(at_server) };
            let mut stay = Stay { pause: Duration::ZERO, again: pace.again(), looks: 1 };
            if self.watch.has_moved(here).await {
                pace.joined();
                if let Some((seen, at)) = self.watch.just_joined() {
                    pace.seen(seen, at);
                    answered = at;
                    continue;
                }
            } else {
                stay.pause = pause.saturating_sub(answered.elapsed()).min(at_server);
                // Where little happens the turn of nobody comes so soon.
                if pause < link.poll && link.has_blocks() {
                    let more = at_server.as_micros() / stay.again.as_micros().max(1);
                    stay.looks = 1 + u32::try_from(more).unwrap_or(0);
                }
            }
            // Decided under the lock: who comes after this starts a new task.
            {
                let mut state = self.watch.lock();
                if state.closed || (idle && state.names.is_empty()) {
                    state.looking = false;
                    self.over = true;
                    return;
                }
            }
            match self.watch.look(&link, &mut fronts, stay).await {
                Ok(seen) => pace.seen(seen, Instant::now()),
                // The renewals of those who wait tell them; they keep their places.
                Err(_) => pace.failed(UNREACHED),
            }
            answered = Instant::now();
        }
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        // The runtime of this task has ended; others may wait on another one. They ask, and start a new task.
        let mut state = self.watch.lock();
        state.looking = false;
        let left = std::mem::take(&mut state.names);
        drop(state);
        drop(left);
    }
}
