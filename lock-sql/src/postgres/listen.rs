//! The task that listens, and the one that looks where listening does not work.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{FencingToken, Wake};
use sqlx::Row as _;
use sqlx::postgres::{PgListener, PgPoolOptions};

use super::Shared;
use super::pool::Again;

/// How long a look takes to come while something changes, and at most while nothing does.
const LOOK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// How long to wait before listening again, at first and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Listens for ever, reconnecting when it must.
pub(super) async fn listen(shared: Arc<Shared>) {
    let mut pause = AGAIN.0;
    loop {
        // An error here means no notifications; the looks serve meanwhile.
        let listened = listen_once(&shared).await.unwrap_or(false);
        shared.inbox.tried.notify_one();
        shared.inbox.deaf();
        // What came in between is lost.
        shared.inbox.ring_all();
        pause = if listened { AGAIN.0 } else { (pause * 2).min(AGAIN.1) };
        tokio::time::sleep(pause).await;
    }
}

/// Listens until the connection is lost; whether it heard anything.
async fn listen_once(shared: &Shared) -> Result<bool, sqlx::Error> {
    let options = shared.pool.options().clone();
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.eager_reconnect(false);
    listener.listen(&shared.inbox.channel).await?;
    // Promotions told before this moment went unheard.
    shared.inbox.ring_all();
    // Behind a pooler that gives each transaction another connection this never arrives.
    let proof = shared.inbox.proof();
    let build = || sqlx::query("SELECT pg_notify($1, $2)").bind(&shared.inbox.channel).bind(&proof);
    let told = shared.pool.fetch(Again::Yes, build).await.is_ok();
    shared.inbox.tried.notify_one();
    if !told {
        return Ok(false);
    }
    while let Some(notification) = listener.try_recv().await? {
        shared.inbox.deliver(notification.payload());
    }
    Ok(shared.inbox.hears())
}

/// Where no notification comes through, looks for all that wait with one request.
pub(super) async fn look(shared: Arc<Shared>) {
    let mut pause = LOOK.0;
    loop {
        let waiting = if shared.inbox.hears() { Vec::new() } else { shared.inbox.waiting() };
        if waiting.is_empty() {
            pause = LOOK.0;
            shared.inbox.bell.notified().await;
            // Where notifications come through the first one is at hand soon.
            tokio::time::sleep(LOOK.0).await;
            continue;
        }
        let names: Vec<_> = waiting.iter().map(|(_, slot)| slot.name.encoded()).collect();
        let holders: Vec<_> =
            waiting.iter().map(|(holder, _)| holder.as_u128().to_be_bytes().to_vec()).collect();
        let build = || shared.query(&shared.sql.watched).bind(&names).bind(&holders);
        let mut changed = false;
        // When the server cannot be asked, those who wait have renewals to tell them.
        if let Ok(rows) = shared.pool.fetch(Again::Yes, build).await {
            for ((_, slot), row) in waiting.iter().zip(&rows) {
                let wake = match row.try_get::<Option<i64>, _>(0) {
                    Ok(Some(0)) => continue,
                    Ok(Some(number)) => FencingToken::new(number).map_or(Wake::Ask, Wake::Held),
                    _ => Wake::Ask,
                };
                slot.ring(wake);
                changed = true;
            }
        }
        pause = if changed { LOOK.0 } else { (pause * 3 / 2).min(LOOK.1) };
        tokio::time::sleep(pause).await;
    }
}
