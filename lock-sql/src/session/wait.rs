//! Waiting in the server's queue: the session's answer is the grant.

use onelock_core::{Result, Ticket, Wake};

use super::backend::{SessionStore, gone, gone_by};
use super::dialect::{Dialect, Whose};

impl<D: Dialect> SessionStore<D> {
    pub(super) async fn until_held(&self, ticket: &Ticket) -> Result<Wake> {
        let Some(entry) = self.find(ticket) else { return Ok(Wake::Ask) };
        let settled = entry.settle(&mut *entry.state.lock().await).await;
        match (settled, entry.token.get()) {
            (Ok(_), Some(token)) => Ok(Wake::Held(*token)),
            (settled, token) => {
                // The server may not know yet: then one that waits would hold in its turn, for nobody.
                if token.is_some() || Box::pin(self.sessions.end(Whose::Session(entry.id))).await.is_ok() {
                    self.forget(&entry);
                }
                Err(settled.map_or_else(gone_by, |_| gone()))
            }
        }
    }
}
