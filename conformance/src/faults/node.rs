//! A store behind a simulated network: late, lost and repeated messages on tokio's clock, from a seed.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::toolkit::{Layer, Layered, Mutex};
use onelock_core::{
    Backend, Error, ErrorKind, FencingToken, Info, Raise, Release, Renewal, Renewed, Result, Ticket, Wake,
};
use tokio::sync::watch;

use crate::rng::Rng;

/// What the network between one client and one node does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Nothing gets through.
    pub down: bool,
    /// Each message takes up to this long.
    pub longest_delay: Duration,
    /// How many of a hundred messages are lost, requests and replies alike.
    pub loss: u64,
    /// How many of a hundred releases, renewals and raises arrive a second time, later.
    pub repeats: u64,
    /// How long the client waits for a lost answer.
    pub patience: Duration,
}

/// The network between one client and one node.
#[derive(Debug)]
pub struct Net {
    rng: Mutex<Rng>,
    weather: Mutex<Weather>,
    requests: AtomicU64,
    lost: AtomicU64,
    /// The verbs whose requests are held on their way.
    held: watch::Sender<Vec<&'static str>>,
}

/// What happens to one request.
struct Fate {
    there: Duration,
    back: Duration,
    request_lost: bool,
    reply_lost: bool,
    repeated: Option<Duration>,
    patience: Duration,
}

impl Net {
    /// A network that does what `seed` says within what its weather allows; at first that is nothing.
    #[must_use]
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            rng: Mutex::new(Rng::new(seed)),
            weather: Mutex::default(),
            requests: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            held: watch::Sender::new(Vec::new()),
        })
    }

    /// Holds all requests of this verb (`acquire`, `renew`, `release`, `raise`) on their way until [`Net::let_go`].
    pub fn hold(&self, verb: &'static str) {
        self.held.send_modify(|held| held.push(verb));
    }

    /// Lets what was held go on.
    pub fn let_go(&self, verb: &'static str) {
        self.held.send_modify(|held| held.retain(|other| *other != verb));
    }

    async fn arrives(&self, verb: &'static str) {
        // The sender lives as long as this.
        let _ = self.held.subscribe().wait_for(|held| !held.contains(&verb)).await;
    }

    /// Changes the weather.
    pub fn set(&self, change: impl FnOnce(&mut Weather)) {
        change(&mut self.weather.lock());
    }

    /// How many requests went out.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// How many requests or replies were lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn fate(&self) -> Fate {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let weather = *self.weather.lock();
        let mut rng = self.rng.lock();
        let mut hits = |percent: u64| rng.below(100) < percent;
        let (request_lost, reply_lost) = (weather.down || hits(weather.loss), hits(weather.loss));
        let repeated = hits(weather.repeats);
        if request_lost || reply_lost {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        let mut delay = || rng.time(weather.longest_delay);
        Fate {
            there: delay(),
            back: delay(),
            request_lost,
            reply_lost,
            repeated: repeated.then(|| delay() * 4),
            patience: weather.patience,
        }
    }
}

async fn pass_time(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

/// A backend at the other end of a [`Net`], under an address of its own.
#[derive(Debug)]
pub struct Node {
    inner: Arc<dyn Backend>,
    net: Arc<Net>,
    address: String,
}

impl Node {
    /// Puts `inner` behind `net` and calls it `address`.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>, net: &Arc<Net>, address: impl Into<String>) -> Layered<Self> {
        Layered(Self { inner, net: Arc::clone(net), address: address.into() })
    }

    async fn travel<T>(
        &self,
        verb: &'static str,
        call: impl Future<Output = Result<T>>,
        fate: Fate,
    ) -> Result<T> {
        self.net.arrives(verb).await;
        pass_time(fate.there).await;
        let no_answer = || Err(Error::new(ErrorKind::Timeout, "the network lost the request or its reply"));
        if fate.request_lost {
            pass_time(fate.patience.saturating_sub(fate.there)).await;
            return no_answer();
        }
        let answer = call.await;
        if fate.reply_lost {
            pass_time(fate.patience.saturating_sub(fate.there)).await;
            return no_answer();
        }
        pass_time(fate.back).await;
        answer
    }

    /// Lets the same request arrive again later; nobody reads the answer.
    fn repeat<F>(&self, fate: &Fate, again: impl FnOnce(Arc<dyn Backend>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if let Some(later) = fate.repeated {
            let (wait, again) = (fate.there + later, again(Arc::clone(&self.inner)));
            tokio::spawn(async move {
                pass_time(wait).await;
                again.await;
            });
        }
    }
}

#[async_trait]
impl Layer for Node {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    fn info(&self) -> Info {
        Info::new(self.inner.info().scheme, &*self.address)
    }

    /// An acquire is never repeated: a client sends it once, and a connection delivers what is sent at most once.
    fn pass<T: Send>(
        &self,
        verb: &'static str,
        call: impl Future<Output = Result<T>> + Send,
    ) -> impl Future<Output = Result<T>> + Send {
        self.travel(verb, call, self.net.fate())
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        self.inner.wait(ticket).await
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let fate = self.net.fate();
        let again = due.to_vec();
        self.repeat(&fate, |inner| async move { drop(inner.renew(&again).await) });
        let renewed = self.travel("renew", async { Ok(self.inner.renew(due).await) }, fate).await;
        renewed.unwrap_or_else(|error| vec![Err(error); due.len()])
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        let fate = self.net.fate();
        let again = ticket.clone();
        self.repeat(&fate, |inner| async move { drop(inner.release(&again).await) });
        self.travel("release", self.inner.release(ticket), fate).await
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        let fate = self.net.fate();
        let again = ticket.clone();
        self.repeat(&fate, |inner| async move { drop(inner.raise(&again, token).await) });
        self.travel("raise", self.inner.raise(ticket, token), fate).await
    }
}
