//! What the user holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::acquire::Handle;
use super::cancel_safe::renew_one;
use super::hold::Hold;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::holder::HolderId;
use crate::mode::Mode;
use crate::name::LockName;
use crate::token::FencingToken;

pub use crate::model::loss::LossReason;

/// A held lock. Dropping it gives the lock back in the background; [`Guard::release`] is the way to know.
///
/// Between the check and what follows it a process can be stopped for longer than the lease: only a resource that
/// compares [`Guard::token`] is safe then.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> onelock::Result<()> {
/// # let locks = onelock::connect("memory://").await?;
/// let guard = locks.mutex("orders/42")?.acquire().await?;
/// let receipt = guard.run(async { "paid" }).await?; // stopped before the lease can run out
/// guard.release().await?; // or drop: released in the background
/// # assert_eq!(receipt, "paid");
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping the guard releases the lock"]
#[derive(Debug)]
pub struct Guard {
    pub(super) hold: Arc<Hold>,
    /// Whether it has stepped out already: a release under way.
    pub(super) out: bool,
    /// On its way to a caller on another runtime.
    pub(super) away: AtomicBool,
}

impl Guard {
    /// The name.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// assert_eq!(guard.name().as_str(), "orders/42");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.handle().entry.ticket().name
    }

    /// The mode in which it holds the lock.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let guard = locks.rwlock("orders")?.read().acquire().await?;
    /// assert_eq!(guard.mode(), onelock::Mode::Shared);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.entry().ticket().mode
    }

    /// The id of the entry in the store. A client that knows it can release the entry.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let (a, b) = (locks.mutex("a")?.acquire().await?, locks.mutex("b")?.acquire().await?);
    /// assert_ne!(a.holder(), b.holder());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn holder(&self) -> HolderId {
        self.handle().entry.ticket().holder
    }

    /// The fencing token: pass it to every resource the lock protects.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) once the lock is lost;
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on a store that declares no
    /// [`fencing`](crate::Capabilities::fencing).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// let sql = format!("UPDATE orders SET paid = true, token = {0} WHERE id = 42 AND token <= {0}", guard.token()?);
    /// # let _ = sql;
    /// # Ok(())
    /// # }
    /// ```
    pub fn token(&self) -> Result<FencingToken> {
        self.check()?;
        let Handle { client, entry } = self.handle();
        client.capabilities.require(client.capabilities.fencing, "fencing", &client.info.scheme)?;
        entry.token().ok_or_else(|| self.lost_error(LossReason::NotHeld))
    }

    /// Whether the lock is held now: compares the clock with the deadline at this call. Once false it stays false.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// for part in ["a", "b"] {
    ///     if !guard.is_held() {
    ///         break; // between two parts: what is lost stays lost
    ///     }
    ///     println!("{part}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held().is_ok()
    }

    /// Why it is not held any more; `None` while it is held.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use onelock::LossReason;
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// assert_eq!(guard.loss(), None);
    /// locks.close(std::time::Duration::from_secs(1)).await?;
    /// assert_eq!(guard.loss(), Some(LossReason::Closed));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.held().err()
    }

    /// An error once it is lost.
    pub(crate) fn check(&self) -> Result<()> {
        self.held().map(|_| ()).map_err(|reason| self.lost_error(reason))
    }

    /// How long the lock is still held if no renewal succeeds; zero once lost.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// assert!(guard.remaining().as_secs() > 20); // of a lease of 30 s, less the margin
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.held().map_or(Duration::ZERO, |end| end.saturating_since(self.handle().client.clock.now()))
    }

    /// When the hold ends if no renewal succeeds, on the client's clock; in the past once lost.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let guard = locks.mutex("orders")?.acquire().await?;
    /// assert!(guard.deadline() > locks.clock().now());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn deadline(&self) -> Timestamp {
        self.held().unwrap_or_default()
    }

    /// The lease the store gave last: at least what was asked, or the waiter's lease until a hold that was waited for is renewed.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// # use std::time::Duration;
    /// let guard = locks.mutex("orders")?.ttl(Duration::from_secs(20))?.acquire().await?;
    /// assert!(guard.ttl() >= Duration::from_secs(20));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.handle().entry.granted()
    }

    /// Another guard of the same hold, without a request: the lock is released when the last of its guards goes.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) once the lock is lost.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let outer = locks.mutex("orders/42")?.acquire().await?;
    /// let inner = outer.reenter()?;
    /// outer.release().await?; // steps out only
    /// assert!(inner.is_held());
    /// inner.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn reenter(&self) -> Result<Self> {
        self.hold.enter()
    }

    /// Asks the store for a lease of `lease` from now on; renewals keep asking for it.
    ///
    /// A shorter lease than before takes effect when the one before it has run out.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLease`](crate::ErrorKind::InvalidLease); [`ErrorKind::Lost`](crate::ErrorKind::Lost); or an
    /// error of the store: then nothing has changed for this guard.
    ///
    /// # Cancel safety
    /// Safe: the lease in the store may be longer than this guard knows.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use std::time::Duration;
    /// let guard = locks.mutex("orders/42")?.auto_renew(false).acquire().await?;
    /// guard.extend(Duration::from_secs(120)).await?;
    /// assert!(guard.remaining() > Duration::from_secs(60));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn extend(&self, lease: Duration) -> Result<()> {
        let client = self.client();
        self.extend_to(client.capabilities.round_lease(lease, client.settings.max_ttl)?).await
    }

    /// The same for a lease that the store has given, whatever this client may ask for.
    pub(crate) async fn extend_to(&self, lease: Duration) -> Result<()> {
        let Handle { client, entry } = self.handle();
        self.check()?;
        let sent = client.clock.now();
        let answer = renew_one(client, entry.renewal_for(lease)).await;
        if answer.is_ok() {
            entry.set_lease(lease);
        }
        let now = client.clock.now();
        entry.renewed(sent, now, &answer);
        client.settle(entry, now);
        answer.map_err(|error| error.during("extend").at(&client.info.address))?;
        self.check()
    }

    /// Gives the lock back and waits until the store says so. While the hold has other guards, only this one ends.
    ///
    /// While the store cannot be reached it goes on asking for as long as the lease could last; put a timeout around it
    /// to leave that to the background.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the lock was no longer held: another may have worked at the same
    /// time. An error of the store when it did not answer until the lease was over.
    ///
    /// # Cancel safety
    /// The release goes on in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// guard.release().await?;
    /// assert!(locks.inspect("orders/42").await?.holders.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release(mut self) -> Result<()> {
        self.out = true;
        if self.hold.guards.fetch_sub(1, Ordering::AcqRel) > 1 {
            return Ok(());
        }
        self.give_back().await
    }
}
