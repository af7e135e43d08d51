//! Taking a lock: one try, and behind others a place in the server's queue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use onelock_core::{Busy, Error, ErrorKind, Place, Renewal, Renewed, Request, Result, Standing};
use tokio::time::timeout;

use super::backend::SessionStore;
use super::dialect::{Ask, Dialect, Whose, Wish};
use super::entry::{Entry, gone_by};
use super::sessions::{broke, silent};

/// How long a request that waits is given to hold after all, before the server is asked whether it stands in the queue.
const FIRST: Duration = Duration::from_millis(3);

impl<D: Dialect> SessionStore<D> {
    pub(super) async fn join(&self, request: &Request) -> Result<Standing> {
        let ticket = request.ticket();
        if let Some(entry) = self.find(&ticket) {
            // One whose answer was lost is ended first.
            if entry.is_closed() {
                Box::pin(self.give_back(&ticket)).await?;
            }
            let due = [Renewal::new(ticket, request.lease, request.waiter_lease)];
            match Box::pin(self.renew_all(&due)).await.pop().transpose()? {
                Some(Renewed::Held(grant)) => return Ok(Standing::Held(grant)),
                Some(Renewed::Waiting(place)) => return Ok(Standing::Waiting(place)),
                Some(Renewed::NotHeld) | None => {}
            }
        }
        let wish = Arc::new(Wish { key: self.key(&request.name), request: request.clone() });
        loop {
            let (session, used) = self.sessions.get().await?;
            let entry = Entry::new(&self.sessions, &wish, session);
            let error = match entry.ask(Ask::Take).await {
                Ok(true) => {
                    self.enter(&entry)?;
                    return entry.grant(request.lease).map(Standing::Held);
                }
                Ok(false) if request.queue => {
                    let queued = Box::pin(self.queue(&entry)).await;
                    return queued.map_err(|error| self.lose(&entry, error));
                }
                Ok(false) => {
                    entry.end();
                    return Ok(Standing::Busy(Busy::default()));
                }
                Err(error) => error,
            };
            if !used || !broke(&error) {
                return Err(self.lose(&entry, error));
            }
            // It broke while it was free, and others with it. The server may not know yet: then it would hold.
            self.sessions.pool.forget();
            if error.kind() != ErrorKind::Lost && self.sessions.end(Whose::Session(entry.id)).await.is_err() {
                return Err(self.lose(&entry, error));
            }
        }
    }

    /// Joins the server's queue. Answered when the server shows it there: those that join later are behind.
    async fn queue(&self, entry: &Arc<Entry<D>>) -> Result<Standing> {
        let request = &entry.wish.request;
        let taken = entry.send(Ask::Queue);
        self.enter(entry)?;
        let (begun, mut pause) = (Instant::now(), FIRST);
        while begun.elapsed() < self.sessions.limit {
            if let Ok(taken) = timeout(pause, taken.clone()).await {
                taken?;
                return Ok(Standing::Held(entry.grant(request.lease)?));
            }
            if self.sessions.waiting(vec![(entry.id, entry.wish.key)]).await?.contains(&entry.id) {
                return Ok(Standing::Waiting(Place::new(None, request.waiter_lease)));
            }
            // The request has not reached the server, or the answer is on its way.
            pause = (pause * 2).min(Duration::from_millis(50));
        }
        Err(silent())
    }

    /// The connection is closed. Where the session may hold or wait, an entry stays: a release ends the session.
    pub(super) fn lose(&self, entry: &Arc<Entry<D>>, error: Error) -> Error {
        entry.close();
        if error.is_unclear() {
            let _ = self.enter(entry);
        } else {
            self.forget(entry);
        }
        // What the server has ended holds nothing: for an acquire, the store could not serve it just now.
        if error.kind() == ErrorKind::Lost { gone_by(error) } else { error }
    }
}
