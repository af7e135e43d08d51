//! Joining a line, with a bell and without.

use lock_core::{Busy, Grant, Place, Request, Result, Standing, Wake};

use super::answer::{State, read_joined, read_state};
use super::bells::{Joined, Joining, Rung};
use super::call::{Call, Value};
use super::inbox::{Slot, seen};
use super::pool::Again;
use super::{PostgresBackend, blob, micros, only};

impl PostgresBackend {
    /// Joins the line, or holds at once.
    pub(super) async fn join(&self, request: &Request) -> Result<Standing> {
        let mut values = joins(request);
        values.extend([Value::Flag(request.queue), self.channel(), note(request)]);
        let call = Call::new(&self.shared.sql.acquire, values);
        let state = self.one("acquire", Again::Yes, call, |row| read_state(row, request.holder)).await;
        Ok(standing(state?, request))
    }

    /// Joins the line with a bell. The answer comes when the entry holds, or has waited for a while: what it was told
    /// meanwhile is in its slot.
    pub(super) async fn join_with_bell(
        &self,
        request: &Request,
        joining: Joining,
        slot: &Slot,
    ) -> Result<Standing> {
        let holder = request.holder;
        let mut values = joins(request);
        values.extend([self.channel(), note(request), Value::Int(joining.patience(request.waiter_lease))]);
        let call = Call::new(&self.shared.sql.listen, values);
        let read = only(|row| read_joined(row, holder));
        let ((state, bell, told), lent) = match self.fetch_lent("acquire", Again::Yes, call, read).await {
            Ok(answer) => answer,
            Err(error) => {
                joining.joined(Joined::Failed, None);
                return Err(error);
            }
        };
        let (wake, what) = match (&state, told.as_deref()) {
            (State::Waiting(..), Some("f")) => (None, Joined::BehindFew),
            (State::Waiting(..), Some("n")) => (None, Joined::BehindOthers),
            (State::Waiting(..), Some("w")) => (None, Joined::Slow),
            (State::Waiting(..), told) => (seen(told, holder), Joined::BehindOthers),
            _ => (None, Joined::BehindFew),
        };
        joining.joined(what, bell.map(|bell| Rung { lent, bell }));
        match (&state, wake) {
            (State::Waiting(own, _), Some(Wake::Held(token))) if *own == token => {
                self.shared.bells.waited(&request.name, slot.since.elapsed());
                // It holds by what it was given as it joined.
                return Ok(Standing::Held(Grant { token, lease: request.waiter_lease }));
            }
            (_, Some(_)) => slot.ring(Wake::Ask),
            (_, None) => {}
        }
        Ok(standing(state, request))
    }
}

fn standing(state: State, request: &Request) -> Standing {
    match state {
        State::Held(token) => Standing::Held(Grant { token, lease: request.lease }),
        State::Waiting(token, retry_after) => {
            Standing::Waiting(Place { token, lease: request.waiter_lease, retry_after })
        }
        State::None(retry_after) => Standing::Busy(Busy { retry_after }),
    }
}

/// What every acquire says first.
fn joins(request: &Request) -> Vec<Value> {
    vec![
        Value::Text(request.name.encoded().into_owned()),
        Value::Blob(blob(request.holder)),
        Value::Text(request.mode.to_string()),
        Value::Big(micros(request.lease)),
        Value::Big(micros(request.waiter_lease)),
        Value::Big(micros(request.delay)),
    ]
}

fn note(request: &Request) -> Value {
    Value::Text(request.note.as_str().to_owned())
}
