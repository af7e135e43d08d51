//! Waiting: watch the entries that keep one waiting, read once that they are there, and read again when one of them is gone.
//!
//! What is read may be as old as the event that it follows: it comes from the same member, without asking the others.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::select_all;
use onelock_core::{Mode, Result, Ticket, Wake};

use crate::client::Cluster;
use crate::entries::{Entries, Own};
use crate::keys::{Blocker, Keys, Span};
use crate::line;
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
    let (span, number) = (keys.line(&ticket.name), token.get());
    let own = entries.get(ticket.holder).filter(|own| own.number == number);
    let mut own = own.unwrap_or_else(|| Own::new(span.entry(ticket.mode, ticket.holder)));
    own.number = number;
    let view = Arc::clone(&own.view);
    let view = &mut *view.lock().await;
    let woken = async {
        loop {
            if view.settled {
                select_all(view.watched.iter_mut().map(|watch| watch.gone().boxed())).await.0?;
                // What is watched stays watched while the rest is read.
                (view.settled, own.ahead) = (false, None);
            }
            let ahead = own.ahead.iter().flat_map(|ahead| ahead.iter());
            let new = ahead.filter(|blocker| !view.is_watched(blocker));
            let new: Vec<_> = new.map(|blocker| watches.watch(blocker)).collect();
            view.watched.extend(new);
            let mut seen = number;
            for watch in &mut view.watched {
                seen = seen.max(watch.stands().await?);
            }
            // In a place of its own: a waiter keeps no room for requests while it waits.
            let read = Box::pin(read(&watches.cluster, &span, ticket.mode, &mut own, seen)).await?;
            let Some((revision, ahead)) = read else { return Ok(Wake::Ask) };
            // Unless its holder has joined again since.
            entries.change(ticket.holder, |own| {
                if own.number == number {
                    own.ahead = Some(Arc::clone(&ahead));
                }
            });
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

/// Reads what keeps it waiting, nothing when it holds, at a revision of `seen` or later, which is returned, too; `None` when it is
/// gone.
async fn read(
    cluster: &Arc<Cluster>,
    span: &Span,
    mode: Mode,
    own: &mut Own,
    seen: i64,
) -> Result<Option<(i64, Arc<[Blocker]>)>> {
    loop {
        let (revision, answers) = line::read_since(cluster, |from| own.reads(span, mode, from), seen).await?;
        if own.learn(span, mode, answers).is_none() {
            return Ok(None);
        }
        if let Some(ahead) = &own.ahead {
            return Ok(Some((revision, Arc::clone(ahead))));
        }
    }
}
