//! Releasing an entry, and evicting one by its number.

use onelock_core::{FencingToken, LockName, Release, Result, Ticket, Wake};

use super::backend::PostgresBackend;
use super::call::{Call, Value, blob};
use super::line::read_release;
use super::pool::Again;

impl PostgresBackend {
    pub(super) async fn remove(&self, ticket: &Ticket) -> Result<Release> {
        self.shared.inbox.settle(ticket.holder, Wake::Ask);
        let values = vec![Value::Text(ticket.name.encoded().into_owned()), Value::Blob(blob(ticket.holder))];
        self.one(Again::No, Call::new(&self.shared.sql.release, values), read_release).await
    }

    pub(super) async fn remove_number(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        let values = vec![Value::Text(name.encoded().into_owned()), Value::Big(token.get())];
        self.one(Again::No, Call::new(&self.shared.sql.evict, values), read_release).await
    }
}
