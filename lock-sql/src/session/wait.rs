//! Waiting in the server's queue: the session's answer is the grant.

use std::sync::Arc;

use onelock_core::{Error, Result, Ticket, Wake};

use super::backend::SessionStore;
use super::dialect::{Dialect, Whose};
use super::entry::{Entry, gone_by, without};

impl<D: Dialect> SessionStore<D> {
    pub(super) async fn until_held(&self, ticket: &Ticket) -> Result<Wake> {
        let Some(entry) = self.find(ticket) else { return Ok(Wake::Ask) };
        match entry.asked().await.and_then(|_| entry.token().ok_or_else(without)) {
            Ok(token) => Ok(Wake::Held(token)),
            Err(error) => Err(self.given_up(&entry, error).await),
        }
    }

    /// Gives up an entry whose session is of no use any more. The server may not know yet: then one that waits would hold in its turn,
    /// for nobody.
    pub(super) async fn given_up(&self, entry: &Arc<Entry<D>>, cause: Error) -> Error {
        if entry.token().is_some() || Box::pin(self.sessions.end(Whose::Session(entry.id))).await.is_ok() {
            self.forget(entry);
        }
        gone_by(cause)
    }
}
