//! The thread that runs a client.

use std::future::Future;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::Locks;
use crate::client;
use crate::error::{Error, ErrorKind, Result};

/// How long the last handle to go waits for releases that are still under way.
const SETTLE: Duration = Duration::from_secs(5);

/// The thread that runs a client.
#[derive(Debug)]
pub(super) struct ClientThread {
    runtime: Handle,
    /// Given the client when the last handle goes.
    end: Option<oneshot::Sender<client::Locks>>,
    locks: Option<client::Locks>,
    thread: Option<JoinHandle<()>>,
}

impl ClientThread {
    /// Polls `future` on the caller's thread until it ends; the thread of the client runs everything else meanwhile.
    pub(super) fn call<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        refuse_async()?;
        self.runtime.block_on(future)
    }
}

impl Drop for ClientThread {
    fn drop(&mut self) {
        if let (Some(end), Some(locks)) = (self.end.take(), self.locks.take()) {
            let _ = end.send(locks);
        }
        // In async code waiting could wait for itself; the thread then ends by itself.
        if let Some(thread) = self.thread.take().filter(|_| Handle::try_current().is_err()) {
            let _ = thread.join();
        }
    }
}

fn refuse_async() -> Result<()> {
    match Handle::try_current() {
        // Tokio says this only by a panic, which ends the process there.
        Err(error) if error.is_thread_local_destroyed() => Err(Error::new(
            ErrorKind::Misuse,
            "a blocking call at the end of a thread, where thread-local values are destroyed, cannot wait",
        )),
        Err(_) => Ok(()),
        Ok(_) => {
            let text = "a blocking call inside async code would keep other tasks from running, and a thread of `spawn_blocking` or \
                        `block_in_place` looks the same; use the same names without `blocking`, or a thread of your own";
            Err(Error::new(ErrorKind::Misuse, text))
        }
    }
}

/// A client over whatever `connect` makes, and a new thread that runs it.
///
/// # Errors
/// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) inside async code; [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when no thread
/// can be made; what `connect` says.
pub fn connect_by<F>(connect: impl FnOnce() -> F + Send + 'static) -> Result<Locks>
where
    F: Future<Output = Result<client::Locks>>,
{
    refuse_async()?;
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::Unavailable, "no thread for the client of the store").caused_by(error)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let handle = runtime.handle().clone();
    let (end, ended) = oneshot::channel::<client::Locks>();
    let run = move || {
        runtime.block_on(async {
            // Without a client nothing was connected.
            if let Ok(locks) = ended.await {
                // What it does not reach is freed by its lease.
                let _ = locks.close(SETTLE).await;
            }
        });
        // What hangs in a thread of its pool, such as a look at a name server, cannot be stopped: nobody waits for it.
        runtime.shutdown_background();
    };
    let thread = std::thread::Builder::new().name("onelock".into()).spawn(run).map_err(failed)?;
    let mut thread = ClientThread { runtime: handle, end: Some(end), locks: None, thread: Some(thread) };
    let locks = thread.call(connect())?;
    thread.locks = Some(locks.clone());
    Ok(Locks { locks, thread: Arc::new(thread) })
}
