//! A runtime of one thread beside that of a case.

use std::thread::JoinHandle;
use std::time::Duration;

use onelock_core::client::Locks;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::ctx::Ctx;
use crate::verdict::{Stop, Verdict};

/// Who blocks its thread blocks timers, renewals and wake-ups alike. It runs until the case lets go of it.
pub(crate) struct Aside {
    /// The runtime.
    pub(crate) handle: Handle,
    end: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Aside {
    pub(crate) fn start() -> Verdict<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let _over = runtime.block_on(ended);
            runtime.shutdown_background();
        });
        Ok(Self { handle, end, thread })
    }

    /// A client over `backend` that renews here.
    pub(crate) fn client(
        &self,
        ctx: &Ctx,
        backend: std::sync::Arc<dyn onelock_core::Backend>,
        lease: Duration,
        waiter_lease: Duration,
    ) -> Verdict<Locks> {
        let _inside = self.handle.enter();
        ctx.client(backend, lease, waiter_lease)
    }

    /// Ends all of its tasks at once, in the middle of whatever they do.
    pub(crate) async fn end(self) -> Verdict {
        let _over = self.end.send(());
        let joined = tokio::task::spawn_blocking(move || self.thread.join()).await?;
        joined.map_err(|_| Stop::failed("the thread panicked"))
    }
}
