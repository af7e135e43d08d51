//! Leaving a line: the release, the eviction, and what nobody gave back.

use std::sync::Weak;
use std::time::Duration;

use onelock_core::{Error, ErrorKind, FencingToken, HolderId, LockName, Release, Result, Ticket};

use super::keys::key;
use super::pool::{Answer, Lane, Pool};
use super::sql::Value;

/// How often a client sweeps, unless another one has: sweep.sql says so as well.
const SWEEP: Duration = Duration::from_secs(10);

pub(super) async fn release(pool: &Pool, ticket: &Ticket) -> Result<Release> {
    let (key, holder) = (key(&ticket.name), ticket.holder.as_u128().to_be_bytes());
    let values = [("name", Value::Bytes(key.as_bytes())), ("holder", Value::Bytes(&holder))];
    pool.ask(Lane::Verb, &pool.sql.release.fill(&values), left).await
}

/// In two requests. InnoDB shows a commit before it is on the disk: an entry that is only deleted is gone for a client that
/// waits behind it, and back with its holder when the server loses power just then. So first it has no holder, which
/// is on the disk when that is answered, and nobody has been let in yet.
pub(super) async fn evict(pool: &Pool, name: &LockName, token: FencingToken) -> Result<Release> {
    let (key, nobody) = (key(name), HolderId::random()?.as_u128().to_be_bytes());
    let (name, number) = (Value::Bytes(key.as_bytes()), Value::Int(token.get()));
    let values = [("name", name), ("number", number), ("nobody", Value::Bytes(&nobody))];
    pool.ask(Lane::Verb, &pool.sql.disown.fill(&values), |_| Ok(())).await?;
    pool.ask(Lane::Verb, &pool.sql.evict.fill(&values[..2]), left).await
}

fn left(answer: &Answer) -> Result<Release> {
    match answer.changed {
        0 if answer.again => {
            let text = "the connection broke; the entry is gone now, but it is not known whether this request took it";
            Err(Error::new(ErrorKind::Unavailable, text))
        }
        0 => Ok(Release::NotHeld),
        _ => Ok(Release::Released),
    }
}

/// Drops expired entries of names that nobody asks for, for as long as the client lives.
pub(super) async fn sweep(pool: Weak<Pool>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(pool) = pool.upgrade() else { return };
        if pool.open().is_err() {
            return;
        }
        // What fails is swept later, by this client or another.
        let _ = pool.ask(Lane::Verb, &pool.sql.sweep.fill(&[]), |_| Ok(())).await;
    }
}
