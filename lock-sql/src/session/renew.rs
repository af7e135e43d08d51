//! Renewing: a session that holds shows that its client lives; of those that wait the server is asked whether they do.

use std::sync::Arc;

use futures_util::future::{FutureExt as _, join_all};
use onelock_core::{ErrorKind, Grant, Place, Renewal, Renewed, Result};
use tokio::time::timeout;

use super::backend::{Entry, SessionStore, gone, gone_by};
use super::dialect::{Ask, Dialect};
use super::sessions::silent;

impl<D: Dialect> SessionStore<D> {
    pub(super) async fn renew_all(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let found: Vec<_> = due.iter().map(|renewal| (renewal, self.find(&renewal.ticket))).collect();
        let waits =
            |entry: &Arc<Entry<D::Conn>>| entry.token.get().is_none().then_some((entry.id, entry.wish.key));
        let asked: Vec<_> = found.iter().filter_map(|(_, entry)| entry.as_ref().and_then(waits)).collect();
        // A session that waits is not idle: its lease begins when it holds, so it lasts from any moment at which it waited.
        let waiting = self.sessions.waiting(asked).shared();
        // All are answered together: one without an answer must not keep the others from theirs until their deadlines.
        let patience = due.iter().map(|renewal| renewal.lease / 2).min().unwrap_or_default();
        let answers = found.into_iter().map(async |(renewal, entry)| {
            let Some(entry) = entry else { return Ok(Renewed::NotHeld) };
            let answer = async {
                if let Some((id, _)) = waits(&entry)
                    && waiting.clone().await?.contains(&id)
                {
                    return Ok(Renewed::Waiting(Place::new(None, renewal.waiter_lease)));
                }
                self.beat(renewal, &entry).await
            };
            timeout(patience, answer).await.unwrap_or_else(|_| Err(silent()))
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
