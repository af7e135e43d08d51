//! Looking at a lock, and ending its holder.

use onelock_core::{FencingToken, LockName, Release, Result, Snapshot};

use super::backend::SessionStore;
use super::dialect::{Dialect, Whose};
use super::entry::Entry;

impl<D: Dialect> SessionStore<D> {
    /// The holders. Of waiters the server shows neither number nor note.
    pub(super) async fn holders(&self, name: &LockName) -> Result<Snapshot> {
        let key = self.key(name);
        let mut holders = self.sessions.aside(move |dialect, conn| dialect.holders(conn, key)).await?;
        holders.sort_by_key(|holder| holder.token);
        Ok(Snapshot::new(name.clone(), holders, Vec::new()))
    }

    pub(super) async fn end_holder(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        let ended = Box::pin(self.sessions.end(Whose::Numbered(self.key(name), token))).await?;
        if ended == Release::Released {
            // Not every server tells a client that its session was ended by somebody's order.
            let evicted = |entry: &Entry<D>| entry.wish.request.name == *name && entry.token() == Some(token);
            self.entries.lock().retain(|_, entry| !evicted(entry));
        }
        Ok(ended)
    }
}
