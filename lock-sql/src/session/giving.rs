//! How a lock is kept and given back.

use std::collections::hash_map::Entry;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use onelock_core::{ErrorKind, Grant, HolderId, Mode, Release, Result, Ticket};

use super::dialect::{Answer, Ask, Dialect, Whom};
use super::hold::{Hold, Line};
use super::names::Tag;
use super::shared::Shared;
use super::turns::{Turn, Waiter};

impl<D: Dialect> Shared<D> {
    /// Renews; `None` when it is not held any more.
    pub(super) async fn renew(
        &self,
        holder: HolderId,
        hold: &Arc<Hold<D::Conn>>,
        lease: Duration,
    ) -> Result<Option<Grant>> {
        let mut line = hold.line.lock().await;
        match line.beat(&self.dialect, lease, false, self.limit()).await {
            Ok(_) => Ok(Some(Grant { token: hold.token, lease })),
            // The answer may come yet; until then the deadline decides.
            Err(error) if error.kind() == ErrorKind::Timeout && line.is_stuck() => Err(error),
            Err(_) => {
                drop(line);
                self.forget(holder, hold);
                Ok(None)
            }
        }
    }

    fn forget(&self, holder: HolderId, hold: &Arc<Hold<D::Conn>>) {
        if let Entry::Occupied(entry) = self.held().entry(holder)
            && Arc::ptr_eq(entry.get(), hold)
        {
            entry.remove();
        }
    }

    pub(super) async fn release(self: &Arc<Self>, ticket: &Ticket) -> Result<Release> {
        self.check_open()?;
        if let Some(hold) = self.find(&ticket.name, ticket.holder) {
            return self.give_back(ticket.holder, &hold).await;
        }
        let lost = self.lost().get(&ticket.holder).copied();
        if let Some(id) = lost {
            let ended = Box::pin(self.end(Whom::Session(id))).await?;
            self.lost().remove(&ticket.holder);
            return Ok(ended);
        }
        // Another client's, or nobody's.
        Box::pin(self.end(Whom::Tag(self.key(&ticket.name), Tag::of(ticket.holder)))).await
    }

    async fn give_back(self: &Arc<Self>, holder: HolderId, hold: &Arc<Hold<D::Conn>>) -> Result<Release> {
        let mut line = hold.line.lock().await;
        let late = line.is_stuck();
        let next = line.idle().and_then(|idle| self.next(hold.mode, idle));
        let ask = match next.as_ref().and_then(Waiter::wish) {
            None => Ask::Give { key: hold.key, mode: hold.mode },
            Some(wish) => Ask::Swap { key: hold.key, wish },
        };
        let answer = line.give(&self.dialect, ask, self.limit()).await;
        if let Some(next) = next {
            self.hand_on(next, hold, &mut line, &answer);
        }
        match answer {
            Ok(answer) => {
                self.forget(holder, hold);
                let given = matches!(answer, Answer::Yes | Answer::Swapped(_));
                if let Some(session) = line.take().filter(|_| given) {
                    self.spares.give(session);
                }
                Ok(if given { Release::Released } else { Release::NotHeld })
            }
            // The server says that it has ended the session: it was idle for too long, or evicted.
            Err(error) if error.kind() == ErrorKind::Lost => {
                self.forget(holder, hold);
                Ok(Release::NotHeld)
            }
            // One more call to be answered in.
            Err(error) if line.is_stuck() && !late => Err(error),
            Err(error) => {
                // The connection is gone, or of no use; the session may be there yet, and hold.
                line.take();
                self.forget(holder, hold);
                self.lost().insert(holder, hold.id);
                drop(line);
                // Whatever keeps this from being asked, the unlock before it may have been done.
                let Ok(ended) = Box::pin(self.end(Whom::Session(hold.id))).await else { return Err(error) };
                self.lost().remove(&holder);
                if ended == Release::NotHeld { Err(error) } else { Ok(ended) }
            }
        }
    }

    /// Who waits for a turn, and can have this session together with its lock.
    fn next(&self, mode: Mode, idle: Duration) -> Option<Waiter<D::Conn>> {
        let swaps = mode == Mode::Exclusive && self.dialect.swaps();
        if swaps { self.turns.next(idle) } else { None }
    }

    /// Tells who is next what came of the swap.
    fn hand_on(
        &self,
        next: Waiter<D::Conn>,
        hold: &Hold<D::Conn>,
        line: &mut Line<D::Conn>,
        answer: &Result<Answer>,
    ) {
        let turn = match answer {
            Ok(Answer::Swapped(taken)) => {
                let permit = hold.permit.lock().unwrap_or_else(PoisonError::into_inner).take();
                let (Some(session), Some(permit)) = (line.take(), permit) else { return };
                Turn::Swapped { permit, session, taken: *taken }
            }
            Ok(_) => return self.turns.put_back(next),
            // The session had ended before.
            Err(error) if error.kind() == ErrorKind::Lost => return self.turns.put_back(next),
            Err(error) => Turn::Unclear(hold.id, error.clone()),
        };
        // Whoever waited has gone: what was taken goes with its session.
        if let Err(Turn::Swapped { permit, session, taken: None }) = next.tell(turn) {
            self.spares.give(session);
            drop(permit);
        }
    }
}
