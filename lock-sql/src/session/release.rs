//! Giving a lock back, or a place in the queue.

use onelock_core::{ErrorKind, Release, Result, Ticket};

use super::backend::SessionStore;
use super::dialect::{Ask, Dialect, Whose};
use super::names::tag;

impl<D: Dialect> SessionStore<D> {
    pub(super) async fn give_back(&self, ticket: &Ticket) -> Result<Release> {
        let Some(entry) = self.find(ticket) else {
            // Another client's, or nobody's.
            let whose = Whose::Of(self.key(&ticket.name), tag(ticket.holder));
            return Box::pin(self.sessions.end(whose)).await;
        };
        // A closed connection cannot be asked: the server is, what became of its session.
        let asked = entry.token().is_some() && !entry.is_closed();
        let given = if asked { entry.ask(Ask::Give).await } else { Ok(false) };
        // An entry stays until the server says what became of it.
        match &given {
            Ok(true) => {
                self.forget(&entry);
                entry.end();
                return Ok(Release::Released);
            }
            Ok(false) if asked => {
                self.forget(&entry);
                return Ok(Release::NotHeld);
            }
            // The server has ended the session: it was idle for too long, or evicted.
            Err(error) if error.kind() == ErrorKind::Lost => {
                self.forget(&entry);
                return Ok(Release::NotHeld);
            }
            _ => {}
        }
        // Waiting, or unclear: the end of the session ends what it holds and its place in the queue.
        let ended = Box::pin(self.sessions.end(Whose::Session(entry.id))).await;
        // The release may be given up before the server answers again: its connection is for others then.
        let ended = ended.map_err(|error| self.lose(&entry, error))?;
        self.forget(&entry);
        match given {
            Err(error) if ended == Release::NotHeld => Err(error),
            _ => Ok(ended),
        }
    }
}
