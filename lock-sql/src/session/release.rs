//! Giving a lock back, or a place in the queue.

use onelock_core::{ErrorKind, Release, Result, Ticket};
use tokio::time::timeout;

use super::backend::{Entry, SessionStore, State};
use super::dialect::{Answer, Ask, Dialect};
use super::names::Tag;
use super::sessions::silent;

impl<D: Dialect> SessionStore<D> {
    pub(super) async fn give_back(&self, ticket: &Ticket) -> Result<Release> {
        let entry = self.find(ticket);
        let mut unclear = None;
        if let Some(entry) = entry {
            // Until the server says what became of it.
            self.lost().insert(ticket.holder, entry.id);
            self.forget(ticket.holder, &entry);
            if entry.token.get().is_some() {
                match self.unlock(&entry).await {
                    Ok(given) => {
                        self.lost().remove(&ticket.holder);
                        return Ok(given);
                    }
                    Err(error) => unclear = Some(error),
                }
            }
        }
        let Some(id) = self.lost().get(&ticket.holder).copied() else {
            // Another client's, or nobody's.
            let disown = Ask::Disown(self.key(&ticket.name), Tag::of(ticket.holder));
            let ended = Box::pin(self.sessions.aside(disown)).await?;
            return Ok(if matches!(ended, Answer::Done(true)) {
                Release::Released
            } else {
                Release::NotHeld
            });
        };
        // Waiting, or unclear: the end of the session ends what it holds and its place in the queue.
        let ended = Box::pin(self.sessions.end(id)).await?;
        self.lost().remove(&ticket.holder);
        match unclear {
            _ if ended => Ok(Release::Released),
            Some(error) => Err(error),
            None => Ok(Release::NotHeld),
        }
    }

    async fn unlock(&self, entry: &Entry<D::Conn>) -> Result<Release> {
        let give = |_: &_| Ask::Give { key: entry.key, mode: entry.mode };
        let answer = timeout(self.sessions.limit, entry.ask(&self.sessions, give)).await;
        match answer.unwrap_or_else(|_| Err(silent())) {
            Ok(answer) => {
                let state = std::mem::replace(&mut *entry.state.lock().await, State::Gone);
                match (answer, state) {
                    (Answer::Done(true), State::Free(session)) => {
                        self.sessions.give(session);
                        Ok(Release::Released)
                    }
                    _ => Ok(Release::NotHeld),
                }
            }
            // The server has ended the session: it was idle for too long, or evicted.
            Err(error) if error.kind() == ErrorKind::Lost => Ok(Release::NotHeld),
            Err(error) => Err(error),
        }
    }
}
