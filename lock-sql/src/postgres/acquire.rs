//! Joining a line.

use onelock_core::{Busy, Grant, Place, Request, Result, Standing};

use super::answer::{State, read_state};
use super::call::{Call, Value};
use super::pool::Again;
use super::{PostgresBackend, blob, micros};

impl PostgresBackend {
    /// Joins the line, or holds at once.
    pub(super) async fn join(&self, request: &Request) -> Result<Standing> {
        let values = vec![
            Value::Text(request.name.encoded().into_owned()),
            Value::Blob(blob(request.holder)),
            Value::Text(request.mode.to_string()),
            Value::Big(micros(request.lease)),
            Value::Big(micros(request.waiter_lease)),
            Value::Big(micros(request.delay)),
            Value::Flag(request.queue),
            self.channel(),
            Value::Text(request.note.as_str().to_owned()),
            Value::Int(u16::from(request.epoch).into()),
        ];
        let call = Call::new(&self.shared.sql.acquire, values);
        let state = self.one("acquire", Again::Yes, call, |row| read_state(row, request.holder)).await?;
        Ok(match state {
            State::Held(token) => Standing::Held(Grant { token, lease: request.lease }),
            State::Waiting(token, retry_after) => {
                Standing::Waiting(Place { token: Some(token), lease: request.waiter_lease, retry_after })
            }
            State::None(retry_after) => Standing::Busy(Busy { retry_after }),
        })
    }
}
