//! The process of a server that a test kills, stops and starts again; and waiting for a server.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use super::{Program, Server, clock, pause_process, power};
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

/// A server's process, or none, in a folder of its own.
#[derive(Debug)]
pub(super) struct Process {
    server: Mutex<Option<Server>>,
    /// Dropped after the server, which would write into it again.
    folder: TempDir,
    /// What its data is called in the folder.
    data: &'static str,
}

impl Process {
    pub(super) fn new(folder: TempDir, data: &'static str) -> Self {
        Self { server: Mutex::default(), folder, data }
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where its data is.
    pub(super) fn data(&self) -> PathBuf {
        self.folder().join(self.data)
    }

    /// What it has written.
    pub(super) fn log(&self) -> PathBuf {
        self.folder().join("log")
    }

    fn lock(&self) -> MutexGuard<'_, Option<Server>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What comes before the command: a clock of its own, and what can cut its power.
    pub(super) fn words(&self) -> Verdict<Vec<OsString>> {
        let mut words = clock::words(self.folder())?;
        words.extend(power::words(self.folder(), self.data)?);
        Ok(words)
    }

    /// Runs the program and does not wait.
    pub(super) fn start(&self, program: Program, arguments: Vec<OsString>) -> Verdict {
        self.begin(Server::start_by(self.words()?, program, arguments, &self.log())?);
        Ok(())
    }

    /// The same of a server that was started already.
    pub(super) fn begin(&self, server: Server) {
        *self.lock() = Some(server);
    }

    /// Kills it, and takes from its data what was not synced.
    pub(super) async fn cut_power(&self) -> Verdict {
        self.kill()?;
        power::lose(self.folder(), self.data).await
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
