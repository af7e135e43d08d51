//! Waiting in the server's queue: the session's answer is the grant.

use onelock_core::{Result, Ticket, Wake};

use super::backend::{SessionStore, gone, gone_by};
use super::dialect::Dialect;
use super::sessions::closed;

impl<D: Dialect> SessionStore<D> {
    pub(super) async fn until_held(&self, ticket: &Ticket) -> Result<Wake> {
        let mut closing = self.closed.subscribe();
        self.check_open()?;
        let Some(entry) = self.find(ticket) else { return Ok(Wake::Ask) };
        let settled = tokio::select! {
            biased;
            _ = closing.wait_for(|closed| *closed) => return Err(closed()),
            settled = async { entry.settle(&mut *entry.state.lock().await).await } => settled,
        };
        match (settled, entry.token.get()) {
            (Ok(_), Some(token)) => Ok(Wake::Held(*token)),
            (settled, _) => {
                self.forget(ticket.holder, &entry);
                Err(settled.map_or_else(gone_by, |_| gone()))
            }
        }
    }
}
