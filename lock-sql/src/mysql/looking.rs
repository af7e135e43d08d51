//! The task that looks, while somebody waits: when, at what, and how long a request stays at the server.

use std::sync::Arc;
use std::time::Duration;

use onelock_core::{Result, Wake};
use tokio::time::Instant;

use super::link::Link;
use super::look::{ENTRIES, Mark, Stay, listen, look_many, look_one};
use super::pace::{Pace, Seen};
use super::rows::Entries;
use super::watch::{Watch, mark};

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

/// The task that looks, while somebody waits.
pub(super) struct Looking {
    watch: Arc<Watch>,
    over: bool,
}

impl Looking {
    pub(super) fn new(watch: &Arc<Watch>) -> Self {
        Self { watch: Arc::clone(watch), over: false }
    }

    pub(super) async fn run(mut self, link: Arc<Link>) {
        let (mut pace, mut fronts) = (Pace::new(link.poll), 0);
        let at_server = AT_SERVER.min(link.request_timeout / 4);
        let mut answered = Instant::now();
        loop {
            let lines = u32::try_from(self.watch.lock().names.len()).unwrap_or(u32::MAX);
            let idle = lines == 0;
            let pause = pace.pause.max(PER_ENTRY.saturating_mul(lines).min(UNREACHED));
            let left = pause.saturating_sub(answered.elapsed());
            // The last of a pause is spent at the server: all of it, mostly, by who waits for a bell there.
            let listens = self.watch.listens(&link);
            let there = listens.unwrap_or(at_server);
            let here = if idle { LINGER } else { left.saturating_sub(there) };
            let mut stay = Stay { pause: Duration::ZERO, again: pace.again(), looks: 1 };
            if self.watch.has_moved(here).await {
                pace.joined();
                if let Some((seen, at)) = self.watch.just_joined() {
                    pace.seen(seen, at);
                    answered = at;
                    continue;
                }
            } else {
                if listens.is_none() {
                    stay.pause = pause.saturating_sub(answered.elapsed()).min(at_server);
                }
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
            match self.watch.once(&link, &mut fronts, stay).await {
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

impl Watch {
    /// The only entry that waits in this client, if its looks wait for a bell.
    fn listener(&self, link: &Link) -> Option<Mark> {
        if !link.has_blocks() {
            return None;
        }
        let mark = {
            let state = self.lock();
            let mut names = state.names.iter();
            match (names.next(), names.next()) {
                (Some((name, line)), None) if line.len() == 1 => mark(name, line)?,
                _ => return None,
            }
        };
        self.bells.place(&mark).map(|_| mark)
    }

    /// For how long its next look waits for that bell, unless nobody held it the last time.
    fn listens(&self, link: &Link) -> Option<Duration> {
        let mark = self.listener(link)?;
        (self.bells.place(&mark) == Some(false)).then(|| self.limit(link, &mark))
    }

    /// For how long a look waits for a bell: who rings one waits for this connection.
    fn limit(&self, link: &Link, mark: &Mark) -> Duration {
        let limit = if self.bells.holds_others(mark) { AT_SERVER } else { link.poll };
        limit.min(link.request_timeout / 4)
    }

    /// One look, after a pause at the server or a bell.
    async fn once(&self, link: &Link, fronts: &mut i64, stay: Stay) -> Result<Seen> {
        if let Some(mark) = self.listener(link)
            && let Some(seen) = self.listen(link, &mark, stay).await?
        {
            return Ok(seen);
        }
        self.look(link, fronts, stay).await
    }

    /// Waits at the server for the bell of who is right ahead of the only one that waits, and looks.
    async fn listen(&self, link: &Link, mark: &Mark, stay: Stay) -> Result<Option<Seen>> {
        let Some(pair) = self.bells.pair(&link.space, mark) else { return Ok(None) };
        let once = self.bells.once(mark);
        let (wake, heard) = listen(link, mark, &pair, self.limit(link, mark), once, stay).await?;
        self.bells.heard(mark, heard);
        let moved = wake.is_some();
        if let Some(wake) = wake {
            self.wake(&mark.name, mark.token, wake);
        }
        Ok(Some(Seen { moved, ahead: heard.ahead, alone: Some(mark.holder) }))
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
