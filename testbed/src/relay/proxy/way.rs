//! One direction of one connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::super::link::Link;
use super::super::trigger::Act;
use super::super::{Direction, Fault};
use super::Rewrite;

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// As when a peer closes it.
    Closed,
    /// As when a peer has forgotten it.
    Reset,
}

/// What a trigger does to the replies of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Replies {
    #[default]
    Pass,
    Held,
    Lost,
}

/// What both directions of a connection know.
pub(super) struct Shared<'a> {
    pub(super) link: &'a Link,
    pub(super) rewrite: &'a Rewrite,
    pub(super) replies: watch::Sender<Replies>,
    /// Something came back since the last request.
    pub(super) answered: AtomicBool,
}

/// How many pieces may be under way.
const UNDER_WAY: usize = 64;

/// Forwards until one side is closed, the connection is to be reset, or the stream has a hole that nobody must see.
pub(super) async fn forward(
    from: ReadHalf<'_>,
    to: WriteHalf<'_>,
    shared: &Shared<'_>,
    direction: Direction,
) -> End {
    let (departs, arrives) = mpsc::channel(UNDER_WAY);
    let reading = async {
        depart(from, departs, shared, direction).await;
        // What is under way arrives after the sender has closed.
        std::future::pending().await
    };
    let mut lane = Lane { to, shared, direction, hole: false, http2: false, seen: Vec::new(), cut: None };
    tokio::select! {
        end = lane.arrive(arrives) => end,
        end = reading => end,
    }
}

async fn depart(
    mut from: ReadHalf<'_>,
    departs: mpsc::Sender<(Instant, Vec<u8>)>,
    shared: &Shared<'_>,
    direction: Direction,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let mut due = Instant::now();
        if let Some(time) = shared.link.now().fault.delays(direction) {
            shared.link.hits.add(1);
            due += time;
        }
        let mut piece = buffer[..count].to_vec();
        if direction == Direction::Replies {
            (shared.rewrite)(&mut piece);
        }
        if departs.send((due, piece)).await.is_err() {
            return;
        }
    }
}

struct Lane<'a> {
    to: WriteHalf<'a>,
    shared: &'a Shared<'a>,
    direction: Direction,
    /// Something of the stream was lost.
    hole: bool,
    /// The client has begun with what HTTP/2 begins with.
    http2: bool,
    /// The end of what went by, for a trigger.
    seen: Vec<u8>,
    /// How many bytes may pass yet, since which setting of the fault.
    cut: Option<(u64, u64)>,
}

impl Lane<'_> {
    async fn arrive(&mut self, mut arrives: mpsc::Receiver<(Instant, Vec<u8>)>) -> End {
        let (link, direction) = (self.shared.link, self.direction);
        loop {
            let next = tokio::select! {
                biased;
                () = link.until(|fault| !fault.loses(direction)), if self.hole => return End::Closed,
                next = arrives.recv() => next,
            };
            let Some((due, piece)) = next else { return End::Closed };
            tokio::time::sleep_until(due).await;
            if link.now().fault.stalls(direction) {
                link.hits.add(1);
                tokio::select! {
                    biased;
                    () = link.until(|fault| !fault.stalls(direction)) => {}
                    () = link.one_may_pass() => {}
                }
            }
            if link.now().fault.loses(direction) {
                link.hits.add(1);
                self.hole = true;
                continue;
            }
            if self.hole {
                return End::Closed;
            }
            let passed = match direction {
                Direction::Requests => self.request(piece).await,
                Direction::Replies => self.reply(piece).await,
            };
            if let Err(end) = passed {
                return end;
            }
        }
    }

    async fn request(&mut self, piece: Vec<u8>) -> Result<(), End> {
        let (link, replies) = (self.shared.link, &self.shared.replies);
        if self.begins_request(&piece) && self.shared.answered.swap(false, Ordering::Relaxed) {
            link.turns.add(1);
        }
        match link.springs(&self.seen, &piece) {
            None => {}
            Some(Act::HoldRequest) => link.released().await,
            Some(Act::HoldReply) => drop(replies.send_replace(Replies::Held)),
            Some(Act::LoseReply) => drop(replies.send_replace(Replies::Lost)),
            Some(Act::Reset) => return Err(End::Reset),
        }
        self.seen.extend_from_slice(&piece);
        self.seen.drain(..self.seen.len().saturating_sub(link.memory()));
        self.write(&piece).await
    }

    /// Whether a request begins in a piece of what a client sends. On HTTP/2 (RFC 9113, sections 3.4 and 4.1) it also sends
    /// pings, acknowledgements and window updates, for which nobody waits. There a piece is taken to begin with a frame: small
    /// ones are written as a whole.
    fn begins_request(&mut self, piece: &[u8]) -> bool {
        const HEADERS: u8 = 1;
        let behind = piece.strip_prefix(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        self.http2 |= behind.is_some();
        let mut frames = behind.unwrap_or(piece);
        while let (true, [a, b, c, kind, ..]) = (self.http2, frames) {
            if *kind == HEADERS {
                return true;
            }
            let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            frames = frames.get(9 + length..).unwrap_or_default();
        }
        !self.http2
    }

    async fn reply(&mut self, piece: Vec<u8>) -> Result<(), End> {
        let link = self.shared.link;
        self.shared.answered.store(true, Ordering::Relaxed);
        let replies = *self.shared.replies.borrow();
        match replies {
            Replies::Pass => {}
            Replies::Held => {
                link.released().await;
                self.shared.replies.send_replace(Replies::Pass);
            }
            Replies::Lost => return Err(End::Reset),
        }
        if !matches!(link.fault(), Fault::Mangle(_)) {
            return self.write(&piece).await;
        }
        let (bytes, ends) = link.corruptor().mangle(&piece);
        if ends || bytes != piece {
            link.hits.add(1);
        }
        self.write(&bytes).await?;
        if ends { Err(End::Closed) } else { Ok(()) }
    }

    /// As much as the fault lets through, and as fast, which may change meanwhile.
    async fn write(&mut self, piece: &[u8]) -> Result<(), End> {
        let link = self.shared.link;
        let mut rest = &piece[..self.passes(piece.len())];
        let cut = rest.len() < piece.len();
        while !rest.is_empty() {
            let now = link.now();
            let part = match now.fault {
                Fault::Throttle(rate) => {
                    let rate = rate.max(1);
                    // A twentieth of a second's worth at a time.
                    let size = usize::try_from((rate / 20).max(1)).unwrap_or(usize::MAX).min(rest.len());
                    link.hits.add(1);
                    let time = Duration::from_secs_f64(size as f64 / rate as f64);
                    if tokio::time::timeout(time, link.changes_from(now.round)).await.is_ok() {
                        continue;
                    }
                    size
                }
                _ => rest.len(),
            };
            let (part, later) = rest.split_at(part);
            // Before the other end can see them: a client that has its answer may look at the count.
            link.bytes.add(part.len() as u64);
            self.to.write_all(part).await.map_err(|_| End::Closed)?;
            rest = later;
        }
        if cut { Err(End::Reset) } else { Ok(()) }
    }

    /// How many of so many bytes pass before the connection is cut.
    fn passes(&mut self, size: usize) -> usize {
        let now = self.shared.link.now();
        let Some(bytes) = now.fault.cuts(self.direction) else { return size };
        let left = self.cut.filter(|(round, _)| *round == now.round).map_or(bytes, |(_, left)| left);
        self.cut = Some((now.round, left.saturating_sub(size as u64)));
        let passes = usize::try_from(left).unwrap_or(usize::MAX).min(size);
        if passes < size {
            self.shared.link.hits.add(1);
        }
        passes
    }
}
