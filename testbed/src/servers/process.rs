//! The process of a server that a test kills, stops and starts again; and waiting for a server.

use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{Server, pause_process};
use crate::verdict::{Context as _, Stop, Verdict};

/// How long a server may take until it is what was asked for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until nothing is missing any more.
///
/// # Errors
/// When something is still missing after a minute, with what that is; and what `missing` fails with.
pub(super) async fn until<F: Future<Output = Verdict<Option<String>>>>(
    what: impl Display,
    missing: impl Fn() -> F,
) -> Verdict {
    let end = Instant::now() + PATIENCE;
    while let Some(state) = missing().await? {
        if Instant::now() > end {
            return Err(Stop::failed(format!("{what}: not within {PATIENCE:?}: {state}")));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// A server's process, or none.
#[derive(Debug, Default)]
pub(super) struct Process(Mutex<Option<Server>>);

impl Process {
    fn lock(&self) -> MutexGuard<'_, Option<Server>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `server`, and waits until it is ready.
    pub(super) async fn run<F: Future<Output = bool>>(
        &self,
        server: Server,
        ready: impl Fn() -> F,
    ) -> Verdict {
        *self.lock() = Some(server);
        self.until(ready).await
    }

    /// Runs `server` and does not wait.
    pub(super) fn begin(&self, server: Server) {
        *self.lock() = Some(server);
    }

    /// Waits until it is ready.
    pub(super) async fn until<F: Future<Output = bool>>(&self, ready: impl Fn() -> F) -> Verdict {
        let missing = || async {
            self.check()?;
            Ok((!ready().await).then(|| "it does not answer".to_owned()))
        };
        until("the start of a server", missing).await
    }

    /// Fails when it has ended, with the end of its log.
    pub(super) fn check(&self) -> Verdict {
        self.lock().as_mut().context("a running server")?.check()
    }

    pub(super) fn id(&self) -> Verdict<u32> {
        Ok(self.lock().as_ref().context("a running server")?.id())
    }

    pub(super) fn signal(&self, signal: Signal) -> Verdict {
        self.lock().as_ref().context("a running server")?.signal(signal)
    }

    /// Kills it if it runs, and waits until it is gone.
    pub(super) fn kill(&self) -> Verdict {
        self.lock().take().map_or(Ok(()), |mut server| server.kill())
    }

    /// Stops it where it is, or lets it go on.
    pub(super) fn pause(&self, stopped: bool) -> Verdict {
        pause_process(self.id()?, stopped)
    }
}
