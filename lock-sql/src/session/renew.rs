//! Renewing: a session that holds shows that its client lives; of those that wait the server is asked whether they do.

use std::sync::Arc;

use futures_util::future::{FutureExt as _, join_all};
use onelock_core::{ErrorKind, Place, Renewal, Renewed, Result};
use tokio::time::timeout;

use super::backend::SessionStore;
use super::dialect::{Ask, Dialect};
use super::entry::Entry;
use super::sessions::silent;

impl<D: Dialect> SessionStore<D> {
    pub(super) async fn renew_all(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let found: Vec<_> = due.iter().map(|renewal| (renewal, self.find(&renewal.ticket))).collect();
        let waiters =
            found.iter().filter_map(|(_, entry)| entry.as_ref().filter(|entry| entry.token().is_none()));
        // A session that waits is not idle: its lease begins when it holds, so it lasts from any moment at which it waited.
        let waiting =
            self.sessions.waiting(waiters.map(|entry| (entry.id, entry.wish.key)).collect()).shared();
        // All are answered together: one without an answer must not keep the others from theirs until their deadlines.
        let patience = due.iter().map(|renewal| renewal.lease / 2).min().unwrap_or_default();
        let answers = found.iter().map(async |(renewal, entry)| {
            let Some(entry) = entry else { return Ok(Renewed::NotHeld) };
            let answer = async {
                if entry.token().is_none() && waiting.clone().await?.contains(&entry.id) {
                    return Ok(Renewed::Waiting(Place::new(None, renewal.waiter_lease)));
                }
                self.beat(renewal, entry).await
            };
            timeout(patience, answer).await.unwrap_or_else(|_| Err(silent()))
        });
        join_all(answers).await
    }

    /// Each session for itself, all of them at once.
    async fn beat(&self, renewal: &Renewal, entry: &Arc<Entry<D>>) -> Result<Renewed> {
        let held = entry.token().is_some();
        // One that waited and has no number has left the queue, as after `KILL QUERY`, though its session answers.
        let renewed = entry.ask(Ask::Beat(renewal.lease)).await.and_then(|_| entry.grant(renewal.lease));
        match renewed {
            Ok(grant) => Ok(Renewed::Held(grant)),
            // The answer may come yet; until then the deadline decides.
            Err(error) if error.kind() == ErrorKind::Timeout => Err(error),
            Err(error) => {
                let error = self.given_up(entry, error).await;
                // A waiter that has lost its place joins again.
                if held { Ok(Renewed::NotHeld) } else { Err(error) }
            }
        }
    }
}
