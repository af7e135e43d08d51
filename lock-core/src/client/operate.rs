//! The line of a name for people: who holds and who waits, which names are in use, and the removal of an entry.

use std::sync::Arc;

use crate::backend::{Backend, Release};
use crate::client::Locks;
use crate::error::Result;
use crate::name::{LockName, check_prefix};
use crate::snapshot::{Listing, Page, Snapshot};
use crate::token::FencingToken;

impl Locks {
    /// Who holds and who waits.
    ///
    /// # Errors
    /// An error of the store.
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let guard = locks.mutex("orders/42")?.note("worker 7")?.acquire().await?;
    /// let line = locks.inspect("orders/42").await?;
    /// assert_eq!(line.holders[0].note.as_str(), "worker 7");
    /// assert_eq!(line.holders[0].token, guard.token()?);
    /// assert!(line.waiters.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<Snapshot> {
        self.client.inspect(LockName::new(name)?).await
    }

    /// The names in use that start with `prefix`, a page at a time.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`](crate::ErrorKind::InvalidName), [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported), or an error of the store.
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use onelock::Page;
    /// let _one = locks.mutex("orders/1")?.acquire().await?;
    /// let _two = locks.mutex("orders/2")?.acquire().await?;
    /// let _other = locks.mutex("users/1")?.acquire().await?;
    /// let listing = locks.list("orders/", &Page::first(100)?).await?;
    /// let names: Vec<_> = listing.names.iter().map(|listed| listed.name.as_str()).collect();
    /// assert_eq!(names, ["orders/1", "orders/2"]);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        check_prefix(prefix)?;
        self.client.open()?;
        self.client.capabilities.require(self.client.capabilities.list, "list", &self.client.info.scheme)?;
        let (prefix, page) = (prefix.to_owned(), page.clone());
        self.client.ask(|backend| async move { backend.list(&prefix, &page).await }).await
    }

    /// Removes the entry with exactly this token, holder or waiter, of any client. A holder learns of it at its next
    /// renewal; a resource that checks tokens refuses it from the next holder's first write on.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`](crate::ErrorKind::InvalidName), or an error of the store.
    ///
    /// # Cancel safety
    /// The entry may or may not be gone.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use onelock::Release;
    /// let stuck = locks.mutex("nightly")?.acquire().await?;
    /// let seen = locks.inspect("nightly").await?.holders[0].token;
    /// assert_eq!(locks.evict("nightly", seen).await?, Release::Released);
    /// assert_eq!(locks.evict("nightly", seen).await?, Release::NotHeld); // it was that holder only
    /// # drop(stuck);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn evict(&self, name: impl AsRef<str>, token: FencingToken) -> Result<Release> {
        let name = LockName::new(name)?;
        self.client.open()?;
        let raw = self.client.settings.token_epoch.open(token);
        let evict = |backend: Arc<dyn Backend>| async move {
            // Whether the store's numbers carry the epoch is not known here, and no store has both numbers.
            match (backend.evict(&name, token).await?, raw) {
                (Release::NotHeld, Some(raw)) => backend.evict(&name, raw).await,
                (answer, _) => Ok(answer),
            }
        };
        self.client.ask(evict).await
    }
}
