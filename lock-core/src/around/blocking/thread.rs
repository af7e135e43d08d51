//! The thread that runs a client.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::client::Locks;
use crate::error::{Error, ErrorKind, Result};

/// How long the last handle to go waits for releases that are still under way.
const SETTLE: Duration = Duration::from_secs(5);

/// The thread that runs a client.
pub(super) struct Background {
    runtime: Handle,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Runs `future` on the thread, and waits for it.
    pub(super) fn call<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        refuse_async()?;
        let (answer, answered) = mpsc::sync_channel(1);
        // The caller waits for the answer: it cannot have gone away.
        self.runtime.spawn(async move { answer.send(future.await) });
        answered.recv().map_err(|_| Error::new(ErrorKind::Closed, "the thread of this client has ended"))
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Background")
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.end.take());
        // In async code waiting could wait for itself; the thread then ends by itself.
        if let Some(thread) = self.thread.take().filter(|_| refuse_async().is_ok()) {
            let _ = thread.join();
        }
    }
}

fn refuse_async() -> Result<()> {
    match Handle::try_current() {
        Err(_) => Ok(()),
        Ok(_) => {
            let text = "a blocking call inside async code would keep other tasks from running, and a thread of `spawn_blocking` or \
                        `block_in_place` looks the same; use the same names without `blocking`, or a thread of your own";
            Err(Error::new(ErrorKind::Misuse, text))
        }
    }
}

/// A client over whatever `connect` makes on a new thread, and that thread.
pub(super) fn start<F>(connect: impl FnOnce() -> F + Send + 'static) -> Result<(Locks, Arc<Background>)>
where
    F: Future<Output = Result<Locks>>,
{
    refuse_async()?;
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::Unavailable, "no thread for the client of the store").caused_by(error)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let handle = runtime.handle().clone();
    let (end, ended) = oneshot::channel();
    let (answer, answered) = mpsc::sync_channel(1);
    let run = move || {
        runtime.block_on(async {
            let connected = connect().await;
            let locks = connected.as_ref().ok().cloned();
            if answer.send(connected).is_err() {
                return;
            }
            let Some(locks) = locks else { return };
            // An error is the sender's end, which says the same.
            let _ = ended.await;
            // What it does not reach is freed by its lease.
            let _ = locks.close(SETTLE).await;
        });
    };
    let thread = std::thread::Builder::new().name("onelock".into()).spawn(run).map_err(failed)?;
    let thread = Arc::new(Background { runtime: handle, end: Some(end), thread: Some(thread) });
    let gone = |_| Error::new(ErrorKind::Closed, "the thread of this client has ended");
    let locks = answered.recv().map_err(gone)??;
    Ok((locks, thread))
}
