//! Work that many ask for and one does.
//!
//! Calls that share work must not do it in the task of the first caller, with a lock held over its awaits: a future
//! that is neither polled nor dropped, as in a `select!` whose other branch has work to do, would keep the lock, and
//! everybody else from going on.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use tokio::runtime::Handle;
use tokio::sync::watch;

use super::{Mutex, sweep};

/// Work under way, done by a task of its own for all who ask meanwhile ("single flight").
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use onelock_core::toolkit::SingleFlight;
/// use tokio::runtime::Handle;
///
/// let (connecting, runtime) = (SingleFlight::default(), Handle::current());
/// let connect = || connecting.join(&runtime, || async { "a connection" });
/// assert_eq!(tokio::join!(connect(), connect()), (Some("a connection"), Some("a connection"))); // made once
/// # }
/// ```
pub struct SingleFlight<T>(Mutex<Weak<Answer<T>>>);

/// Kept by the task that does the work, to its end.
type Answer<T> = watch::Sender<Option<T>>;

impl<T> Default for SingleFlight<T> {
    fn default() -> Self {
        Self(Mutex::new(Weak::new()))
    }
}

impl<T> fmt::Debug for SingleFlight<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleFlight").field("under_way", &self.is_under_way()).finish()
    }
}

impl<T> SingleFlight<T> {
    /// Whether somebody does the work now.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        under_way(&self.0.lock()).is_some()
    }
}

/// Work that has its answer is over: a caller that has the answer and asks again begins the work anew.
fn under_way<T>(flight: &Weak<Answer<T>>) -> Option<Arc<Answer<T>>> {
    flight.upgrade().filter(|answer| answer.borrow().is_none())
}

impl<T: Clone + Send + Sync + 'static> SingleFlight<T> {
    /// Waits for the work that is under way; otherwise begins `work` on `runtime`, and waits for it. `None` when it
    /// ended without an answer: it panicked, or the runtime is gone.
    ///
    /// A call after the work has ended begins it anew, so it leaves what the next one must see before it ends.
    ///
    /// # Cancel safety
    /// Safe: the work goes on without its caller.
    pub async fn join<F>(&self, runtime: &Handle, work: impl FnOnce() -> F) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut answer = self.enter(runtime, work);
        answer.wait_for(Option::is_some).await.ok()?.clone()
    }

    /// The same for work that begins after this call: what is under way is waited for, and the next one shared.
    ///
    /// # Cancel safety
    /// Safe: the work goes on without its caller.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # use onelock_core::toolkit::SingleFlight;
    /// # use tokio::runtime::Handle;
    /// let (listing, runtime) = (SingleFlight::default(), Handle::current());
    /// let list = || async { "what all who asked before it began have written" };
    /// assert!(listing.join_next(&runtime, list).await.is_some());
    /// # }
    /// ```
    pub async fn join_next<F>(&self, runtime: &Handle, work: impl FnOnce() -> F) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let answer = under_way(&self.0.lock()).map(|answer| answer.subscribe());
        if let Some(mut answer) = answer {
            let _ = answer.wait_for(Option::is_some).await;
        }
        self.join(runtime, work).await
    }

    fn enter<F>(&self, runtime: &Handle, work: impl FnOnce() -> F) -> watch::Receiver<Option<T>>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut flight = self.0.lock();
        if let Some(answer) = under_way(&flight) {
            return answer.subscribe();
        }
        let (tell, answer) = watch::channel(None);
        let tell = Arc::new(tell);
        *flight = Arc::downgrade(&tell);
        drop(flight);
        let work = work();
        runtime.spawn(async move { tell.send_replace(Some(work.await)) });
        answer
    }
}

/// Single flights by what they are for.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use onelock_core::toolkit::Flights;
/// use tokio::runtime::Handle;
///
/// let (listings, runtime) = (Flights::default(), Handle::current());
/// let list = async |name| listings.of(name).join(&runtime, || async move { format!("the line of {name}") }).await;
/// assert_eq!(list("a").await.unwrap(), "the line of a");
/// # }
/// ```
#[derive(Debug)]
pub struct Flights<K, T>(Mutex<HashMap<K, Arc<SingleFlight<T>>>>);

impl<K, T> Default for Flights<K, T> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<K: Eq + Hash, T> Flights<K, T> {
    /// The one for `key`. Those that have ended are forgotten when there are twice as many as last time.
    #[must_use]
    pub fn of(&self, key: K) -> Arc<SingleFlight<T>> {
        let mut flights = self.0.lock();
        sweep(&mut flights, |flight| Arc::strong_count(flight) > 1 || flight.is_under_way());
        Arc::clone(flights.entry(key).or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn who_asks_meanwhile_shares_the_answer() {
        let (flight, go) = (Arc::new(SingleFlight::default()), Arc::new(Notify::new()));
        let begun = Arc::new(AtomicUsize::new(0));
        let ask = || {
            let (flight, go, begun) = (Arc::clone(&flight), Arc::clone(&go), Arc::clone(&begun));
            async move {
                let work = || async move {
                    let count = begun.fetch_add(1, Ordering::SeqCst) + 1;
                    go.notified().await;
                    count
                };
                flight.join(&Handle::current(), work).await
            }
        };
        // The first stalls after it was polled once, and is gone at last: nobody waits for it.
        let mut first = Box::pin(ask());
        tokio::select! { biased; _ = &mut first => unreachable!(), () = std::future::ready(()) => {} }
        let others = [tokio::spawn(ask()), tokio::spawn(ask())];
        tokio::task::yield_now().await;
        assert!(flight.is_under_way());
        go.notify_one();
        for other in others {
            assert_eq!(other.await.unwrap(), Some(1));
        }
        assert!(!flight.is_under_way());
        go.notify_one();
        assert_eq!(ask().await, Some(2), "begun anew");
        drop(first);
    }

    #[tokio::test]
    async fn who_asks_for_the_next_gets_no_answer_to_what_began_before() {
        let (flight, go) = (SingleFlight::default(), Arc::new(Notify::new()));
        let (runtime, begun) = (Handle::current(), Arc::new(AtomicUsize::new(0)));
        let work = || {
            let (go, count) = (Arc::clone(&go), begun.fetch_add(1, Ordering::SeqCst) + 1);
            async move {
                go.notified().await;
                count
            }
        };
        let first = flight.join_next(&runtime, work);
        let others = async {
            tokio::task::yield_now().await;
            go.notify_one();
            let next = || flight.join_next(&runtime, work);
            tokio::join!(next(), next(), next(), async {
                while begun.load(Ordering::SeqCst) < 2 {
                    tokio::task::yield_now().await;
                }
                go.notify_one();
            })
        };
        let all = async { tokio::join!(first, others) };
        let limit = std::time::Duration::from_secs(60);
        let (first, (second, third, fourth, ())) = tokio::time::timeout(limit, all).await.unwrap();
        assert_eq!([first, second, third, fourth], [Some(1), Some(2), Some(2), Some(2)]);
    }

    #[tokio::test]
    async fn work_that_ends_without_an_answer_is_told_and_begun_anew() {
        let flight = SingleFlight::<u8>::default();
        let runtime = Handle::current();
        let panics = flight.join(&runtime, || async { std::panic::resume_unwind(Box::new("on purpose")) });
        assert_eq!(panics.await, None);
        assert_eq!(flight.join(&runtime, || async { 7 }).await, Some(7));
    }

    #[test]
    fn a_runtime_that_is_gone_gives_no_answer() {
        let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
        let gone = runtime().handle().clone();
        let flight = SingleFlight::default();
        assert_eq!(runtime().block_on(flight.join(&gone, || async { 7 })), None);
        assert!(!flight.is_under_way());
    }
}
