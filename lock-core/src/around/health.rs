//! Whether a store can be used.

use std::time::Duration;

use crate::client::Locks;
use crate::error::{Error, ErrorKind, Result};
use crate::holder::HolderId;

/// The name whose lock a check takes begins with this.
const NAME: &str = "onelock.check/";

/// What [`Locks::check`] found: the store can be read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// How long the answer to a read took.
    pub read: Duration,
    /// How long it took to acquire a lock that nobody else asks for, and to release it.
    pub cycle: Duration,
}

impl Locks {
    /// Looks at the line of a random name, takes its lock and gives it back.
    ///
    /// # Errors
    /// An error of the store: it cannot be reached, refuses the credentials, or takes no writes.
    ///
    /// # Cancel safety
    /// Safe: the lock is given back in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let health = locks.check().await?;
    /// println!("read in {:?}, acquired and released in {:?}", health.read, health.cycle);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn check(&self) -> Result<Health> {
        let name = format!("{NAME}{}", HolderId::random()?.to_hex());
        let began = self.clock().now();
        self.inspect(&name).await?;
        let looked = self.clock().now();
        let Some(guard) = self.mutex(&name)?.auto_renew(false).try_acquire().await? else {
            let text = format!("`{name}`, which nobody else asks for, is busy");
            return Err(Error::new(ErrorKind::Protocol, text).at(&self.info().address));
        };
        guard.release().await?;
        let released = self.clock().now();
        Ok(Health { read: looked.saturating_since(began), cycle: released.saturating_since(looked) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::{Clock, TokioClock};
    use crate::memory::{MemoryBackend, MemoryStore};

    #[tokio::test(start_paused = true)]
    async fn a_store_that_works_is_healthy_and_a_closed_client_is_not() {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let store = MemoryStore::new(Arc::clone(&clock));
        let locks = Locks::builder(Arc::new(MemoryBackend::new(&store))).clock(clock).build().unwrap();
        locks.check().await.unwrap();
        assert_eq!(store.names(), 0, "nothing is left");
        locks.close(Duration::from_secs(1)).await.unwrap();
        assert_eq!(locks.check().await.unwrap_err().kind(), ErrorKind::Closed);
    }
}
