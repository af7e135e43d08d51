//! The runtime a client lives on. What talks to the store runs there, whichever runtime or executor the caller is on.

use std::future::{Future, pending, poll_fn};
use std::panic::{catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::{JoinError, JoinHandle};

use super::shared::Client;
use crate::backend::Backend;
use crate::clock::{Timestamp, sleep_until};
use crate::error::{Error, ErrorKind, Result};

/// The current runtime.
///
/// # Errors
/// [`ErrorKind::Misuse`] when there is none, or when it has no timers.
pub(crate) fn current() -> Result<Handle> {
    let misuse = |text| Error::new(ErrorKind::Misuse, text);
    let runtime = Handle::try_current().map_err(|_| misuse("a client is made inside a Tokio runtime"))?;
    // Tokio says this only by a panic, when a timer is made.
    catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).map_err(|_| {
        misuse("the Tokio runtime has no timers: build it with `enable_time` or `enable_all`")
    })?;
    Ok(runtime)
}

/// A task that ends with its caller.
struct Attached<T>(JoinHandle<T>);

impl<T> Drop for Attached<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Client {
    /// Whether the caller is on the client's own runtime.
    pub(super) fn is_home(&self) -> bool {
        Handle::try_current().is_ok_and(|current| current.id() == self.runtime.id())
    }

    /// Goes on with a call that began on this runtime, wherever its caller polls it by then: its timers and sockets belong here.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] when the client's runtime has ended.
    pub(super) fn here<T>(
        &self,
        mut call: Pin<&mut impl Future<Output = Result<T>>>,
    ) -> impl Future<Output = Result<T>> {
        poll_fn(move |cx| {
            let away = !self.is_home();
            // It takes no task any more, and its timers panic.
            if away && Attached(self.runtime.spawn(pending::<()>())).0.is_finished() {
                return Poll::Ready(Err(self.has_ended()));
            }
            let _entered = away.then(|| self.runtime.enter());
            call.as_mut().poll(cx)
        })
    }

    /// Runs `work` for a caller from elsewhere, as a task that is dropped with this future.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] when the client's runtime has ended.
    pub(crate) async fn at_home<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let mut task = Attached(self.runtime.spawn(work));
        self.done((&mut task.0).await)
    }

    /// Runs `work` as a task that goes on without its caller.
    pub(crate) async fn finish<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.done(self.runtime.spawn(work).await)
    }

    /// Asks the store in a task that goes on without its caller, and counts it as pending.
    pub(super) async fn ask<T, F>(&self, call: impl FnOnce(Arc<dyn Backend>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.finish(self.background.counted(call(Arc::clone(&self.backend)))).await
    }

    fn done<T>(&self, done: std::result::Result<Result<T>, JoinError>) -> Result<T> {
        match done {
            Ok(done) => done,
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            Err(_) => Err(self.has_ended()),
        }
    }

    fn has_ended(&self) -> Error {
        self.is_closed("the runtime of this client has ended")
    }

    /// Sleeps until `until` on the client's clock, by the timers of its own runtime. False when that has ended.
    pub(crate) async fn sleep_until(&self, until: Timestamp) -> bool {
        if self.is_home() {
            let mut timer = pin!(sleep_until(&self.clock, until));
            // Polled elsewhere it begins anew below: the timers of a runtime that has ended panic.
            let over = poll_fn(|cx| match self.is_home() {
                true => timer.as_mut().poll(cx).map(|()| true),
                false => Poll::Ready(false),
            });
            if over.await {
                return true;
            }
        }
        let clock = Arc::clone(&self.clock);
        let mut task = Attached(self.runtime.spawn(async move { sleep_until(&clock, until).await }));
        (&mut task.0).await.is_ok()
    }

    /// Sleeps for `time`, as [`Client::sleep_until`] does.
    pub(crate) async fn sleep(&self, time: Duration) -> bool {
        self.sleep_until(self.clock.now() + time).await
    }
}
