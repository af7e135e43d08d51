//! Renewing entries, and raising the counter behind one.

use onelock_core::{FencingToken, Grant, Place, Raise, Renewal, Renewed, Result, Ticket, Wake};
use sqlx::Row as _;

use super::backend::PostgresBackend;
use super::call::{Call, Value, blob, micros};
use super::error::explain;
use super::line::{State, read_states};
use super::pool::Again;

impl PostgresBackend {
    pub(super) async fn renew_all(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let renewed = self.renew_together(due).await;
        renewed.unwrap_or_else(|error| vec![Err(error); due.len()])
    }

    async fn renew_together(&self, due: &[Renewal]) -> Result<Vec<Result<Renewed>>> {
        // Those of one name together, and in the order of its line: as those who promote lock the rows.
        let mut order: Vec<_> = due.iter().enumerate().collect();
        order.sort_by(|(_, a), (_, b)| {
            (&a.ticket.name, a.ticket.token).cmp(&(&b.ticket.name, b.ticket.token))
        });
        let sorted = || order.iter().map(|(_, renewal)| *renewal);
        let values = vec![
            Value::Texts(sorted().map(|r| r.ticket.name.encoded().into_owned()).collect()),
            Value::Blobs(sorted().map(|r| blob(r.ticket.holder)).collect()),
            Value::Bigs(sorted().map(|r| micros(r.lease)).collect()),
            Value::Bigs(sorted().map(|r| micros(r.waiter_lease)).collect()),
            Value::Bigs(sorted().map(|r| micros(r.ticket.delay)).collect()),
            self.shared.inbox.address(),
        ];
        let holders: Vec<_> = sorted().map(|r| r.ticket.holder).collect();
        let call = Call::new(&self.shared.sql.renew, values);
        let states = self.one(Again::Yes, call, |row| read_states(row, &holders)).await?;
        let mut answers: Vec<_> =
            order.iter().zip(states).map(|((i, due), state)| (*i, Ok(self.renewed(due, state)))).collect();
        answers.sort_by_key(|(i, _)| *i);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }

    fn renewed(&self, renewal: &Renewal, state: State) -> Renewed {
        let holder = renewal.ticket.holder;
        match state {
            State::Held(token) => {
                // In case the push was lost.
                self.shared.inbox.settle(holder, Wake::Held(token));
                Renewed::Held(Grant { token, lease: renewal.lease })
            }
            State::Waiting(token, retry_after) => {
                Renewed::Waiting(Place { token: Some(token), lease: renewal.waiter_lease, retry_after })
            }
            State::None(_) => {
                self.shared.inbox.settle(holder, Wake::Ask);
                Renewed::NotHeld
            }
        }
    }

    /// Lifts the counter behind an entry that holds.
    pub(super) async fn lift(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        let values = vec![
            Value::Text(ticket.name.encoded().into_owned()),
            Value::Blob(blob(ticket.holder)),
            Value::Big(token.get()),
        ];
        self.one(Again::Yes, Call::new(&self.shared.sql.raise, values), |row| {
            let raised: bool = row.try_get(0).map_err(explain)?;
            Ok(if raised { Raise::Raised } else { Raise::NotHeld })
        })
        .await
    }
}
