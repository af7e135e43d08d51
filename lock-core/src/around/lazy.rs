//! A store that is connected to by a call that needs it: of a [`Settings::lazy`](crate::Settings::lazy) client, or a member of a
//! quorum that was not there when it was opened.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::backend::{Backend, Info};
use crate::capabilities::Capabilities;
use crate::client::runtime;
use crate::driver::{Context, Driver};
use crate::error::{Error, ErrorKind, Result};
use crate::toolkit::{Layer, Mutex, SingleFlight};
use crate::url::StoreUrl;

/// The least time between two attempts to connect to a member that is not there.
const PAUSE: Duration = Duration::from_secs(1);

type Opened = Result<Arc<dyn Backend>>;

#[derive(Clone, Debug)]
pub(crate) struct Lazy(Arc<State>);

#[derive(Debug)]
struct State {
    driver: Driver,
    url: StoreUrl,
    context: Context,
    /// The store, once it has been connected to; an error when it was closed before.
    settled: OnceLock<Opened>,
    /// What locks are built on before it is connected to.
    counted_on: OnceLock<Capabilities>,
    /// The last failure to connect, and when.
    failed: Mutex<Option<(Instant, Error)>>,
    opening: SingleFlight<Opened>,
    runtime: Handle,
    /// A member of a quorum: the others need not wait for it, nor ask for it all the time.
    is_member: bool,
}

impl State {
    async fn connect(self: Arc<Self>) -> Opened {
        if let Some(settled) = self.settled.get() {
            return settled.clone();
        }
        self.opened().await.inspect_err(|error| *self.failed.lock() = Some((Instant::now(), error.clone())))
    }

    async fn opened(&self) -> Opened {
        // Nothing was sent for the verb that connects.
        let store = self.driver.open(self.url.clone(), self.context.clone()).await;
        let store = store.map_err(Error::unsent)?;
        let lacks = self.counted_on.get().and_then(|counted| lacks(counted, &store.capabilities()));
        if let Some(what) = lacks {
            let text = format!(
                "{} as it is set up offers less (`{what}`) than was counted on before it was connected to: connect without \
                 `lazy`, or while every member is there",
                self.url.scheme
            );
            let _ = store.close().await;
            return Err(Error::new(ErrorKind::Unsupported, text).unsent().at(self.url.address()));
        }
        if self.settled.set(Ok(Arc::clone(&store))).is_err() {
            // Closed while it was connected to: nobody else closes the store.
            let _ = store.close().await;
        }
        self.settled.get().cloned().unwrap_or(Ok(store))
    }
}

/// What locks were built on and the store does not offer.
fn lacks(counted: &Capabilities, has: &Capabilities) -> Option<&'static str> {
    let built_on = |name| !matches!(name, "push" | "durable");
    let mut flags = counted.flags().into_iter().zip(has.flags());
    let flag = flags.find(|((name, counted), (_, has))| *counted && !has && built_on(*name));
    let leases = has.min_lease > counted.min_lease
        || has.max_lease < counted.max_lease
        || has.lease_step > counted.lease_step
        // Deadlines leave this much room for entries that end early.
        || has.granularity > counted.granularity;
    flag.map(|((name, _), _)| name).or(leases.then_some("leases"))
}

impl Lazy {
    /// The store of a client, whose locks are built on what its driver declares, or a member of a quorum: that tells at once that it
    /// is not there while it is being connected to, and for a second after.
    pub(crate) fn new(driver: Driver, url: StoreUrl, context: Context, is_member: bool) -> Result<Self> {
        let counted_on = if is_member { OnceLock::new() } else { driver.capabilities.into() };
        Ok(Self(Arc::new(State {
            driver,
            url,
            context,
            settled: OnceLock::new(),
            counted_on,
            failed: Mutex::new(None),
            opening: SingleFlight::default(),
            runtime: runtime::current()?,
            is_member,
        })))
    }

    /// Refuses from now on to connect to a store that offers less.
    pub(crate) fn counts_on(&self, capabilities: Capabilities) {
        let _ = self.0.counted_on.set(capabilities);
    }

    fn connected(&self) -> Option<&Arc<dyn Backend>> {
        self.0.settled.get()?.as_ref().ok()
    }

    /// The store; connects if nobody has. What failed is tried again by a later call.
    pub(crate) async fn store(&self) -> Opened {
        let state = &self.0;
        if let Some(settled) = state.settled.get() {
            return settled.clone();
        }
        if state.is_member {
            if let Some((_, error)) = state.failed.lock().as_ref().filter(|(when, _)| when.elapsed() < PAUSE)
            {
                return Err(error.clone());
            }
            if state.opening.is_under_way() {
                let error = Error::new(ErrorKind::Unavailable, "this member is being connected to");
                return Err(error.at(state.url.address()).unsent());
            }
        }
        let opened = state.opening.join(&state.runtime, || Arc::clone(state).connect()).await;
        opened.unwrap_or_else(|| Err(Error::new(ErrorKind::Closed, "the runtime of this client has ended")))
    }
}

#[async_trait]
impl Layer for Lazy {
    fn inner(&self) -> &dyn Backend {
        // Verbs come by `pass`, and the rest is below.
        let Some(store) = self.connected() else { unreachable!("it is not connected to") };
        &**store
    }

    fn pass<T: Send>(
        &self,
        _verb: &'static str,
        call: impl Future<Output = Result<T>> + Send,
    ) -> impl Future<Output = Result<T>> + Send {
        let connected = self.store();
        async {
            connected.await?;
            call.await
        }
    }

    fn info(&self) -> Info {
        Info::new(self.0.url.scheme.clone(), self.0.url.address())
    }

    fn capabilities(&self) -> Capabilities {
        self.connected().map_or(self.0.driver.capabilities, |store| store.capabilities())
    }

    async fn close(&self) -> Result<()> {
        let closed = Error::new(ErrorKind::Closed, "this client has been closed").at(self.0.url.address());
        match self.0.settled.get_or_init(|| Err(closed)) {
            Ok(store) => store.close().await,
            Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::client::Locks;
    use crate::client::retry::Retry;
    use crate::clock::BootClock;
    use crate::config::Settings;
    use crate::memory;
    use crate::snapshot::Page;

    static OPENED: AtomicU32 = AtomicU32::new(0);

    /// The memory store; the first two connections are refused.
    const DRIVER: Driver = Driver::new("slow", &["slow"], |_, context| {
        if OPENED.fetch_add(1, Ordering::SeqCst) < 2 {
            return Box::pin(async { Err(Error::new(ErrorKind::Unavailable, "refused")) });
        }
        memory::DRIVER.open("memory://".parse().unwrap(), context)
    })
    .capabilities(memory::DRIVER.capabilities);

    /// A store that cannot be reached.
    const AWAY: Driver = Driver::new("away", &["away"], |_, _| {
        Box::pin(async { Err(Error::new(ErrorKind::Unavailable, "refused")) })
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

    /// A store whose entries end with their session.
    const SESSION: Driver =
        Driver::new("session", &["session"], |url, context| memory::DRIVER.open(url, context)).capabilities(
            {
                let mut capabilities = memory::DRIVER.capabilities;
                capabilities.resume = false;
                capabilities
            },
        );

    async fn open(url: &str) -> Result<Locks> {
        Locks::open(
            url,
            &[AWAY, DRIVER, LESS, SESSION, memory::DRIVER],
            Settings::default(),
            Arc::new(BootClock),
        )
        .await
    }

    #[tokio::test]
    async fn bad_input_is_an_error_before_the_store_is_connected_to() {
        let locks = open("away://?lazy=true").await.unwrap();
        let page = Page::first(1).unwrap();
        assert_eq!(locks.list("\0", &page).await.unwrap_err().kind(), ErrorKind::InvalidName);
        assert_eq!(locks.list("", &page).await.unwrap_err().kind(), ErrorKind::Unavailable);
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

    /// A call that waits for an unreachable store would never return.
    #[tokio::test]
    async fn settings_that_no_store_takes_are_refused_though_it_is_away() {
        for (options, kind) in [
            ("ttl=0s", ErrorKind::InvalidLease),
            ("max_hold=0s", ErrorKind::InvalidLease),
            ("margin=0.9", ErrorKind::InvalidConfig),
        ] {
            let refused = open(&format!("away://h?{options}")).await.unwrap_err();
            assert_eq!(refused.kind(), kind, "{options}: {refused}");
        }
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

    #[tokio::test]
    async fn where_entries_end_with_their_session_nothing_outlives_it() {
        let (locks, other) = (open("session://h?lazy=true").await.unwrap(), open("memory://").await);
        let lock = locks.mutex("n").unwrap();
        let refused = lock.clone().at_least(Duration::from_secs(5)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        let refused = lock.acquire().await.unwrap().hand_over().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        let elsewhere = other.unwrap().mutex("session").unwrap().acquire().await.unwrap();
        let refused = locks.resume(elsewhere.hand_over().await.unwrap()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
    }

    static TRIED: AtomicU32 = AtomicU32::new(0);
    static LET: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(0);

    /// The memory store, once it is let.
    const HELD_UP: Driver = Driver::new("held-up", &["held-up"], |_, context| {
        Box::pin(async {
            TRIED.fetch_add(1, Ordering::SeqCst);
            LET.acquire().await.unwrap().forget();
            memory::DRIVER.open("memory://".parse().unwrap(), context).await
        })
    })
    .capabilities(memory::DRIVER.capabilities);

    #[tokio::test(start_paused = true)]
    async fn calls_share_a_connection_under_way_and_it_ends_with_its_client() {
        let make = if_a_member(HELD_UP);
        let (lazy, member) = (make(false), make(true));
        let opened = tokio::join!(lazy.store(), lazy.store(), async {
            tokio::time::sleep(PAUSE).await;
            assert_eq!(TRIED.load(Ordering::SeqCst), 1);
            LET.add_permits(1);
        });
        assert!(opened.0.is_ok() && opened.1.is_ok());
        let (late, ..) = tokio::join!(member.store(), async {
            tokio::time::sleep(PAUSE).await;
            let meanwhile = tokio::time::timeout(PAUSE, member.store()).await.expect("it waits for nobody");
            assert_eq!(meanwhile.unwrap_err().kind(), ErrorKind::Unavailable);
            member.close().await.unwrap();
            LET.add_permits(1);
        });
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(member.store().await.unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(TRIED.load(Ordering::SeqCst), 2);
    }

    static ASKED: AtomicU32 = AtomicU32::new(0);

    #[tokio::test(start_paused = true)]
    async fn a_member_that_is_not_there_is_asked_once_a_second() {
        let away = Driver::new("away", &["away"], |_, _| {
            ASKED.fetch_add(1, Ordering::SeqCst);
            Box::pin(async { Err(Error::new(ErrorKind::Unavailable, "refused")) })
        });
        let member = if_a_member(away)(true);
        for second in 1..=3 {
            for _ in 0..3 {
                let refused = member.store().await.unwrap_err();
                assert!(refused.kind() == ErrorKind::Unavailable && !refused.is_unclear(), "{refused}");
            }
            assert_eq!(ASKED.load(Ordering::SeqCst), second);
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn if_a_member(driver: Driver) -> impl Fn(bool) -> Lazy {
        let context = Context::new(Arc::new(BootClock));
        move |member| Lazy::new(driver, "memory://".parse().unwrap(), context.clone(), member).unwrap()
    }
}
