//! Waiting in the server's queue: the session's answer is the grant.

use onelock_core::{Error, ErrorKind, Result, Ticket, Wake};

use super::backend::{SessionStore, gone};
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
                let cause = settled.err().unwrap_or_else(gone);
                let text = "the session that waited in the server's queue has ended";
                Err(Error::new(ErrorKind::Unavailable, text).caused_by(cause))
            }
        }
    }
}
