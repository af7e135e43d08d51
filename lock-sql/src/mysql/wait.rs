//! Waiting. The server notifies nobody, so a client polls, with one request over one connection for all its waiters.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use onelock_core::{Error, ErrorKind, Result, Ticket, Wake};

use super::pool::{Answer, Client};
use super::sql::{Value, list};
use crate::inbox::{Poll, Polled};
use crate::pool::Lane;
use crate::value::blob;

/// The pause after a line has moved. Timers end on whole milliseconds, so it is one to two of them.
pub(super) const FIRST: Duration = Duration::from_micros(500);

/// How many entries one request asks for.
const ENTRIES: usize = 512;

/// Polls for waiters.
pub(super) struct Waiters(pub(super) Arc<Client>);

impl Poll for Waiters {
    async fn ask(&self, waiting: &[Ticket]) -> Result<Vec<Polled>> {
        let mut answers = Vec::with_capacity(waiting.len());
        for part in waiting.chunks(ENTRIES) {
            let holders = list(part.iter().map(|ticket| blob(ticket.holder)));
            let poll = self.0.call(include_str!("sql/poll.sql"), &[("holders", Value::Part(holders))]);
            let found = self.0.polls.ask(Lane::Verb, &poll, read).await?;
            answers.extend(part.iter().map(|ticket| match (found.get(&blob(ticket.holder)), ticket.token) {
                (Some(&(number, ahead @ 0..)), Some(token)) if number == token.get() => match ahead {
                    0 => Polled::Wake(Wake::Held(token)),
                    ahead => Polled::Waits(u32::try_from(ahead).unwrap_or(u32::MAX)),
                },
                _ => Polled::Wake(Wake::Ask),
            }));
        }
        Ok(answers)
    }
}

/// The number of each entry that is there, and how many have to leave before it holds. A connection to a server that was demoted is
/// of no use any more, and one that replaces another may be to a server that lacks the entries.
fn read(answer: &Answer) -> Result<HashMap<Vec<u8>, (i64, i64)>> {
    let rows = answer.all::<(Vec<u8>, i64, i64, bool)>()?;
    if answer.again || rows.iter().any(|&(_, _, _, is_primary)| !is_primary) {
        return Err(Error::new(ErrorKind::Unavailable, "the connection broke, or the server is read-only"));
    }
    Ok(rows.into_iter().map(|(holder, number, ahead, _)| (holder, (number, ahead))).collect())
}
