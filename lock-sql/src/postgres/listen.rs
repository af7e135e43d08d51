//! The task that listens for promotions, on one channel for each client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onelock_core::{HolderId, Result};
use sqlx::postgres::{PgListener, PgNotification, PgPoolOptions};
use sqlx::{Executor as _, Row as _};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::backend::Shared;
use super::connect::options;
use super::reply::read_wake;
use crate::pool::Lane;
use crate::unharmed::unharmed;

/// Which session of the server this is.
const SESSION: &str = "SELECT pg_backend_pid()";

/// How long to wait before listening again, at first and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// How long to wait before listening again behind a pooler.
const POOLED: Duration = Duration::from_secs(60);

/// How long to wait for the proof before going on without, at first and at most.
const PROOF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// How often to see whether the connection lives, while somebody waits and no notification comes through.
const PING: Duration = Duration::from_secs(15);

/// The channel of this client.
pub(super) struct Channel {
    name: String,
    /// Whether a notification was seen to come through since the listener connected.
    listens: AtomicBool,
    /// Notified when listening was tried for the first time.
    pub(super) tried: Notify,
}

impl Channel {
    pub(super) fn new(client: HolderId) -> Self {
        let name = format!("onelock_{}", client.to_hex());
        Self { name, listens: AtomicBool::new(false), tried: Notify::new() }
    }

    /// Where the server is to notify of a promotion: nowhere while nobody listens.
    pub(super) fn address(&self) -> &str {
        if self.listens() { &self.name } else { "" }
    }

    pub(super) fn listens(&self) -> bool {
        self.listens.load(Ordering::Acquire)
    }
}

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
        // No notifications any more; the client polls meanwhile. New connections may lead somewhere else.
        shared.pool.server.set_direct(false);
        let listened = shared.channel.listens.swap(false, Ordering::AcqRel);
        shared.inbox.changed.notify_one();
        shared.channel.tried.notify_one();
        if listened {
            // What came in between is lost.
            shared.inbox.ask_all();
        }
        pause = match end {
            Ok(End::Pooled) => POOLED,
            _ if listened => AGAIN.0,
            _ => (pause * 2).min(AGAIN.1),
        };
        tokio::time::sleep(pause).await;
    }
}

/// Listens until the connection is lost.
async fn listen_once(shared: &Shared) -> Result<End, sqlx::Error> {
    // A server that stands still must not hold this up for ever.
    let Ok(begun) = timeout(shared.patience, begin(shared)).await else { return Ok(End::Lost) };
    let Some(mut listener) = begun? else { return Ok(End::Pooled) };
    // That the sessions were two proves nothing: a busy pooler has several. Through one that gives each transaction
    // a session of its choice the proof never arrives. One for each connection: a session of a pooler still listens for the
    // client that had it before.
    let Ok(proof) = HolderId::random().map(HolderId::to_hex) else { return Ok(End::Lost) };
    let mut patience = PROOF.0;
    prove(shared, &proof).await;
    loop {
        let listens = shared.channel.listens();
        match timeout(if listens { PING } else { patience }, listener.try_recv()).await {
            Ok(received) => match received? {
                Some(notification) => deliver(shared, &notification, &proof),
                None => return Ok(End::Lost),
            },
            Err(_) if !listens => {
                shared.channel.tried.notify_one();
                patience = (patience * 2).min(PROOF.1);
                prove(shared, &proof).await;
            }
            Err(_) if !shared.inbox.is_waited_for(None) => shared.pool.reap(),
            // A connection whose other end is gone without a word would be silent for ever.
            Err(_) => {
                let ping = timeout(shared.patience, listener.execute("SELECT 1")).await;
                let Ok(Ok(_)) = ping else { return Ok(End::Lost) };
            }
        }
    }
}

/// Takes in a notification. What is not understood, or comes through another channel, is not ours.
fn deliver(shared: &Shared, notification: &PgNotification, proof: &str) {
    if notification.channel() != shared.channel.name {
        return;
    }
    if let Some((holder, wake)) = read_wake(notification.payload()) {
        shared.inbox.notify(holder, wake);
    } else if notification.payload() == proof && !shared.channel.listens.swap(true, Ordering::AcqRel) {
        shared.pool.server.set_direct(true);
        // Waiters ask for what was promoted before; from now on requests name our channel.
        shared.inbox.ask_all();
        shared.channel.tried.notify_one();
    }
}

/// A connection that listens; none behind a pooler that was noticed.
async fn begin(shared: &Shared) -> Result<Option<PgListener>, sqlx::Error> {
    let options = options(&shared.pool.server.config).await?;
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.eager_reconnect(false);
    // Whether another connection, open at the same time, is served by the same session: then there is a pooler between,
    // and it need not be asked to listen. A pooler that is busy just then may serve them by two: so they are asked twice.
    for _ in 0..2 {
        let here: i32 = listener.fetch_one(sqlx::raw_sql(SESSION)).await?.try_get(0)?;
        let call = shared.schema.call(SESSION, []);
        let there = shared.pool.ask(Lane::Verb, &call, |answer| answer.one()).await;
        if there.is_ok_and(|(there,): (i32,)| there == here) {
            return Ok(None);
        }
    }
    listener.listen(&shared.channel.name).await?;
    Ok(Some(listener))
}

/// Sends a notification to ourselves. Where it cannot be sent there is no proof either.
async fn prove(shared: &Shared, proof: &str) {
    let values = [shared.channel.name.clone(), proof.to_owned()];
    let call = shared.schema.call("SELECT pg_notify($1, $2)", values);
    let _ = shared.pool.ask(Lane::Verb, &call, |_| Ok(())).await;
}
