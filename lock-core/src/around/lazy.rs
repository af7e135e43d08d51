//! A store that is connected to by the first call: [`Settings::lazy`](crate::Settings::lazy).

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use tokio::runtime::Handle;

use super::through::{Through, Way};
use crate::backend::{Backend, Info};
use crate::capabilities::Capabilities;
use crate::driver::{Context, Driver};
use crate::error::{Error, ErrorKind, Result};
use crate::toolkit::SingleFlight;
use crate::url::StoreUrl;

type Opened = Result<Arc<dyn Backend>>;

struct Lazy {
    inner: Arc<Inner>,
    opening: SingleFlight<Opened>,
    runtime: Handle,
}

struct Inner {
    driver: Driver,
    url: StoreUrl,
    context: Context,
    store: OnceLock<Arc<dyn Backend>>,
    closed: AtomicBool,
}

/// The store that `url` names, not connected to.
pub(crate) fn backend(driver: Driver, url: StoreUrl, context: Context) -> Opened {
    let runtime = Handle::try_current()
        .map_err(|_| Error::new(ErrorKind::Misuse, "a client is made inside a Tokio runtime"))?;
    let inner = Inner { driver, url, context, store: OnceLock::new(), closed: AtomicBool::new(false) };
    Ok(Arc::new(Through(Lazy { inner: Arc::new(inner), opening: SingleFlight::default(), runtime })))
}

impl Inner {
    fn open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "this client has been closed"));
        }
        Ok(())
    }

    async fn connect(self: Arc<Self>) -> Opened {
        if let Some(store) = self.store.get() {
            return Ok(Arc::clone(store));
        }
        // Nothing was sent for the verb that connects.
        let store = self.driver.open(self.url.clone(), self.context.clone()).await;
        let store = store.map_err(Error::unsent)?;
        let lacks = lacks(&self.driver.capabilities, &store.capabilities());
        let refused = match lacks {
            Some(what) => {
                let text = format!(
                    "{} as it is set up offers less than its driver declares (`{what}`): connect without `lazy`",
                    self.url.scheme
                );
                Err(Error::new(ErrorKind::Unsupported, text))
            }
            None => self.open(),
        };
        if let Err(refused) = refused {
            let _ = store.close().await;
            return Err(refused.at(self.url.address()));
        }
        let store = Arc::clone(self.store.get_or_init(|| store));
        if let Err(closed) = self.open() {
            // Closed since it was looked at: nobody else closes the store.
            let _ = store.close().await;
            return Err(closed.at(self.url.address()));
        }
        Ok(store)
    }
}

/// What locks were built on and the store does not offer.
fn lacks(declared: &Capabilities, has: &Capabilities) -> Option<&'static str> {
    let flags = declared.flags().into_iter().zip(has.flags());
    // Nothing is built on `push` and `durable`.
    let mut flags = flags
        .filter(|((name, declared), (_, has))| *declared && !has && !matches!(*name, "push" | "durable"));
    if let Some(((name, _), _)) = flags.next() {
        return Some(name);
    }
    let leases = has.min_lease > declared.min_lease
        || has.max_lease < declared.max_lease
        || has.lease_step > declared.lease_step
        || has.granularity > declared.granularity;
    leases.then_some("leases")
}

#[async_trait]
impl Way for Lazy {
    fn info(&self) -> Info {
        Info::new(self.inner.url.scheme.clone(), self.inner.url.address())
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.store.get().map_or(self.inner.driver.capabilities, |store| store.capabilities())
    }

    /// The store; connects if nobody has. What failed is tried again by the next call.
    async fn store(&self) -> Opened {
        self.inner.open()?;
        if let Some(store) = self.inner.store.get() {
            return Ok(Arc::clone(store));
        }
        let inner = Arc::clone(&self.inner);
        let opened = self.opening.join(&self.runtime, || inner.connect()).await;
        opened.unwrap_or_else(|| Err(Error::new(ErrorKind::Closed, "the runtime of this client has ended")))
    }

    async fn close(&self) -> Result<()> {
        self.inner.closed.store(true, Ordering::Release);
        match self.inner.store.get() {
            Some(store) => store.close().await,
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Lazy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lazy").field("store", &self.inner.url).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use super::*;
    use crate::client::Locks;
    use crate::client::retry::Retry;
    use crate::clock::BootClock;
    use crate::config::Settings;
    use crate::memory;

    static OPENED: AtomicU32 = AtomicU32::new(0);

    /// The memory store; the first two connections are refused.
    const DRIVER: Driver = Driver::new("slow", &["slow"], |_, context| {
        if OPENED.fetch_add(1, Ordering::SeqCst) < 2 {
            return Box::pin(async { Err(Error::new(ErrorKind::Unavailable, "refused")) });
        }
        memory::DRIVER.open("memory://".parse().unwrap(), context)
    })
    .capabilities(memory::DRIVER.capabilities);

    /// A store that offers less than it declares.
    const LESS: Driver = Driver::new("less", &["less"], |url, context| memory::DRIVER.open(url, context))
        .capabilities({
            let mut more = Capabilities::of_lines();
            more.granularity = Duration::ZERO;
            more.min_lease = Duration::ZERO;
            more
        });

    async fn open(url: &str) -> Result<Locks> {
        Locks::open(url, &[DRIVER, LESS], Settings::default(), Arc::new(BootClock)).await
    }

    #[tokio::test]
    async fn the_first_call_connects_and_a_failed_one_is_tried_again() {
        let locks = open("slow://h?lazy=true&ttl=20s").await.unwrap();
        assert_eq!(OPENED.load(Ordering::SeqCst), 0);
        let lock = locks.mutex("n").unwrap().retry(Retry::default().errors(0));
        assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::Unavailable);
        let guard = locks.mutex("n").unwrap().acquire().await.unwrap();
        assert_eq!(OPENED.load(Ordering::SeqCst), 3, "one refused to each acquire");
        assert!(lock.try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
        assert_eq!(OPENED.load(Ordering::SeqCst), 3);
        locks.close(Duration::from_secs(60)).await.unwrap();
        assert_eq!(locks.inspect("n").await.unwrap_err().kind(), ErrorKind::Closed);
    }

    #[tokio::test]
    async fn what_cannot_be_is_refused() {
        assert_eq!(open("slow://h?lazy=maybe").await.unwrap_err().kind(), ErrorKind::InvalidConfig);
        let less = open("less://h?lazy=true").await;
        let error = less.unwrap().mutex("n").unwrap().acquire().await.unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("lazy"), "{error}");
        // Closed before it was ever used: nothing was opened.
        let unused = open("less://h?lazy=true").await.unwrap();
        unused.close(Duration::from_secs(60)).await.unwrap();
    }
}
