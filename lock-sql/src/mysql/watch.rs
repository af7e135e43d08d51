//! Waiting. MySQL tells nobody anything, so a client looks: one task and one connection for all its waiters.
//!
//! Grants follow the line, so of the waiters of one name only the foremost needs a look. Each look also sees lease ends
//! ahead that nobody has acted on yet. A release by this client itself looks for its own waiter in the same request and
//! wakes it without waiting for the next look.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{FencingToken, HolderId, Mode, Result, Ticket, Wake};
use tokio::sync::{Notify, oneshot};

use super::error::closed;
use super::link::{Lane, Link};
use super::rows::{self, Entries};
use super::sql::Value;

/// How soon after a change the next look comes of a client whose turn is next.
const SOON: Duration = Duration::from_micros(300);
/// The least that those ahead take, one after the other: nobody need look sooner whose turn comes only after theirs.
const TURN: Duration = Duration::from_millis(1);
/// How many entries one request looks at.
const ENTRIES: usize = 512;
/// The pause after a look, at least, for each entry it looked at: however many lines, the looks of one client keep the
/// server no busier than that.
const PER_ENTRY: Duration = Duration::from_micros(100);
/// How long the task stays when nobody waits.
const LINGER: Duration = Duration::from_secs(1);
/// How rarely to look while the server cannot be reached.
const UNREACHED: Duration = Duration::from_millis(500);

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

/// What to look at: an entry that waits.
#[derive(Clone, Debug)]
struct Mark {
    name: String,
    token: FencingToken,
    holder: HolderId,
    mode: Mode,
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

    /// A condition for a release on `name`: whether the foremost waiter of this client there holds then. Runs after
    /// `@now` was set and the expired were dropped.
    pub(super) fn after(&self, link: &Link, name: &str) -> (String, Option<FencingToken>) {
        let mark = self.foremost(name);
        match mark {
            None => ("0".into(), None),
            Some(mark) => {
                let (there, held) = (there(link, &mark), holds(link, &mark));
                (format!("CAST(({there} AND {held}) AS SIGNED)"), Some(mark.token))
            }
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

    fn foremost(&self, name: &str) -> Option<Mark> {
        self.lock().names.get(name).and_then(|line| mark(name, line))
    }

    /// The foremost waiter of every name.
    fn marks(&self) -> Vec<Mark> {
        self.lock().names.iter().filter_map(|(name, line)| mark(name, line)).collect()
    }

    /// One look at all that waits: whether something has moved since the look that gave `fronts`, and how many are ahead of
    /// the one whose turn may be next.
    async fn look(&self, link: &Link, fronts: &mut i64) -> Result<(bool, u32)> {
        let (mut moved, mut marks, mut sum, mut ahead) = (false, self.marks(), 0, u32::MAX);
        while !marks.is_empty() {
            let mut again = Vec::new();
            for marks in marks.chunks(ENTRIES) {
                let mut holders = String::new();
                for (item, mark) in marks.iter().enumerate() {
                    holders.push_str(if item > 0 { "," } else { "" });
                    Value::Bytes(&mark.holder.as_u128().to_be_bytes()).write(&mut holders);
                }
                let values = [("holders", Value::Part(&holders))];
                let look =
                    link.ask(Lane::Look, &link.sql.look.fill(&values), |rows, _| rows::look(rows)).await?;
                sum ^= look.fronts;
                ahead = ahead.min(look.ahead);
                let there = if look.there < marks.len() {
                    let sql = link.sql.there.fill(&values);
                    Some(link.ask(Lane::Look, &sql, |rows, _| rows::entries(rows)).await?)
                } else {
                    None
                };
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
            moved |= !again.is_empty();
            // Who is behind them may hold beside them.
            marks = again.iter().filter_map(|name| self.foremost(name)).collect();
        }
        Ok((std::mem::replace(fronts, sum) != sum || moved, ahead))
    }
}

fn mark(name: &str, line: &BTreeMap<FencingToken, Waiter>) -> Option<Mark> {
    let (token, waiter) = line.first_key_value()?;
    Some(Mark { name: name.to_owned(), token: *token, holder: waiter.holder, mode: waiter.mode })
}

fn there(link: &Link, mark: &Mark) -> String {
    let Line { table, name, token } = line(link, mark);
    format!("EXISTS (SELECT 1 FROM {table} WHERE name = {name} AND number = {token} AND ends > @now)")
}

/// Whether everything ahead of the entry is of its mode, and less than there is room for. Looks at no more entries than
/// decide that.
fn holds(link: &Link, mark: &Mark) -> String {
    let Line { table, name, token } = line(link, mark);
    let ahead = format!("SELECT 1 FROM {table} WHERE name = {name} AND number < {token} AND ends > @now");
    let mode = mark.mode.to_string();
    let (mode, room) = (literal(mode.as_bytes()), room(mark.mode));
    match mark.mode {
        Mode::Exclusive => format!("NOT EXISTS ({ahead})"),
        Mode::Shared => format!("NOT EXISTS ({ahead} AND mode <> {mode})"),
        Mode::Permit(_) => format!(
            "NOT EXISTS ({ahead} AND mode <> {mode}) AND (SELECT COUNT(*) FROM ({ahead} LIMIT {room}) a) < {room}"
        ),
    }
}

struct Line {
    table: String,
    name: String,
    token: i64,
}

fn line(link: &Link, mark: &Mark) -> Line {
    let table = format!("`{}line`", link.sql.prefix);
    Line { table, name: literal(mark.name.as_bytes()), token: mark.token.get() }
}

fn literal(bytes: &[u8]) -> String {
    let mut out = String::new();
    Value::Bytes(bytes).write(&mut out);
    out
}

/// How many entries of this mode hold at most.
pub(super) fn room(mode: Mode) -> u32 {
    match mode {
        Mode::Exclusive => 1,
        Mode::Shared => u32::MAX,
        Mode::Permit(limit) => limit.get(),
    }
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

/// How long after a move the next look comes of a client with so many ahead of it.
fn soon(ahead: u32) -> Duration {
    if ahead <= 1 { SOON } else { TURN.saturating_mul(ahead - 1) }
}

/// The task that looks, while somebody waits.
struct Looking {
    watch: Arc<Watch>,
    over: bool,
}

impl Looking {
    async fn run(mut self, link: Arc<Link>) {
        let (mut pause, mut fronts) = (SOON, 0);
        loop {
            match self.watch.look(&link, &mut fronts).await {
                Ok((true, ahead)) => pause = soon(ahead).min(link.poll),
                Ok((false, _)) => pause = (pause * 5 / 4).min(link.poll),
                // The renewals of those who wait tell them; they keep their places.
                Err(_) => pause = (pause * 2).clamp(link.poll, UNREACHED),
            }
            let lines = u32::try_from(self.watch.lock().names.len()).unwrap_or(u32::MAX);
            let idle = lines == 0;
            let least = PER_ENTRY.saturating_mul(lines).min(UNREACHED);
            let rest = if idle { LINGER } else { pause.max(least) };
            if tokio::time::timeout(rest, self.watch.moved.notified()).await.is_ok() {
                pause = SOON;
            }
            // Decided under the lock: who comes after this starts a new task.
            let mut state = self.watch.lock();
            if state.closed || (idle && state.names.is_empty()) {
                state.looking = false;
                self.over = true;
                return;
            }
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
