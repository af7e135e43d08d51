//! Waiting: watch the entries that keep one waiting, read once that they are there, and read again when one of them is gone.
//!
//! What is read may be as old as the event that it follows: it comes from the same member, without asking the others.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::select_all;
use onelock_core::{FencingToken, HolderId, Result, Ticket, Wake};

use crate::entries::Entries;
use crate::keys::Keys;
use crate::line::{self, Waiter};
use crate::watches::{View, Watches};

/// The longest pause before a waiter asks again that could not be served.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Waits until the entry holds or is gone. An outage does not end it: that is the client's to decide.
pub(crate) async fn wait(
    keys: &Keys,
    watches: &Arc<Watches>,
    entries: &Entries,
    ticket: &Ticket,
) -> Result<Wake> {
    let mut pause = Duration::from_millis(20);
    loop {
        match once(keys, watches, entries, ticket).await {
            Err(error) if error.is_retryable() => {}
            answer => return answer,
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn once(keys: &Keys, watches: &Arc<Watches>, entries: &Entries, ticket: &Ticket) -> Result<Wake> {
    let span = keys.line(&ticket.name);
    let key = span.entry(ticket.mode, ticket.holder);
    let number = match ticket.token {
        Some(token) => Some(token.get()),
        None => line::read_number(watches.cluster(), &key).await?,
    };
    let Some(number) = number else { return Ok(Wake::Ask) };
    let waiter = Waiter { span, key, mode: ticket.mode, number };
    let own = entries.get(ticket.holder);
    let view = own.as_ref().map(|own| Arc::clone(&own.view)).unwrap_or_default();
    let mut view = view.lock().await;
    if view.seen < number {
        *view = View {
            ahead: own.and_then(|own| own.ahead).unwrap_or_default(),
            seen: number,
            ..View::default()
        };
    }
    let held = until_it_holds(&mut view, watches, entries, ticket.holder, &waiter).await;
    if held.is_err() {
        *view = View::default();
    }
    if held? { FencingToken::new(number).map(Wake::Held) } else { Ok(Wake::Ask) }
}

/// Ends when the entry holds, or is gone (false). It can be dropped at any await and begun anew.
async fn until_it_holds(
    view: &mut View,
    watches: &Arc<Watches>,
    entries: &Entries,
    holder: HolderId,
    waiter: &Waiter,
) -> Result<bool> {
    loop {
        if view.settled {
            let gone = select_all(view.watched.iter_mut().map(|watch| watch.gone().boxed())).await.0?;
            // What is watched stays so while it is read who is left.
            view.watched.retain(|watch| !watch.is_gone());
            (view.settled, view.seen, view.ahead) = (false, view.seen.max(gone), Arc::default());
        } else {
            view.watched.retain(|watch| view.ahead.contains(&watch.blocker));
            let new = view.ahead.iter().filter(|blocker| !view.is_watched(blocker));
            let new: Vec<_> = new.map(|blocker| watches.watch(blocker)).collect();
            view.watched.extend(new);
        }
        for watch in &mut view.watched {
            view.seen = view.seen.max(watch.stands().await?);
        }
        // In a place of its own: a waiter keeps no room for requests while it waits.
        let read = Box::pin(waiter.ahead(watches.cluster(), &view.ahead, view.seen)).await?;
        let Some((revision, read)) = read else { return Ok(false) };
        entries.change(holder, |own| own.ahead = Some(Arc::clone(&read)));
        view.ahead = read;
        if view.ahead.is_empty() {
            return Ok(true);
        }
        if view.ahead.iter().all(|blocker| view.is_watched(blocker)) {
            view.watched.retain(|watch| view.ahead.contains(&watch.blocker));
            view.settled = true;
            for watch in &mut view.watched {
                view.settled &= watch.is_prompt(revision);
            }
        }
    }
}
