//! How a lock is kept and given back.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{ErrorKind, Grant, HolderId, Release, Result, Ticket};

use super::dialect::{Answer, Dialect, Whom};
use super::hold::Hold;
use super::names::Tag;
use super::shared::Shared;

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
        match line.give(&self.dialect, (hold.key, hold.mode), self.limit()).await {
            Ok(answer) => {
                self.forget(holder, hold);
                let given = matches!(answer, Answer::Yes);
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
}
