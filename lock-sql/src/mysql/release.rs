//! Leaving a line: the release, the eviction, and what nobody gave back.

use std::sync::Weak;
use std::time::Duration;

use onelock_core::{ErrorKind, FencingToken, HolderId, LockName, Release, Result, Ticket};

use super::keys::key;
use super::pool::{Answer, Client};
use super::sql::Value;
use crate::pool::Lane;
use crate::value::{blob, left};

/// How often a client sweeps, unless another one has: sweep.sql says so as well.
const SWEEP: Duration = Duration::from_secs(10);

pub(super) async fn release(client: &Client, ticket: &Ticket) -> Result<Release> {
    let values = [("name", Value::Bytes(key(&ticket.name))), ("holder", Value::Bytes(blob(ticket.holder)))];
    let call = client.call(include_str!("sql/release.sql"), &values);
    let released = client.verbs.ask(Lane::Verb, &call, removed).await;
    client.verbs.unanswered.released(ticket.holder, released)
}

/// In two requests. InnoDB shows a commit before it is on the disk: an entry that is only deleted is gone for a client that
/// waits behind it, and back with its holder when the server loses power just then. So first it has no holder, which
/// is on the disk when that is answered, and nobody has been let in yet.
pub(super) async fn evict(client: &Client, name: &LockName, token: FencingToken) -> Result<Release> {
    let (name, nobody) = (Value::Bytes(key(name)), Value::Bytes(blob(HolderId::random()?)));
    let values = [("name", name), ("number", Value::Int(token.get())), ("nobody", nobody)];
    client.ask(include_str!("sql/disown.sql"), &values, |_| Ok(())).await?;
    client.ask(include_str!("sql/evict.sql"), &values, removed).await
}

fn removed(answer: &Answer) -> Result<Release> {
    left(answer.changed > 0, answer.again)
}

/// Drops expired entries of names that nobody asks for, for as long as the client lives.
pub(super) async fn sweep(client: Weak<Client>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(client) = client.upgrade() else { return };
        // What fails is swept later, by this client or another.
        let swept = client.ask(include_str!("sql/sweep.sql"), &[], |_| Ok(())).await;
        if swept.is_err_and(|error| error.kind() == ErrorKind::Closed) {
            return;
        }
    }
}
