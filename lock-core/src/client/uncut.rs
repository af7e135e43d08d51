//! Calls to the store: polled in place, never cut half way, and never left alone.
//!
//! A caller that goes away after the first poll leaves the rest to the background. One that stays and does not poll, as a
//! `select!` whose other branch has work to do, would keep what its call has of the store, such as a connection: where
//! such a call was woken and nobody came, a task of ours goes on with it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use super::Client;
use super::background::Pending;
use super::stalls::{Key, Stall};
use crate::backend::Backend;
use crate::error::Result;

/// A call to the store; when its caller goes away after the first poll, the rest runs in the background, and `after` deals
/// with what comes of it.
pub(super) struct Uncut<T: Send + 'static, A: FnOnce(&Arc<Client>, T) + Send + 'static> {
    client: Arc<Client>,
    call: Arc<Call<T>>,
    after: Option<A>,
    /// Set while the client looks after it.
    watched: Option<Key>,
}

impl Client {
    /// Asks the store on behalf of somebody who need not learn the answer.
    pub(super) async fn ask<T, F>(self: &Arc<Self>, call: impl FnOnce(Arc<dyn Backend>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let call = call(Arc::clone(&self.backend));
        if self.is_home() { Uncut::new(self, call, |_, _| ()).await } else { self.at_home(call).await }
    }
}

/// A call under way. Its future sees the call itself as its waker, in whatever task it is polled.
struct Call<T> {
    inner: Mutex<Inner<T>>,
    /// Not in the same lock: a future may wake itself while it is polled.
    turn: Mutex<Turn>,
}

/// Who is to be woken when the future can go on, and whether that was done.
#[derive(Default)]
struct Turn {
    waker: Option<Waker>,
    woken: Woken,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Woken {
    /// Not since it was last polled.
    #[default]
    No,
    Yes,
    /// And the watch over calls has seen that.
    Seen,
}

struct Inner<T> {
    state: State<T>,
    begun: bool,
    /// Whether a task of ours goes on with it; the caller waits for that.
    helped: bool,
    /// Who waits for our task.
    caller: Option<Waker>,
}

enum State<T> {
    Asking(Pin<Box<dyn Future<Output = T> + Send>>),
    Answered(T),
    /// The caller has the answer, or has gone; or the call has panicked.
    Over,
}

impl<T: Send + 'static, A: FnOnce(&Arc<Client>, T) + Send + 'static> Uncut<T, A> {
    pub(super) fn new(
        client: &Arc<Client>,
        call: impl Future<Output = T> + Send + 'static,
        after: A,
    ) -> Self {
        let state = State::Asking(Box::pin(call));
        let inner = Inner { state, begun: false, helped: false, caller: None };
        let call = Arc::new(Call { inner: Mutex::new(inner), turn: Mutex::default() });
        Self { client: Arc::clone(client), call, after: Some(after), watched: None }
    }
}

impl<T: Send + 'static, A: FnOnce(&Arc<Client>, T) + Send + 'static + Unpin> Future for Uncut<T, A> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = &mut *self;
        let mut inner = this.call.lock();
        if inner.helped && matches!(inner.state, State::Asking(_)) {
            inner.caller = Some(cx.waker().clone());
            return Poll::Pending;
        }
        inner.begun = true;
        let answer = this.call.poll(&mut inner, cx);
        drop(inner);
        if answer.is_pending() && this.watched.is_none() {
            this.watched = Some(this.client.stalls.watch(&this.call));
        }
        answer
    }
}

impl<T: Send + 'static, A: FnOnce(&Arc<Client>, T) + Send + 'static> Drop for Uncut<T, A> {
    fn drop(&mut self) {
        if let Some(key) = self.watched {
            self.client.stalls.forget(key);
        }
        let mut inner = self.call.lock();
        let state = std::mem::replace(&mut inner.state, State::Over);
        let (begun, helped) = (inner.begun, inner.helped);
        drop(inner);
        if helped {
            // It has nothing to wait for any more.
            self.call.wake_by_ref();
        }
        let Some(after) = self.after.take() else { return };
        match state {
            State::Asking(call) if begun => {
                let client = Arc::clone(&self.client);
                self.client.in_background(async move { after(&client, call.await) });
            }
            State::Answered(answer) => after(&self.client, answer),
            // What was never polled was not sent.
            State::Asking(_) | State::Over => {}
        }
    }
}

impl<T: Send + 'static> Call<T> {
    /// A poll that panicked has ended the call.
    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(|poisoned| {
            let mut inner = poisoned.into_inner();
            inner.state = State::Over;
            inner
        })
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on for the caller of `cx`. A call that panics in a task of ours does so for its caller, too.
    fn poll(self: &Arc<Self>, inner: &mut Inner<T>, cx: &Context<'_>) -> Poll<T> {
        let State::Asking(asking) = &mut inner.state else {
            return match std::mem::replace(&mut inner.state, State::Over) {
                State::Answered(answer) => Poll::Ready(answer),
                _ => std::panic::resume_unwind(Box::new("a call to the store has panicked")),
            };
        };
        // Before the future is polled: it may be woken meanwhile.
        let mut turn = self.turn();
        match &mut turn.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        turn.woken = Woken::No;
        drop(turn);
        let answer = asking.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(self))));
        if answer.is_ready() {
            inner.state = State::Over;
        }
        answer
    }
}

impl<T: Send + 'static> Wake for Call<T> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut turn = self.turn();
        if turn.woken == Woken::No {
            turn.woken = Woken::Yes;
        }
        let waker = turn.waker.clone();
        // Not with the lock: what a waker does is not ours.
        drop(turn);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T: Send + 'static> Stall for Call<T> {
    fn is_stalled(&self) -> bool {
        let mut turn = self.turn();
        if turn.woken == Woken::Yes {
            turn.woken = Woken::Seen;
            return false;
        }
        turn.woken == Woken::Seen
    }

    fn help(self: Arc<Self>, client: &Arc<Client>) -> bool {
        let mut inner = self.lock();
        // Its caller may have come since: then it waits for the future, and would not learn of the answer from a task.
        if inner.helped || self.turn().woken != Woken::Seen || !matches!(inner.state, State::Asking(_)) {
            return false;
        }
        inner.helped = true;
        drop(inner);
        let (pending, helper) = (Pending::new(client), Helper(self));
        client.runtime.spawn(async move {
            std::future::poll_fn(|cx| helper.poll(cx)).await;
            drop((helper, pending));
        });
        true
    }
}

/// Goes on with a call whose caller does not.
struct Helper<T: Send + 'static>(Arc<Call<T>>);

impl<T: Send + 'static> Helper<T> {
    fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let mut inner = self.0.lock();
        if !matches!(inner.state, State::Asking(_)) {
            return Poll::Ready(());
        }
        self.0.poll(&mut inner, cx).map(|answer| inner.state = State::Answered(answer))
    }
}

impl<T: Send + 'static> Drop for Helper<T> {
    /// With the answer, or because the runtime ends: then the caller goes on by itself.
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.helped = false;
        let caller = inner.caller.take();
        drop(inner);
        if let Some(caller) = caller {
            caller.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;
    use crate::client::Locks;
    use crate::clock::BootClock;
    use crate::memory::{MemoryBackend, MemoryStore};

    fn client() -> Arc<Client> {
        Locks::builder(Arc::new(MemoryBackend::new(&MemoryStore::new(Arc::new(BootClock)))))
            .build()
            .unwrap()
            .client
    }

    /// A call of two steps, what ends each, and how many it has made.
    fn two_steps() -> (impl Future<Output = usize>, [oneshot::Sender<()>; 2], Arc<AtomicUsize>) {
        let ((first, a), (second, b)) = (oneshot::channel(), oneshot::channel());
        let steps = Arc::new(AtomicUsize::new(0));
        let made = Arc::clone(&steps);
        let call = async move {
            for step in [a, b] {
                step.await.unwrap();
                made.fetch_add(1, Ordering::SeqCst);
            }
            made.load(Ordering::SeqCst)
        };
        (call, [first, second], steps)
    }

    async fn until(steps: &AtomicUsize, count: usize) {
        for _ in 0..10_000 {
            if steps.load(Ordering::SeqCst) >= count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("it did not come to step {count}");
    }

    async fn begin<T>(mut call: Pin<&mut impl Future<Output = T>>) {
        assert!(std::future::poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_pending())).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_stands_still_goes_on_and_its_caller_gets_the_answer() {
        let (client, (call, [first, second], steps)) = (client(), two_steps());
        let mut call = Box::pin(Uncut::new(&client, call, |_, _| ()));
        begin(call.as_mut()).await;
        first.send(()).unwrap();
        until(&steps, 1).await;
        let caller = tokio::spawn(call);
        tokio::task::yield_now().await;
        second.send(()).unwrap();
        assert_eq!(caller.await.unwrap(), 2);
        client.background.settled().await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_waits_for_a_caller_that_comes_back_later() {
        let (client, (call, [first, second], steps)) = (client(), two_steps());
        let mut call = Box::pin(Uncut::new(&client, call, |_, _| ()));
        begin(call.as_mut()).await;
        first.send(()).unwrap();
        second.send(()).unwrap();
        until(&steps, 2).await;
        client.background.settled().await;
        assert_eq!(call.await, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_goes_away_from_a_call_that_was_helped_leaves_the_rest() {
        for answered in [false, true] {
            let (client, (call, [first, second], steps)) = (client(), two_steps());
            let (told, mut tell) = oneshot::channel();
            let mut call = Box::pin(Uncut::new(&client, call, move |_, made| told.send(made).unwrap()));
            begin(call.as_mut()).await;
            first.send(()).unwrap();
            until(&steps, 1).await;
            if answered {
                second.send(()).unwrap();
                until(&steps, 2).await;
                client.background.settled().await;
                drop(call);
                assert_eq!(tell.try_recv(), Ok(2), "at once");
            } else {
                drop(call);
                // The task that goes on with it has come as far as it can.
                tokio::task::yield_now().await;
                second.send(()).unwrap();
                assert_eq!(tell.await, Ok(2));
            }
            tokio::time::timeout(Duration::from_secs(60), client.background.settled())
                .await
                .expect("settled");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_in_a_call_that_was_helped_is_its_callers() {
        let (client, (first, a)) = (client(), oneshot::channel::<()>());
        let steps = Arc::new(AtomicUsize::new(0));
        let made = Arc::clone(&steps);
        let call = async move {
            a.await.unwrap();
            made.fetch_add(1, Ordering::SeqCst);
            panic!("a store with a bug");
        };
        let mut call = Box::pin(Uncut::new(&client, call, |_, ()| ()));
        begin(call.as_mut()).await;
        first.send(()).unwrap();
        until(&steps, 1).await;
        assert!(tokio::spawn(call).await.unwrap_err().is_panic());
        client.background.settled().await;
    }

    /// What wakes a caller: how often it did.
    #[derive(Default)]
    struct Told(AtomicUsize);

    impl Wake for Told {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_comes_just_before_the_help_is_told() {
        let (client, (call, [first, second], _)) = (client(), two_steps());
        let mut call = Box::pin(Uncut::new(&client, call, |_, _| ()));
        begin(call.as_mut()).await;
        first.send(()).unwrap();
        let under_way = Arc::clone(&call.call);
        assert!(!under_way.is_stalled(), "not for long");
        assert!(under_way.is_stalled());
        let told = Arc::new(Told::default());
        let caller = Waker::from(Arc::clone(&told));
        assert!(call.as_mut().poll(&mut Context::from_waker(&caller)).is_pending());
        under_way.help(&client);
        tokio::task::yield_now().await;
        second.send(()).unwrap();
        until(&told.0, 1).await;
        assert_eq!(call.await, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn who_polls_in_time_is_not_helped() {
        let client = client();
        let task = tokio::task::try_id();
        let call = async move {
            for _ in 0..100 {
                tokio::time::sleep(Duration::from_millis(20)).await;
                assert_eq!(tokio::task::try_id(), task);
            }
        };
        Uncut::new(&client, call, |_, _| ()).await;
        assert_eq!(client.background.count(), 0);
    }
}
