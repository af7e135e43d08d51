//! Whose turn it is: a client has so many sessions, and who comes when all of them hold or wait stands in line for one.
//!
//! Who stands here says which lock it wants. So whoever gives a lock back can ask for both in one request, and hands the session on
//! with what came of it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onelock_core::{Error, ErrorKind, FencingToken, Result};
use tokio::sync::oneshot;

use super::dialect::{Id, Session, Wish};
use super::hold::silent;

/// The turns of one client.
pub(super) struct Turns<C> {
    line: Mutex<Line<C>>,
    /// How many there are.
    all: u16,
}

struct Line<C> {
    free: u16,
    closed: bool,
    /// How many have come.
    count: u64,
    /// Empty while there are free ones.
    waiting: VecDeque<Waiter<C>>,
}

/// The right to one session that holds or waits; passed on when it is dropped.
pub(super) struct Permit<C>(Arc<Turns<C>>);

/// How it came to somebody's turn.
pub(super) enum Turn<C> {
    Permit(Permit<C>),
    /// With a session that has just given back another lock and asked for this one; under this number it was taken.
    Swapped {
        permit: Permit<C>,
        session: Session<C>,
        taken: Option<FencingToken>,
    },
    /// It was asked for, and what came of it is not known: that session may hold it.
    Unclear(Id, Error),
}

/// Somebody whose turn it will be.
pub(super) struct Waiter<C> {
    number: u64,
    /// The lock it wants, if it may be taken by a session with this time of idleness.
    wish: Option<(Wish, Duration)>,
    tell: oneshot::Sender<Turn<C>>,
}

impl<C> Waiter<C> {
    pub(super) fn wish(&self) -> Option<Wish> {
        self.wish.as_ref().map(|(wish, _)| wish.clone())
    }

    /// Gives it back when whoever waited has gone.
    pub(super) fn tell(self, turn: Turn<C>) -> Result<(), Turn<C>> {
        self.tell.send(turn)
    }
}

impl<C> Turns<C> {
    pub(super) fn new(all: u16) -> Arc<Self> {
        let line = Line { free: all, closed: false, count: 0, waiting: VecDeque::new() };
        Arc::new(Self { line: Mutex::new(line), all })
    }

    fn lock(&self) -> MutexGuard<'_, Line<C>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn, for so long.
    pub(super) async fn turn(
        self: &Arc<Self>,
        wish: Option<(&Wish, Duration)>,
        limit: Duration,
    ) -> Result<Turn<C>> {
        let (number, mut told) = {
            let mut line = self.lock();
            if line.closed {
                return Err(closed());
            }
            if let Some(left) = line.free.checked_sub(1) {
                line.free = left;
                return Ok(Turn::Permit(Permit(Arc::clone(self))));
            }
            let (tell, told) = oneshot::channel();
            line.count += 1;
            let wish = wish.map(|(wish, idle)| (wish.clone(), idle));
            let number = line.count;
            line.waiting.push_back(Waiter { number, wish, tell });
            (number, told)
        };
        let turn = match tokio::time::timeout(limit, &mut told).await {
            Ok(turn) => turn,
            Err(_) if self.leave(number) => return Err(self.full()),
            // It has just come, or somebody asks for the lock at this moment and will say what came of it.
            Err(_) => tokio::time::timeout(limit, told).await.map_err(|_| silent())?,
        };
        turn.map_err(|_| {
            if self.lock().closed {
                return closed();
            }
            Error::new(ErrorKind::Unavailable, "the call that asked for the lock has ended")
        })
    }

    /// Whether this one was still waiting.
    fn leave(&self, number: u64) -> bool {
        let waiting = &mut self.lock().waiting;
        let at = waiting.iter().position(|waiter| waiter.number == number);
        at.is_some_and(|at| waiting.remove(at).is_some())
    }

    /// Who is next, if its lock may be asked for by a session with this time of idleness.
    pub(super) fn next(&self, idle: Duration) -> Option<Waiter<C>> {
        let waiting = &mut self.lock().waiting;
        while waiting.pop_front_if(|first| first.tell.is_closed()).is_some() {}
        waiting.pop_front_if(|first| first.wish.as_ref().is_some_and(|(_, wanted)| *wanted == idle))
    }

    /// It is next again: nothing was asked.
    pub(super) fn put_back(self: &Arc<Self>, waiter: Waiter<C>) {
        let mut line = self.lock();
        if let Some(left) = line.free.checked_sub(1) {
            line.free = left;
            drop(line);
            // One who goes away at this moment passes it on.
            let _ = waiter.tell(Turn::Permit(Permit(Arc::clone(self))));
        } else if !line.closed {
            line.waiting.push_front(waiter);
        }
    }

    pub(super) fn close(&self) {
        let mut line = self.lock();
        line.closed = true;
        let waiting = std::mem::take(&mut line.waiting);
        drop(line);
        // Told with nothing locked.
        drop(waiting);
    }

    fn full(&self) -> Error {
        let text = format!(
            "all {} connections of this client hold or await a lock, each lock has one of its own; raise `connections`",
            self.all
        );
        Error::new(ErrorKind::Full, text).unsent()
    }
}

impl<C> Drop for Permit<C> {
    fn drop(&mut self) {
        let mut line = self.0.lock();
        while line.waiting.pop_front_if(|first| first.tell.is_closed()).is_some() {}
        let Some(next) = line.waiting.pop_front() else {
            line.free += 1;
            return;
        };
        drop(line);
        // One who goes away at this moment passes it on.
        let _ = next.tell(Turn::Permit(Permit(Arc::clone(&self.0))));
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the store of session locks was closed")
}

#[cfg(test)]
mod tests {
    use onelock_core::{HolderId, LockName, Mode, Note};

    use super::*;
    use crate::session::names::{Key, Tag};

    const LONG: Duration = Duration::from_secs(60);
    const IDLE: Duration = Duration::from_secs(5);

    fn wish(name: &str) -> Wish {
        Wish {
            key: Key::new("space", &LockName::new(name).unwrap()),
            mode: Mode::Exclusive,
            tag: Tag::of(HolderId::from_u128(1)),
            note: Note::default(),
        }
    }

    /// Stands in line: the task has come there when this returns.
    async fn stand(
        turns: &Arc<Turns<()>>,
        wanted: Option<Wish>,
    ) -> tokio::task::JoinHandle<Result<Turn<()>>> {
        let (there, before) = (Arc::clone(turns), turns.lock().waiting.len());
        let task =
            tokio::spawn(async move { there.turn(wanted.as_ref().map(|wish| (wish, IDLE)), LONG).await });
        while turns.lock().waiting.len() == before {
            tokio::task::yield_now().await;
        }
        task
    }

    async fn permit(turns: &Arc<Turns<()>>) -> Permit<()> {
        match turns.turn(None, LONG).await.unwrap() {
            Turn::Permit(permit) => permit,
            _ => panic!("there was a free one"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn turns_come_in_order_and_pass_by_who_has_gone() {
        let turns = Turns::new(1);
        let held = permit(&turns).await;
        let (first, second, third) =
            (stand(&turns, None).await, stand(&turns, None).await, stand(&turns, None).await);
        first.abort();
        assert!(first.await.is_err());
        drop(held);
        let second = second.await.unwrap().unwrap();
        assert!(!third.is_finished());
        drop(second);
        drop(third.await.unwrap().unwrap());
        assert_eq!(turns.lock().free, 1);
        // One who goes away with it in hand gives it on, too.
        let held = permit(&turns).await;
        let (gone, last) = (stand(&turns, None).await, stand(&turns, None).await);
        drop(held);
        gone.abort();
        drop(gone);
        drop(last.await.unwrap().unwrap());
        assert_eq!(turns.lock().free, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_waited_for_too_long_leaves_the_line() {
        let turns = Turns::new(1);
        let held = permit(&turns).await;
        let error = turns.turn(Some((&wish("a"), IDLE)), LONG).await.map(drop).unwrap_err();
        assert!(error.kind() == ErrorKind::Full && !error.is_unclear(), "{error}");
        assert!(turns.lock().waiting.is_empty());
        // Somebody has begun to ask for it: that is waited for, and not without end.
        let waiter = stand(&turns, Some(wish("a"))).await;
        let next = turns.next(IDLE).unwrap();
        let error = waiter.await.unwrap().map(drop).unwrap_err();
        assert!(error.kind() == ErrorKind::Timeout && error.is_unclear(), "{error}");
        assert!(next.tell(Turn::Permit(held)).is_err());
        assert_eq!(turns.lock().free, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_first_in_line_is_asked_for_and_keeps_its_place() {
        let turns = Turns::new(1);
        let held = permit(&turns).await;
        let plain = stand(&turns, None).await;
        let wishes = stand(&turns, Some(wish("a"))).await;
        assert!(turns.next(IDLE).is_none(), "the first one must be asked for by itself");
        drop(held);
        let held = plain.await.unwrap().unwrap();
        assert!(turns.next(IDLE * 2).is_none(), "another time of idleness");
        let next = turns.next(IDLE).unwrap();
        assert_eq!(next.wish().unwrap().key, wish("a").key);
        let later = stand(&turns, None).await;
        turns.put_back(next);
        drop(held);
        let held = wishes.await.unwrap().unwrap();
        assert!(!later.is_finished());
        drop(held);
        drop(later.await.unwrap().unwrap());
        // What came free meanwhile is theirs at once.
        let held = permit(&turns).await;
        let waiter = stand(&turns, Some(wish("a"))).await;
        let next = turns.next(IDLE).unwrap();
        drop(held);
        turns.put_back(next);
        drop(waiter.await.unwrap().unwrap());
        assert_eq!(turns.lock().free, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn closing_tells_everybody() {
        let turns = Turns::new(1);
        let held = permit(&turns).await;
        let waiter = stand(&turns, None).await;
        turns.close();
        assert_eq!(waiter.await.unwrap().map(drop).unwrap_err().kind(), ErrorKind::Closed);
        drop(held);
        assert_eq!(turns.turn(None, LONG).await.map(drop).unwrap_err().kind(), ErrorKind::Closed);
    }
}
