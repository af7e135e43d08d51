//! Waiting: the notification of a promotion, which `schema/0001/3_promote.sql` decides and sends, and polls for what was sent before anybody listened, and while nobody does.

use std::sync::Arc;
use std::time::Duration;

use onelock_core::{HolderId, Result, Ticket, Wake};

use super::client::Client;
use super::reply::read_wake;
use super::sql::{array, blobs};
use crate::inbox::{Inbox, Poll, Polled};
use crate::pool::{Answer, Lane};
use crate::value::protocol;

pub(super) async fn wait(client: &Client, inbox: &Inbox, ticket: &Ticket) -> Result<Wake> {
    if !inbox.expect(ticket.holder) {
        // What was sent before that found nobody. In a box, which goes when it is answered: a wait is kept for long, and its
        // future with it.
        let first = First(inbox, ticket.holder);
        let polled = Box::pin(poll(client, std::slice::from_ref(ticket))).await?;
        std::mem::forget(first);
        if let [Polled::Wake(wake)] = polled[..] {
            inbox.settle(ticket.holder, wake);
            return Ok(wake);
        }
    }
    inbox.wait(ticket).await
}

/// The first wait for an entry. One that is dropped before it has polled leaves that to the next.
struct First<'a>(&'a Inbox, HolderId);

impl Drop for First<'_> {
    fn drop(&mut self) {
        self.0.settle(self.1, Wake::Ask);
    }
}

/// What the server says of each.
async fn poll(client: &Client, waiting: &[Ticket]) -> Result<Vec<Polled>> {
    let names = array(waiting.iter().map(|ticket| ticket.name.encoded()));
    let holders = blobs(waiting.iter().map(|ticket| ticket.holder));
    let call = client.schema.call(include_str!("sql/watched.sql"), [names, holders]);
    let answers: Vec<(Option<String>,)> = client.pool.ask(Lane::Verb, &call, Answer::all).await?;
    if answers.len() != waiting.len() {
        return Err(protocol("not as many answers as entries"));
    }
    Ok(waiting.iter().zip(answers).map(|(ticket, (answer,))| polled(answer.as_deref(), ticket)).collect())
}

/// A grant names its holder, so that no answer to another question makes one.
fn polled(answer: Option<&str>, ticket: &Ticket) -> Polled {
    match answer {
        Some("w") => Polled::Waits(1),
        answer => match answer.and_then(read_wake) {
            Some((holder, wake)) if holder == ticket.holder => Polled::Wake(wake),
            _ => Polled::Wake(Wake::Ask),
        },
    }
}

/// The pause between polls after something has changed, and the longest while nothing does.
pub(super) const POLL: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// Polls while no notification comes through.
pub(super) struct Unheard(pub(super) Arc<Client>);

impl Poll for Unheard {
    fn is_needed(&self) -> bool {
        !self.0.channel.listens()
    }

    async fn ask(&self, waiting: &[Ticket]) -> Result<Vec<Polled>> {
        poll(&self.0, waiting).await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use onelock_core::{FencingToken, LockName, Mode};

    use super::*;

    #[test]
    fn a_grant_is_read_by_its_holder_only() {
        let (own, other) = (HolderId::random().unwrap(), HolderId::random().unwrap());
        let ticket = Ticket::new(LockName::new("n").unwrap(), own, Mode::Exclusive);
        let grant = |holder: HolderId| format!("h{}8", holder.to_hex());
        let held = Wake::Held(FencingToken::new(8).unwrap());
        assert_eq!(polled(Some(&grant(own)), &ticket), Polled::Wake(held));
        assert_eq!(polled(Some("w"), &ticket), Polled::Waits(1));
        for odd in [None, Some("x"), Some("h"), Some("8"), Some(&*grant(other))] {
            assert_eq!(polled(odd, &ticket), Polled::Wake(Wake::Ask), "{odd:?}");
        }
    }
}
