//! Joining a line.

use onelock_core::{Busy, Grant, Place, Request, Result, Standing, Wake};

use super::backend::PostgresBackend;
use super::call::{Call, Value, blob, micros};
use super::line::{State, read_state};
use super::pool::Again;

impl PostgresBackend {
    /// Joins the line, or holds at once.
    pub(super) async fn join(&self, request: &Request) -> Result<Standing> {
        let holder = request.holder;
        // Before it is sent: the notification of a promotion may come before the answer.
        let slot = request.queue.then(|| self.shared.inbox.slot(&request.name, holder).0);
        let standing = self.ask_to_join(request).await;
        match (&standing, slot) {
            (Ok(Standing::Waiting(_)), Some(slot)) => self.shared.inbox.waits(&slot),
            _ => self.shared.inbox.settle(holder, Wake::Ask),
        }
        standing
    }

    async fn ask_to_join(&self, request: &Request) -> Result<Standing> {
        let values = vec![
            Value::Text(request.name.encoded().into_owned()),
            Value::Blob(blob(request.holder)),
            Value::Text(request.mode.to_string()),
            Value::Big(micros(request.lease)),
            Value::Big(micros(request.waiter_lease)),
            Value::Big(micros(request.delay)),
            Value::Flag(request.queue),
            self.shared.inbox.address(),
            Value::Text(request.note.as_str().to_owned()),
            Value::Int(u16::from(request.epoch).into()),
        ];
        let call = Call::new(&self.shared.sql.acquire, values);
        let state = self.one(Again::Yes, call, |row| read_state(row, request.holder)).await?;
        Ok(match state {
            State::Held(token) => Standing::Held(Grant { token, lease: request.lease }),
            State::Waiting(token, retry_after) => {
                Standing::Waiting(Place { token: Some(token), lease: request.waiter_lease, retry_after })
            }
            State::None(retry_after) => Standing::Busy(Busy { retry_after }),
        })
    }
}
