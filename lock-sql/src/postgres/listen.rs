//! The task that listens, and the one that polls where listening does not work.

use std::time::Duration;

use std::sync::Arc;

use onelock_core::Result;
use sqlx::postgres::{PgListener, PgPoolOptions, PgRow};
use sqlx::{Executor as _, Row as _};

use super::backend::Shared;
use super::call::{Call, Value};
use super::inbox::seen;
use super::pool::Again;
use crate::unharmed::unharmed;

/// How long the next poll takes to come while something changes, and at most while nothing does.
const POLL: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// How long to wait before listening again, at first and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// How long to wait before listening again behind a pooler.
const POOLED: Duration = Duration::from_secs(60);

/// How long to wait for the proof before going on without, at first and at most.
const PROOF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// How often to see whether the connection lives, while somebody waits and no notification comes through.
const PING: Duration = Duration::from_secs(15);

/// How listening ended.
enum End {
    /// The connection was lost.
    Lost,
    /// Two connections met the same session of the server.
    Pooled,
}

/// Listens for ever, reconnecting when it must.
pub(super) async fn listen(shared: Arc<Shared>) {
    let mut pause = AGAIN.0;
    loop {
        let end = unharmed(listen_once(&shared)).await;
        let listens = shared.inbox.listens();
        // No notifications any more; the client polls meanwhile. New connections may lead somewhere else.
        shared.pool.set_direct(false);
        shared.inbox.listens_no_more();
        shared.inbox.tried.notify_one();
        if listens {
            // What came in between is lost.
            shared.inbox.notify_all();
        }
        pause = match end {
            Ok(End::Pooled) => POOLED,
            _ if listens => AGAIN.0,
            _ => (pause * 2).min(AGAIN.1),
        };
        tokio::time::sleep(pause).await;
    }
}

/// Listens until the connection is lost.
async fn listen_once(shared: &Shared) -> Result<End, sqlx::Error> {
    // A server that stands still must not hold this up for ever.
    let Ok(begun) = tokio::time::timeout(shared.pool.patience(), begin(shared)).await else {
        return Ok(End::Lost);
    };
    let Some(mut listener) = begun? else { return Ok(End::Pooled) };
    // That the sessions were two proves nothing: a busy pooler has several. Through one that gives each transaction
    // a session of its choice the proof never arrives.
    let (mut patience, since) = (PROOF.0, shared.inbox.next_proof());
    prove(shared).await;
    loop {
        let listens = shared.inbox.listens();
        match tokio::time::timeout(if listens { PING } else { patience }, listener.try_recv()).await {
            Ok(Ok(Some(notification))) => {
                let (channel, payload) = (notification.channel(), notification.payload());
                if shared.inbox.deliver(channel, payload, since) && !listens {
                    shared.pool.set_direct(true);
                    // Waiters ask for what was promoted before; from now on requests name our channel.
                    shared.inbox.notify_all();
                    shared.inbox.tried.notify_one();
                }
            }
            Ok(Ok(None)) => return Ok(End::Lost),
            Ok(Err(error)) => return Err(error),
            Err(_) if !listens => {
                shared.inbox.tried.notify_one();
                patience = (patience * 2).min(PROOF.1);
                prove(shared).await;
            }
            Err(_) if shared.inbox.waiting().is_empty() => shared.pool.reap(),
            // A connection whose other end is gone without a word would be silent for ever.
            Err(_) => {
                let ping = tokio::time::timeout(shared.pool.patience(), listener.execute("SELECT 1"));
                match ping.await {
                    Ok(pong) => {
                        pong?;
                    }
                    Err(_) => return Ok(End::Lost),
                }
            }
        }
    }
}

/// A connection that listens; none behind a pooler that was noticed.
async fn begin(shared: &Shared) -> Result<Option<PgListener>, sqlx::Error> {
    let options = shared.pool.connector().options().await?;
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.eager_reconnect(false);
    if is_shared(shared, &mut listener).await? {
        return Ok(None);
    }
    listener.listen(&shared.inbox.channel).await?;
    Ok(Some(listener))
}

/// Whether another connection, open at the same time, is served by the same session: then there is a pooler between,
/// and it need not be asked to listen. A pooler that is busy just then may serve them by two: so they are asked twice.
async fn is_shared(shared: &Shared, listener: &mut PgListener) -> Result<bool, sqlx::Error> {
    for _ in 0..2 {
        let row = listener.fetch_one(sqlx::raw_sql("SELECT pg_backend_pid()")).await?;
        let here: i32 = row.try_get(0)?;
        let read = |rows: &[PgRow]| Ok(rows.first().and_then(|row| row.try_get::<i32, _>(0).ok()));
        let there = shared.pool.fetch(Again::Yes, &Call::new(&shared.sql.session, Vec::new()), read).await;
        if there.ok().flatten() == Some(here) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Sends a notification to ourselves. Where it cannot be sent there is no proof either.
async fn prove(shared: &Shared) {
    let values = vec![Value::Text(shared.inbox.channel.clone()), Value::Text(shared.inbox.proof())];
    let _ = shared.pool.fetch(Again::Yes, &Call::new(&shared.sql.notify, values), |_| Ok(())).await;
}

/// Where no notification comes through, polls for all that wait with one request.
pub(super) async fn poll(shared: Arc<Shared>) {
    let mut pause = POLL.0;
    loop {
        let waiting = if shared.inbox.listens() { Vec::new() } else { shared.inbox.waiting() };
        if waiting.is_empty() {
            pause = POLL.0;
            shared.inbox.changed.notified().await;
            // Where notifications come through the first one is at hand soon.
            tokio::time::sleep(POLL.0).await;
            continue;
        }
        let names = waiting.iter().map(|(_, slot)| slot.name.encoded().into_owned()).collect();
        let holders = waiting.iter().map(|(holder, _)| holder.as_u128().to_be_bytes().to_vec()).collect();
        let call = Call::new(&shared.sql.watched, vec![Value::Texts(names), Value::Blobs(holders)]);
        let mut changed = false;
        // When the server cannot be asked, those who wait have renewals to tell them.
        let read =
            |rows: &[PgRow]| Ok(rows.iter().map(|row| row.try_get::<Option<String>, _>(0).ok()).collect());
        let polled: Result<Vec<_>> = shared.pool.fetch(Again::Yes, &call, read).await;
        if let Ok(answers) = polled {
            for ((holder, slot), answer) in waiting.iter().zip(answers) {
                if let Some(wake) = seen(answer.flatten().as_deref(), *holder) {
                    slot.notify(wake);
                    changed = true;
                }
            }
        }
        pause = if changed { POLL.0 } else { (pause * 3 / 2).min(POLL.1) };
        tokio::time::sleep(pause).await;
    }
}
