//! Renewing: a session that holds shows that its client lives; of those that wait the server is asked whether they do.

use std::sync::Arc;

use futures_util::future::join_all;
use onelock_core::{ErrorKind, Grant, Place, Renewal, Renewed, Result};

use super::backend::{Entry, SessionStore, gone, gone_by};
use super::dialect::{Ask, Dialect};

impl<D: Dialect> SessionStore<D> {
    pub(super) async fn renew_all(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let found: Vec<_> = due.iter().map(|renewal| (renewal, self.find(&renewal.ticket))).collect();
        let waits = |entry: &Arc<Entry<D::Conn>>| {
            entry.token.get().is_none().then_some((entry.id.process, entry.wish.key))
        };
        let asked: Vec<_> = found.iter().filter_map(|(_, entry)| entry.as_ref().and_then(waits)).collect();
        // A session that waits is not idle: its lease begins when it holds, so it lasts from any moment at which it waited.
        let waiting = if asked.is_empty() { Ok(Vec::new()) } else { self.sessions.waiting(asked).await };
        let answers = found.into_iter().map(async |(renewal, entry)| {
            let Some(entry) = entry else { return Ok(Renewed::NotHeld) };
            if let Some((process, _)) = waits(&entry)
                && waiting.as_ref().map_err(Clone::clone)?.contains(&process)
            {
                let place = Place::new(None, renewal.waiter_lease);
                return Ok(Renewed::Waiting(place));
            }
            self.beat(renewal, &entry).await
        });
        join_all(answers).await
    }

    /// Each session for itself, all of them at once.
    async fn beat(&self, renewal: &Renewal, entry: &Arc<Entry<D::Conn>>) -> Result<Renewed> {
        let held = entry.token.get().is_some();
        match entry.ask(&self.sessions, Ask::Beat(renewal.lease)).await {
            Ok(_) => {
                let token = *entry.token.get().ok_or_else(gone)?;
                Ok(Renewed::Held(Grant::new(token, renewal.lease)))
            }
            // The answer may come yet; until then the deadline decides.
            Err(error) if error.kind() == ErrorKind::Timeout => Err(error),
            Err(error) => {
                self.forget(entry);
                // Who has lost its place joins again.
                if held { Ok(Renewed::NotHeld) } else { Err(gone_by(error)) }
            }
        }
    }
}
