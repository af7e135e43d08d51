//! Waiting. The server notifies nobody, so a client polls: one task with one connection for all its waiters.
//!
//! Grants follow the line, so of the waiters of one name only the foremost is asked for. A poll comes 2 ms after a line moved,
//! then ever more rarely, down to `poll`; at once after a release of this client; and more rarely for who has more ahead.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onelock_core::{FencingToken, HolderId, LockName, Mode, Result, Ticket, Wake};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

use super::error::closed;
use super::keys::key;
use super::line::Cells;
use super::pool::{Answer, Lane, Pool};
use super::sql::Value;

/// The pause after a line has moved.
const FIRST: Duration = Duration::from_millis(2);
/// Who has this many ahead, or more, is asked for so many times more rarely than the next.
const FAR: u32 = 8;
/// The pause for each entry that was asked for, at least: however many names, one client keeps the server no busier.
const PER_ENTRY: Duration = Duration::from_micros(100);
/// The pause while the server cannot be reached.
const UNREACHED: Duration = Duration::from_millis(500);
/// How many entries one request asks for.
const ENTRIES: usize = 512;
/// How many of one name are asked for after one was woken: they may hold together.
const TOGETHER: usize = 64;

/// Who waits in this client.
#[derive(Debug)]
pub(super) struct Poller {
    /// The longest pause for who is next.
    poll: Duration,
    state: Mutex<State>,
    /// There is a new waiter, or a poll is due at once.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    /// Whether the task runs.
    running: bool,
    /// Whether this client released an entry that one of its waiters is behind.
    urgent: bool,
    next: u64,
    /// By encoded name and number.
    names: BTreeMap<String, BTreeMap<FencingToken, Waiter>>,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    holder: HolderId,
    mode: Mode,
    tell: oneshot::Sender<Wake>,
}

/// A waiter to ask for.
struct Asked {
    name: String,
    token: FencingToken,
    holder: HolderId,
}

impl Poller {
    pub(super) fn new(poll: Duration) -> Self {
        Self { poll, state: Mutex::default(), changed: Notify::new() }
    }

    /// Waits until the entry holds or is gone.
    ///
    /// # Cancel safety
    /// Safe: the waiter is forgotten. Each poll reads the whole state, so nothing is lost between two waits.
    pub(super) async fn wait(self: &Arc<Self>, pool: &Arc<Pool>, ticket: &Ticket) -> Result<Wake> {
        // Only a renewal can find the number.
        let Some(token) = ticket.token else { return Ok(Wake::Ask) };
        let name = key(&ticket.name);
        let (tell, woken) = oneshot::channel();
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
                self.changed.notify_one();
            }
            if !std::mem::replace(&mut state.running, true) {
                tokio::spawn(Task { poller: Arc::clone(self), over: false }.run(Arc::clone(pool)));
            }
            id
        };
        let _forget = Forget { poller: self, name: &name, token, id };
        match woken.await {
            Ok(wake) => Ok(wake),
            Err(_) if self.lock().closed => Err(closed()),
            Err(_) => Ok(Wake::Ask),
        }
    }

    /// An entry of this name has left: who waits for the name here may hold.
    pub(super) fn released(&self, name: &LockName) {
        let mut state = self.lock();
        if !state.names.is_empty() && state.names.contains_key(&key(name)) {
            state.urgent = true;
            self.changed.notify_one();
        }
    }

    /// Ends the wait of the entry with this number.
    pub(super) fn wake(&self, name: &str, token: FencingToken, wake: Wake) {
        let mut state = self.lock();
        let Some(line) = state.names.get_mut(name) else { return };
        if let Some(waiter) = line.remove(&token) {
            // An error means that it went away by itself.
            let _ = waiter.tell.send(wake);
        }
        if line.is_empty() {
            state.names.remove(name);
        }
    }

    /// Ends all waits.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.names.clear();
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The foremost waiter of every name, and those beside it where one was woken; `None` when the task is to end.
    fn asked(&self, woken: &HashSet<String>) -> Option<Vec<Asked>> {
        let mut state = self.lock();
        state.urgent = false;
        let mut all = Vec::with_capacity(state.names.len());
        for (name, line) in &state.names {
            let Some(mode) = line.values().next().map(|waiter| waiter.mode) else { continue };
            let alone = mode == Mode::Exclusive || !woken.contains(name);
            let beside = line.iter().take(if alone { 1 } else { TOGETHER });
            let asked = beside.take_while(|(_, waiter)| mode.shares_with(waiter.mode) || waiter.mode == mode);
            all.extend(asked.map(|(&token, waiter)| Asked {
                name: name.clone(),
                token,
                holder: waiter.holder,
            }));
        }
        // Decided under the lock: who comes after this starts a new task.
        state.running = !all.is_empty() && !state.closed;
        state.running.then_some(all)
    }

    /// Asks for these, and wakes who holds or is gone: gives their names, and how many have to leave before each of the
    /// others holds.
    async fn poll(&self, pool: &Pool, asked: &[Asked]) -> Result<(HashSet<String>, HashMap<HolderId, u32>)> {
        let (mut woken, mut waiting) = (HashSet::new(), HashMap::with_capacity(asked.len()));
        for asked in asked.chunks(ENTRIES) {
            let mut holders = String::with_capacity(asked.len() * 36);
            for waiter in asked {
                holders.push_str(if holders.is_empty() { "" } else { "," });
                Value::Bytes(&waiter.holder.as_u128().to_be_bytes()).write(&mut holders);
            }
            let sql = pool.sql.poll.fill(&[("holders", Value::Part(&holders))]);
            let found = pool.ask(Lane::Poll, &sql, read).await?;
            for Asked { name, token, holder } in asked {
                let wake = match found.get(holder).filter(|(number, _)| number == token) {
                    Some((_, 0)) => Wake::Held(*token),
                    Some((_, ahead)) => {
                        waiting.insert(*holder, *ahead);
                        continue;
                    }
                    None => Wake::Ask,
                };
                self.wake(name, *token, wake);
                woken.insert(name.clone());
            }
        }
        Ok((woken, waiting))
    }
}

fn read(answer: &Answer) -> Result<HashMap<HolderId, (FencingToken, u32)>> {
    let row = |row: Cells<'_>| {
        Ok((row.holder(0)?, (row.token(1)?, u32::try_from(row.int(2)?).unwrap_or(u32::MAX))))
    };
    answer.rows.iter().map(Cells).map(row).collect()
}

/// The task that polls, while somebody waits.
struct Task {
    poller: Arc<Poller>,
    over: bool,
}

impl Task {
    async fn run(mut self, pool: Arc<Pool>) {
        let poller = Arc::clone(&self.poller);
        let first = FIRST.min(poller.poll);
        let (mut pause, mut step) = (first, first);
        let (mut woken, mut last) = (HashSet::new(), HashMap::new());
        loop {
            let changed = tokio::time::timeout(pause, poller.changed.notified()).await.is_ok();
            if changed {
                // The new waiter knows that it waits by the answer to its join.
                let end = Instant::now() + first;
                while !poller.lock().urgent && timeout_at(end, poller.changed.notified()).await.is_ok() {}
            }
            let Some(asked) = poller.asked(&woken) else {
                self.over = true;
                return;
            };
            let waiting;
            (woken, waiting) = match poller.poll(&pool, &asked).await {
                Ok(answer) => answer,
                Err(_) => {
                    // The renewals of those who wait report it; they keep their places.
                    pause = UNREACHED;
                    continue;
                }
            };
            step = if waiting == last { (step + step / 2).min(poller.poll) } else { first };
            let near = waiting.values().copied().min().unwrap_or(1).clamp(1, FAR);
            let names = u32::try_from(asked.len()).unwrap_or(u32::MAX);
            pause = (step * near).max(PER_ENTRY.saturating_mul(names)).min(UNREACHED.max(poller.poll));
            if !woken.is_empty() {
                // Who is behind those that were woken may hold beside them.
                pause = Duration::ZERO;
            }
            last = waiting;
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if !self.over {
            // The runtime of this task has ended; others may wait on another one. They ask, and start a new task.
            let mut state = self.poller.lock();
            state.running = false;
            state.names.clear();
        }
    }
}

/// Forgets a waiter whose future ended or was dropped.
struct Forget<'a> {
    poller: &'a Poller,
    name: &'a str,
    token: FencingToken,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        let mut state = self.poller.lock();
        let Some(line) = state.names.get_mut(self.name) else { return };
        if line.get(&self.token).is_some_and(|waiter| waiter.id == self.id) {
            line.remove(&self.token);
        }
        if line.is_empty() {
            state.names.remove(self.name);
        }
    }
}
