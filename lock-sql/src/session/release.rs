//! Giving a lock back, or a place in the queue.

use std::sync::Arc;

use onelock_core::{ErrorKind, Release, Result, Ticket};

use super::backend::{Entry, SessionStore};
use super::dialect::{Answer, Ask, Dialect, Whose};
use super::names::tag;

impl<D: Dialect> SessionStore<D> {
    pub(super) async fn give_back(&self, ticket: &Ticket) -> Result<Release> {
        let Some(entry) = self.find(ticket) else {
            // Another client's, or nobody's.
            let whose = Whose::Of(self.key(&ticket.name), tag(ticket.holder));
            return Box::pin(self.sessions.end(whose)).await;
        };
        // It stays until the server says what became of it.
        let mut unclear = None;
        if entry.token.get().is_some() {
            match self.unlock(&entry).await {
                Ok(given) => {
                    self.forget(&entry);
                    return Ok(given);
                }
                Err(error) => unclear = Some(error),
            }
        }
        // Waiting, or unclear: the end of the session ends what it holds and its place in the queue.
        let ended = Box::pin(self.sessions.end(Whose::Session(entry.id))).await;
        // The release may be given up before the server answers again: its connection is for others then.
        let ended = ended.map_err(|error| self.lose(&entry, error))?;
        self.forget(&entry);
        match unclear {
            Some(error) if ended == Release::NotHeld => Err(error),
            _ => Ok(ended),
        }
    }

    async fn unlock(&self, entry: &Entry<D::Conn>) -> Result<Release> {
        match entry.ask(&self.sessions, Ask::Give(Arc::clone(&entry.wish))).await {
            Ok(Answer::Done(true)) => {
                entry.end(&self.sessions).await;
                Ok(Release::Released)
            }
            Ok(_) => Ok(Release::NotHeld),
            // The server has ended the session: it was idle for too long, or evicted.
            Err(error) if error.kind() == ErrorKind::Lost => Ok(Release::NotHeld),
            Err(error) => Err(error),
        }
    }
}
