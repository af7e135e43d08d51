//! Waiting: the notification of a promotion, and a look for what was sent before anybody listened.

use onelock_core::{Result, Ticket, Wake};
use sqlx::Row as _;

use super::backend::PostgresBackend;
use super::call::{Call, Value, blob};
use super::error::explain;
use super::inbox::seen;
use super::pool::Again;

impl PostgresBackend {
    /// Waits for the notification of a promotion.
    pub(super) async fn until_held(&self, ticket: &Ticket) -> Result<Wake> {
        let (slot, known) = self.shared.inbox.slot(&ticket.name, ticket.holder);
        self.shared.inbox.waits(&slot);
        if !known {
            // What was sent before the slot was there found nobody.
            let values = vec![
                Value::Texts(vec![ticket.name.encoded().into_owned()]),
                Value::Blobs(vec![blob(ticket.holder)]),
            ];
            let call = Call::new(&self.shared.sql.watched, values);
            // In a box, which goes when it is answered: a wait is kept for long, and its future with it.
            let asked = self.one(Again::Yes, call, |row| row.try_get(0).map_err(explain));
            let stands: Option<String> = Box::pin(asked).await?;
            match seen(stands.as_deref(), ticket.holder) {
                None => {}
                Some(Wake::Ask) => {
                    self.shared.inbox.settle(ticket.holder, Wake::Ask);
                    return Ok(Wake::Ask);
                }
                Some(held) => slot.notify(held),
            }
        }
        Ok(slot.wait().await)
    }
}
