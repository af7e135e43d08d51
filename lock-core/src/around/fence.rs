//! Fencing: the resource refuses writes of a holder that lost its lock without noticing.
//!
//! A token is worth what the resource makes of it. The rule is the same everywhere: a resource remembers, for each name, the
//! largest token that has written (its *watermark*), and refuses a smaller one. An equal token is the same holder again.
//! Exclusive guards raise the watermark; shared ones are compared without raising it, so that readers let each other pass;
//! permits are refused, because several holders write at once and none is the latest.

use std::collections::HashMap;
use std::fmt;

use crate::client::guard::Guard;
use crate::error::{Error, ErrorKind, Result};
use crate::mode::Mode;
use crate::name::LockName;
use crate::token::FencingToken;
use crate::toolkit::Mutex;

/// The header that carries a token over HTTP; its value is the decimal number.
///
/// ```
/// # use onelock::{FencingToken, fence};
/// let token: FencingToken = "42".parse()?;
/// assert_eq!((fence::HTTP_HEADER, token.to_string()), ("Fencing-Token", "42".to_owned()));
/// # Ok::<(), onelock::Error>(())
/// ```
pub const HTTP_HEADER: &str = "Fencing-Token";

/// The header of a guard: its name and its value.
///
/// # Errors
/// As [`Guard::token`]; [`ErrorKind::Unsupported`] for a permit.
pub fn header(guard: &Guard) -> Result<(&'static str, String)> {
    raises(guard.mode())?;
    Ok((HTTP_HEADER, guard.token()?.to_string()))
}

/// The token in a header's value.
///
/// # Errors
/// [`ErrorKind::Protocol`] when it is none.
pub fn parse_header(value: &[u8]) -> Result<FencingToken> {
    let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    digits.and_then(|text| text.parse().ok()).ok_or_else(|| {
        let text = format!("the value of the header `{HTTP_HEADER}` is no fencing token");
        Error::new(ErrorKind::Protocol, text)
    })
}

/// A write was refused: somebody with a larger token has come before.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stale {
    /// The lock.
    pub name: LockName,
    /// The token of the refused write.
    pub token: FencingToken,
    /// The watermark of the resource; on etcd and ZooKeeper the token of a later entry.
    pub newest: FencingToken,
}

impl Stale {
    /// A refusal.
    #[must_use]
    pub fn new(name: LockName, token: FencingToken, newest: FencingToken) -> Self {
        Self { name, token, newest }
    }
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, token, newest } = self;
        write!(f, "the token {token} of `{name}` is stale: the token {newest} has come since ")?;
        f.write_str("(of another store, or before a restore? then raise token_epoch)")
    }
}

impl std::error::Error for Stale {}

impl From<Stale> for Error {
    fn from(stale: Stale) -> Self {
        Self::new(ErrorKind::Stale, stale.to_string()).caused_by(stale)
    }
}

impl Error {
    /// Which token was refused, and by which watermark, for an error of kind [`ErrorKind::Stale`].
    ///
    /// ```
    /// # use onelock::{Error, FencingToken, LockName, fence::Stale};
    /// let [old, new] = [7, 8].map(|number| FencingToken::new(number).unwrap());
    /// let error = Error::from(Stale::new(LockName::new("printer")?, old, new));
    /// assert_eq!(error.stale().map(|stale| (stale.token, stale.newest)), Some((old, new)));
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn stale(&self) -> Option<&Stale> {
        std::error::Error::source(self)?.downcast_ref()
    }
}

/// What a resource does with the token of a holder in this mode: `true` to raise its watermark, `false` only to compare.
///
/// # Errors
/// [`ErrorKind::Unsupported`] for a permit.
pub fn raises(mode: Mode) -> Result<bool> {
    match mode {
        Mode::Exclusive => Ok(true),
        Mode::Shared => Ok(false),
        Mode::Permit { .. } => {
            let text = "a permit fences nothing: its holders write at the same time, and none is the latest";
            Err(Error::new(ErrorKind::Unsupported, text))
        }
    }
}

/// What a resource says whose watermark is `newest`: for a resource that keeps it elsewhere, such as in a database.
///
/// # Errors
/// [`Stale`] when the watermark is larger.
pub fn compare(name: &LockName, token: FencingToken, newest: Option<i64>) -> Result<(), Stale> {
    match newest.map(FencingToken::new) {
        Some(Ok(newest)) if newest > token => Err(Stale::new(name.clone(), token, newest)),
        // No number of a holder: nobody has written.
        _ => Ok(()),
    }
}

/// Watermarks in this process, for what only this process writes to: files, sockets, devices.
///
/// It keeps one number for each name that was ever checked; see [`Fence::forget`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> onelock::Result<()> {
/// # let clock = std::sync::Arc::new(onelock::BootClock);
/// # let store = std::sync::Arc::new(onelock::MemoryBackend::new(&onelock::MemoryStore::new(clock)));
/// # let locks = onelock::Locks::builder(store).build()?;
/// let fence = onelock::fence::Fence::in_process();
/// let guard = locks.mutex("printer")?.acquire().await?;
/// fence.check(&guard)?; // right before each write
/// # guard.release().await
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Fence {
    newest: Mutex<HashMap<LockName, FencingToken>>,
}

impl Fence {
    /// Watermarks that this process keeps.
    #[must_use]
    pub fn in_process() -> Self {
        Self::default()
    }

    /// Refuses a guard that is lost, or whose token is smaller than one that has been here.
    ///
    /// # Errors
    /// [`ErrorKind::Stale`]; what [`Guard::token`] says; [`ErrorKind::Unsupported`] for a permit.
    pub fn check(&self, guard: &Guard) -> Result<()> {
        let raise = raises(guard.mode())?;
        Ok(self.admit(guard.name(), guard.token()?, raise)?)
    }

    /// The same for a token that came from elsewhere, such as a header.
    ///
    /// # Errors
    /// [`Stale`] when a larger one has been here.
    pub fn admit(&self, name: &LockName, token: FencingToken, raise: bool) -> Result<(), Stale> {
        let mut watermarks = self.newest.lock();
        compare(name, token, watermarks.get(name).map(|newest| newest.get()))?;
        if raise {
            watermarks.insert(name.clone(), token);
        }
        Ok(())
    }

    /// Forgets the watermark of a name whose resource is gone.
    pub fn forget(&self, name: &LockName) {
        self.newest.lock().remove(name);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::clock::{Clock, TokioClock};
    use crate::memory::{MemoryBackend, MemoryStore};

    fn clients() -> [crate::Locks; 2] {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let store = MemoryStore::new(Arc::clone(&clock));
        std::array::from_fn(|_| {
            let store = Arc::new(MemoryBackend::new(&store));
            crate::Locks::builder(store).clock(Arc::clone(&clock)).build().unwrap()
        })
    }

    struct Resource {
        fence: Option<Fence>,
        value: &'static str,
    }

    impl Resource {
        fn write(&mut self, name: &LockName, token: FencingToken, value: &'static str) {
            if self.fence.as_ref().is_none_or(|fence| fence.admit(name, token, true).is_ok()) {
                self.value = value;
            }
        }
    }

    /// A holder that is stopped between its check and its write for longer than its lease.
    #[tokio::test(start_paused = true)]
    async fn a_late_writer_is_stopped_and_its_unfenced_twin_does_harm() {
        let [late, next] = clients();
        let mut fenced = Resource { fence: Some(Fence::in_process()), value: "" };
        let mut unfenced = Resource { fence: None, value: "" };
        let guard = late.mutex("n").unwrap().auto_renew(false).acquire().await.unwrap();
        let (name, token) = (guard.name().clone(), guard.token().unwrap());
        tokio::time::sleep(Duration::from_secs(60)).await;
        let newer = next.mutex("n").unwrap().acquire().await.unwrap();
        for resource in [&mut fenced, &mut unfenced] {
            resource.write(&name, newer.token().unwrap(), "of the later holder");
            resource.write(&name, token, "late");
        }
        assert_eq!((fenced.value, unfenced.value), ("of the later holder", "late"));
        let fence = fenced.fence.unwrap();
        let stale = fence.admit(&name, token, true).unwrap_err();
        let text = Error::from(stale.clone()).to_string();
        assert!(text.contains(&token.to_string()) && text.contains(&stale.newest.to_string()), "{text}");
        assert_eq!(fence.check(&guard).unwrap_err().kind(), ErrorKind::Lost);
        fence.check(&newer).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn readers_pass_each_other_and_permits_are_refused() {
        let [locks, _] = clients();
        let fence = Fence::in_process();
        let both = locks.rwlock("n").unwrap();
        let (first, second) = (both.read().acquire().await.unwrap(), both.read().acquire().await.unwrap());
        assert!(first.token().unwrap() < second.token().unwrap());
        fence.check(&second).unwrap();
        fence.check(&first).unwrap();
        let (name, token) = (first.name().clone(), first.token().unwrap());
        drop((first, second));
        fence.check(&both.write().acquire().await.unwrap()).unwrap();
        assert!(fence.admit(&name, token, false).is_err());
        fence.forget(&name);
        assert!(fence.admit(&name, token, false).is_ok());
        let permit = locks.semaphore("p", 2).unwrap().acquire().await.unwrap();
        assert_eq!(fence.check(&permit).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(header(&permit).unwrap_err().kind(), ErrorKind::Unsupported);
        assert!(compare(&name, token, Some(token.get() + 1)).is_err());
        assert!(compare(&name, token, Some(token.get())).is_ok() && compare(&name, token, None).is_ok());
    }
}
