//! The process of a server that a test kills, stops and starts again; and waiting for a server.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use super::clock::{self, SteppedClock};
use super::{Place, find, folder_in, pause_process, power, signal_process, spawn};
use crate::ensure;
use crate::verdict::{Context as _, Stop, Verdict};

/// How long a server may take until it is what was asked for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `reached` fails no more: a server that is still coming up fails now and then.
///
/// # Errors
/// When it still fails after a minute, with that.
pub async fn until<F: Future<Output = Verdict>>(what: impl Display, reached: impl Fn() -> F) -> Verdict {
    let end = Instant::now() + PATIENCE;
    while let Err(missing) = reached().await {
        if Instant::now() > end {
            return Err(missing.during(format!("{what}: not within {PATIENCE:?}")));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// A server's process, or none, in a folder of its own. It does not outlive this process.
#[derive(Debug)]
pub struct Process {
    child: Mutex<Option<Child>>,
    folder: TempDir,
    /// What its data is called in the folder.
    data: &'static str,
    clock: Option<SteppedClock>,
    /// The network namespace that it runs in, if it is another than ours.
    pub(super) host: Option<String>,
}

impl Process {
    /// None yet, whose data has this name in its folder.
    ///
    /// # Errors
    /// When there is no folder.
    pub fn new(place: Place, data: &'static str) -> Verdict<Self> {
        let folder = folder_in(place)?;
        if place == Place::Power {
            power::prepare(folder.path())?;
        }
        let clock = (place == Place::Clock).then(|| SteppedClock::new(folder.path())).transpose()?;
        Ok(Self { child: Mutex::default(), folder, data, clock, host: None })
    }

    /// Its own clock, if it is in a place that has one.
    #[must_use]
    pub fn clock(&self) -> Option<&SteppedClock> {
        self.clock.as_ref()
    }

    /// Its folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where its data is.
    pub(super) fn data(&self) -> PathBuf {
        self.folder().join(self.data)
    }

    /// What it has written.
    #[must_use]
    pub fn log(&self) -> String {
        let log = std::fs::read(self.folder().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the program, as the user that these options of `setpriv` say, and does not wait.
    ///
    /// # Errors
    /// When the program is not installed.
    pub fn start(
        &self,
        user: Vec<OsString>,
        program: impl AsRef<OsStr>,
        arguments: Vec<OsString>,
    ) -> Verdict {
        // One that did not come up may run yet, and must not write while its data is copied.
        self.kill()?;
        let output = File::options().create(true).append(true).open(self.folder().join("log"))?;
        // A parent-death signal needs a step between fork and exec, which would be unsafe code here: the util-linux
        // program does it. The user is changed by the same call: the kernel forgets the signal when that is done later.
        let mut command = Command::new("setpriv");
        command.args(user).args(["--pdeathsig", "KILL", "--"]);
        command.args(clock::words(self.folder())?).args(power::words(self.folder(), self.data)?);
        if let Some(host) = &self.host {
            command.arg(find(OsStr::new("ip"))?).args(["netns", "exec", host]);
        }
        command.arg(find(program.as_ref())?).args(arguments);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        // A terminal's Ctrl-C is for the program that measures: what is under way there ends first.
        command.process_group(0);
        *self.child() = Some(spawn(command)??);
        Ok(())
    }

    /// Kills it, and takes from its data what was not synced.
    ///
    /// # Errors
    /// When it was not in a place for this, or does not end.
    pub async fn cut_power(&self) -> Verdict {
        self.kill()?;
        power::lose(self.folder(), self.data).await
    }

    /// Waits until it is ready.
    ///
    /// # Errors
    /// When it is not within a minute, or has ended.
    pub async fn until<F: Future<Output = bool>>(&self, ready: impl Fn() -> F) -> Verdict {
        until("the start of a server", || async {
            ensure!(ready().await || self.check().is_err(), "it does not answer");
            Ok(())
        })
        .await?;
        self.check()
    }

    /// Fails when it has ended, with the end of its log.
    pub(super) fn check(&self) -> Verdict {
        let ended = self.child().as_mut().context("a running server")?.try_wait()?;
        let Some(status) = ended else { return Ok(()) };
        let log = self.log();
        let lines: Vec<_> = log.lines().rev().take(5).collect();
        Err(Stop::failed(format!("the server ended ({status}); it said last: {lines:?}")))
    }

    pub(super) fn id(&self) -> Verdict<u32> {
        Ok(self.child().as_ref().context("a running server")?.id())
    }

    pub(super) fn signal(&self, signal: Signal) -> Verdict {
        signal_process(self.id()?, signal)
    }

    /// Kills it if it runs, and waits until it is gone.
    ///
    /// # Errors
    /// When that fails.
    pub fn kill(&self) -> Verdict {
        let Some(mut child) = self.child().take() else { return Ok(()) };
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Stops it where it is, or lets it go on; returns when it has come to a stand.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pause(&self, stopped: bool) -> Verdict {
        pause_process(self.id()?, stopped)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nobody is left to tell; the parent-death signal is the second line.
        let _ = self.kill();
    }
}
