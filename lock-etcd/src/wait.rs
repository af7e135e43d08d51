//! Waiting: watch the entries that keep one waiting, read once that they are there, and read again when one of them is gone.
//!
//! What is read may be as old as the event that it follows: it comes from the same member, without asking the others.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::select_all;
use onelock_core::{Result, Ticket, Wake};

use crate::entries::Entries;
use crate::keys::Keys;
use crate::line::Waiter;
use crate::watches::{View, Watches};

/// Waits until the entry holds or is gone. It can be dropped at any await and begun anew.
pub(crate) async fn wait(
    keys: &Keys,
    watches: &Arc<Watches>,
    entries: &Entries,
    ticket: &Ticket,
) -> Result<Wake> {
    // The answer to a renewal has it.
    let Some(token) = ticket.token else { return Ok(Wake::Ask) };
    let span = keys.line(&ticket.name);
    let key = span.entry(ticket.mode, ticket.holder);
    let waiter = Waiter { span, key, mode: ticket.mode, number: token.get() };
    let (view, ahead) = entries.get(ticket.holder).map(|own| (own.view, own.ahead)).unwrap_or_default();
    let (mut view, mut ahead) = (view.lock().await, ahead.unwrap_or_default());
    let view = &mut *view;
    view.seen = view.seen.max(waiter.number);
    let woken = async {
        loop {
            if view.settled {
                let gone = select_all(view.watched.iter_mut().map(|watch| watch.gone().boxed())).await.0?;
                // What is watched stays so while it is read who is left.
                view.watched.retain(|watch| !watch.is_gone());
                (view.settled, view.seen, ahead) = (false, view.seen.max(gone), Arc::default());
            } else {
                let new = ahead.iter().filter(|blocker| !view.is_watched(blocker));
                let new: Vec<_> = new.map(|blocker| watches.watch(blocker)).collect();
                view.watched.extend(new);
            }
            for watch in &mut view.watched {
                view.seen = view.seen.max(watch.stands().await?);
            }
            // In a place of its own: a waiter keeps no room for requests while it waits.
            let read = Box::pin(waiter.ahead(&watches.cluster, &ahead, view.seen)).await?;
            let Some((revision, read)) = read else { return Ok(Wake::Ask) };
            // Unless its holder has joined again since.
            entries.change(ticket.holder, |own| {
                if own.number == waiter.number {
                    own.ahead = Some(Arc::clone(&read));
                }
            });
            ahead = read;
            view.watched.retain(|watch| ahead.contains(&watch.blocker));
            if ahead.is_empty() {
                return Ok(Wake::Held(token));
            }
            if ahead.iter().all(|blocker| view.is_watched(blocker)) {
                view.settled = true;
                for watch in &mut view.watched {
                    view.settled &= watch.is_prompt(revision);
                }
            }
        }
    };
    let woken = woken.await;
    if woken.is_err() {
        *view = View::default();
    }
    woken
}
