//! The task that listens for promotions, on one channel for each client.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use onelock_core::{HolderId, Result};
use sqlx::postgres::{PgListener, PgNotification, PgPoolOptions};
use sqlx::{Executor as _, Row as _};
use tokio::time::timeout;

use super::client::Client;
use super::connect::{PRIMARY, options};
use super::reply::read_wake;
use crate::inbox::Inbox;
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

/// How listening ended.
enum Ending {
    /// The connection was lost.
    Lost,
    /// Two connections met the same session of the server.
    Pooled,
}

/// Listens for ever, reconnecting when it must.
pub(super) async fn listen(client: Arc<Client>, inbox: Arc<Inbox>) {
    let mut pause = AGAIN.0;
    loop {
        let end = unharmed(listen_once(&client, &inbox)).await;
        // No notifications any more; the client polls meanwhile. New connections may lead somewhere else.
        client.pool.server.set_direct(false);
        let listened = client.channel.listens.swap(false, Ordering::AcqRel);
        inbox.changed.notify_one();
        client.channel.tried.notify_one();
        if listened {
            inbox.connection_lost();
        }
        pause = match end {
            Ok(Ending::Pooled) => POOLED,
            _ if listened => AGAIN.0,
            _ => (pause * 2).min(AGAIN.1),
        };
        tokio::time::sleep(pause).await;
    }
}

/// Listens until the connection is lost.
async fn listen_once(client: &Client, inbox: &Inbox) -> Result<Ending, sqlx::Error> {
    let config = &client.pool.server.config;
    let limit = config.connect_timeout + config.request_timeout;
    // A server that stalls must not hold this up for ever.
    let Ok(begun) = timeout(limit, begin(client)).await else { return Ok(Ending::Lost) };
    let Some(mut listener) = begun? else { return Ok(Ending::Pooled) };
    // That the sessions were two proves nothing: a busy pooler has several. Through one that gives each transaction
    // a session of its choice the proof never arrives. One for each connection: a session of a pooler still listens for the
    // client that had it before.
    let Ok(proof) = HolderId::random().map(HolderId::to_hex) else { return Ok(Ending::Lost) };
    let mut patience = PROOF.0;
    prove(client, &proof).await;
    loop {
        let listens = client.channel.listens();
        match timeout(if listens { PING } else { patience }, listener.try_recv()).await {
            Ok(received) => match received? {
                Some(notification) => deliver(client, inbox, &notification, &proof),
                None => return Ok(Ending::Lost),
            },
            Err(_) if !listens => {
                client.channel.tried.notify_one();
                patience = (patience * 2).min(PROOF.1);
                prove(client, &proof).await;
            }
            Err(_) if !inbox.is_waited_for(None) => client.pool.reap(),
            // A connection whose other end is gone without a word, or takes no writes any more, would be silent for ever.
            Err(_) => {
                let ping = timeout(limit, listener.fetch_one(PRIMARY)).await;
                let Ok(Ok(true)) = ping.map(|row| row?.try_get(0)) else { return Ok(Ending::Lost) };
            }
        }
    }
}

/// Takes in a notification. What is not understood, or comes through another channel, is not ours.
fn deliver(client: &Client, inbox: &Inbox, notification: &PgNotification, proof: &str) {
    if notification.channel() != client.channel.name {
        return;
    }
    if let Some((holder, wake)) = read_wake(notification.payload()) {
        inbox.notify(holder, wake);
    } else if notification.payload() == proof && !client.channel.listens.swap(true, Ordering::AcqRel) {
        client.pool.server.set_direct(true);
        // Waiters ask for what was promoted before; from now on requests name our channel.
        inbox.ask_all();
        client.channel.tried.notify_one();
    }
}

/// A connection that listens; none behind a pooler that was noticed.
async fn begin(client: &Client) -> Result<Option<PgListener>, sqlx::Error> {
    let options = options(&client.pool.server.config).await?;
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.eager_reconnect(false);
    // Whether another connection, open at the same time, is served by the same session: then there is a pooler between,
    // and it need not be asked to listen. A pooler that is busy just then may serve them by two: so they are asked twice.
    for _ in 0..2 {
        let here: i32 = listener.fetch_one(sqlx::raw_sql(SESSION)).await?.try_get(0)?;
        let call = client.schema.call(SESSION, []);
        let there = client.pool.ask(Lane::Verb, &call, |answer| answer.one()).await;
        if there.is_ok_and(|(there,): (i32,)| there == here) {
            return Ok(None);
        }
    }
    listener.listen(&client.channel.name).await?;
    Ok(Some(listener))
}

/// Sends a notification to ourselves. Where it cannot be sent there is no proof either.
async fn prove(client: &Client, proof: &str) {
    let values = [client.channel.name.clone(), proof.to_owned()];
    let call = client.schema.call("SELECT pg_notify($1, $2)", values);
    let _ = client.pool.ask(Lane::Verb, &call, |_| Ok(())).await;
}
