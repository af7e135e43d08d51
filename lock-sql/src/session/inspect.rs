//! Looking at a lock, and ending its holder.

use onelock_core::{FencingToken, LockName, Release, Result, Snapshot};

use super::backend::SessionStore;
use super::dialect::{Answer, Ask, Dialect};

impl<D: Dialect> SessionStore<D> {
    /// Those who hold. Of those who wait the server shows neither number nor note.
    pub(super) async fn holders(&self, name: &LockName) -> Result<Snapshot> {
        let mut holders = match self.sessions.aside(Ask::Holders(self.key(name))).await? {
            Answer::Holders(holders) => holders,
            _ => Vec::new(),
        };
        holders.sort_by_key(|holder| holder.token);
        Ok(Snapshot::new(name.clone(), holders, Vec::new()))
    }

    pub(super) async fn end_holder(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        let Answer::Done(true) = self.sessions.aside(Ask::Evict(self.key(name), token)).await? else {
            return Ok(Release::NotHeld);
        };
        // Not every server tells a client that its session was ended by somebody's order.
        self.entries().retain(|_, entry| entry.name != *name || entry.token.get() != Some(&token));
        Ok(Release::Released)
    }
}
