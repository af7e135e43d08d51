//! Taking a lock: one try, and behind others a place in the server's queue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use onelock_core::{Busy, Error, ErrorKind, Grant, Place, Renewal, Renewed, Request, Result, Standing};
use tokio::time::timeout;

use super::backend::{Entry, SessionStore, State, gone};
use super::dialect::{Answer, Ask, Dialect, Whose, Wish};
use super::sessions::{broke, closed, silent};

/// How long a request that waits is given to hold after all, before the server is asked whether it stands in the queue.
const FIRST: Duration = Duration::from_millis(3);

impl<D: Dialect> SessionStore<D> {
    pub(super) async fn join(&self, request: &Request) -> Result<Standing> {
        if let Some(entry) = self.find(&request.ticket())
            && let Some(standing) = Box::pin(self.again(request, &entry)).await?
        {
            return Ok(standing);
        }
        let wish = Arc::new(Wish { key: self.key(&request.name), request: request.clone() });
        loop {
            let (session, fresh) = self.sessions.get().await?;
            let entry = Entry::new(&wish, session.id, State::Free(session));
            let error = match entry.ask(&self.sessions, Ask::Take(Arc::clone(&wish), false)).await {
                Ok(Answer::Taken(Some(token))) => {
                    self.enter(&entry)?;
                    return Ok(Standing::Held(Grant::new(token, request.lease)));
                }
                Ok(_) if request.queue => return Box::pin(self.queue(&entry)).await,
                Ok(_) => {
                    entry.end(&self.sessions).await;
                    return Ok(Standing::Busy(Busy::default()));
                }
                Err(error) => error,
            };
            if fresh || !broke(&error) {
                return Err(self.lose(&entry, error));
            }
            // It broke while it was free, and others with it. The server may not know yet: then it would hold.
            self.sessions.pool.forget();
            if error.kind() != ErrorKind::Lost && self.sessions.end(Whose::Session(entry.id)).await.is_err() {
                return Err(self.lose(&entry, error));
            }
        }
    }

    /// The standing of an entry that is there already. One whose answer was lost is ended first.
    async fn again(&self, request: &Request, entry: &Entry<D::Conn>) -> Result<Option<Standing>> {
        if entry.state.try_lock().is_ok_and(|state| matches!(*state, State::Gone)) {
            self.give_back(&request.ticket()).await?;
            return Ok(None);
        }
        let (lease, waiter_lease) = (request.lease, request.waiter_lease);
        let renewal = Renewal::new(request.ticket(), lease, waiter_lease);
        Ok(match self.renew_all(&[renewal]).await.pop().transpose()? {
            Some(Renewed::Held(grant)) => Some(Standing::Held(grant)),
            Some(Renewed::Waiting(place)) => Some(Standing::Waiting(place)),
            Some(Renewed::NotHeld) | None => None,
        })
    }

    /// Stands in the server's queue. Answered when the server shows that it does: who joins later stands behind.
    async fn queue(&self, entry: &Arc<Entry<D::Conn>>) -> Result<Standing> {
        let (request, failed) = (&entry.wish.request, |error| Err(self.lose(entry, error)));
        drop(entry.send(&self.sessions, Ask::Take(Arc::clone(&entry.wish), true)).await?);
        self.enter(entry)?;
        let (begun, mut pause) = (Instant::now(), FIRST);
        while begun.elapsed() < self.sessions.limit {
            let settled = timeout(pause, async { entry.settle(&mut *entry.state.lock().await).await });
            match (settled.await, entry.token.get()) {
                (Ok(Err(error)), _) => return failed(error),
                (_, Some(&token)) => return Ok(Standing::Held(Grant::new(token, request.lease))),
                (Ok(Ok(_)), None) => return failed(gone()),
                (Err(_), None) => {}
            }
            match self.sessions.waiting(vec![(entry.id, entry.wish.key)]).await {
                Ok(waiting) if waiting.contains(&entry.id) => {
                    let place = Place::new(None, request.waiter_lease);
                    return Ok(Standing::Waiting(place));
                }
                // The request has not reached the server, or the answer is on its way.
                Ok(_) => {}
                Err(error) => return failed(error),
            }
            pause = (pause * 2).min(Duration::from_millis(50));
        }
        failed(silent())
    }

    fn enter(&self, entry: &Arc<Entry<D::Conn>>) -> Result<()> {
        self.entries.lock().insert(entry.wish.request.holder, Arc::clone(entry));
        // Closing empties the entries, but not of what comes later.
        if self.sessions.pool.permits.is_closed() {
            self.forget(entry);
            return Err(closed());
        }
        Ok(())
    }

    /// The connection is closed. Where the session may hold or wait, an entry stays: a release ends the session.
    pub(super) fn lose(&self, entry: &Entry<D::Conn>, error: Error) -> Error {
        self.entries.lock().remove(&entry.wish.request.holder);
        if error.kind() == ErrorKind::Lost {
            // It took everything with it.
            return Error::new(ErrorKind::Unavailable, "the server has ended the session").caused_by(error);
        }
        if error.is_unclear() {
            let _ = self.enter(&Entry::new(&entry.wish, entry.id, State::Gone));
        }
        error
    }
}
