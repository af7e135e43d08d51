//! Waiting. The server notifies nobody, so a client polls, with one request over one connection for all its waiters.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use onelock_core::{FencingToken, HolderId, Result, Ticket, Wake};

use super::line::Cells;
use super::pool::{Answer, Client};
use super::sql::{Value, list};
use crate::inbox::{Poll, Polled};
use crate::pool::Lane;
use crate::value::blob;

/// The pause after a line has moved.
pub(super) const FIRST: Duration = Duration::from_millis(2);

/// How many entries one request asks for.
const ENTRIES: usize = 512;

/// Asks for those who wait.
pub(super) struct Waiters(pub(super) Arc<Client>);

impl Poll for Waiters {
    async fn ask(&self, waiting: &[Ticket]) -> Result<Vec<Polled>> {
        let mut answers = Vec::with_capacity(waiting.len());
        for part in waiting.chunks(ENTRIES) {
            let holders = list(part.iter().map(|ticket| blob(ticket.holder)));
            let sql = self.0.sql.poll.fill(&[("holders", Value::Part(&holders))]);
            let found = self.0.polls.ask(Lane::Verb, &sql, read).await?;
            answers.extend(part.iter().map(|ticket| match found.get(&ticket.holder) {
                Some((token, ahead)) if Some(*token) == ticket.token => match ahead {
                    0 => Polled::Wake(Wake::Held(*token)),
                    ahead => Polled::Waits(*ahead),
                },
                _ => Polled::Wake(Wake::Ask),
            }));
        }
        Ok(answers)
    }
}

/// The number of each entry that is there, and how many have to leave before it holds.
fn read(answer: &Answer) -> Result<HashMap<HolderId, (FencingToken, u32)>> {
    let row = |row: Cells<'_>| {
        Ok((row.holder(0)?, (row.token(1)?, u32::try_from(row.int(2)?).unwrap_or(u32::MAX))))
    };
    answer.rows.iter().map(Cells).map(row).collect()
}
