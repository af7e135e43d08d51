//! A client in a process of its own, to be stopped or killed: the test program starts itself again.
//!
//! A worker reads one command a line and answers with one line. It ends with its input, or with its parent.

use std::collections::HashMap;
use std::io::{BufRead as _, Write as _};
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use onelock_core::Timestamp;
use onelock_core::client::Locks;
use onelock_core::client::guard::Guard;
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use crate::child;
use crate::ctx::{Ctx, PATIENCE, client_of, within};
use crate::harness::Harness;
use crate::servers::signal_process;
use crate::verdict::{Context as _, Stop, Verdict};
use crate::wear::{self, Usage};

const ORDER: &str = "ONELOCK_CONFORMANCE_WORKER";
/// Tells a worker's answers from what else a program may print.
const MARK: &str = "worker: ";

/// Runs as a worker when this process was started as one.
pub fn run_if_asked(harness: &Arc<dyn Harness>) -> Option<ExitCode> {
    child::run_if_asked(ORDER, |(url, lease): (String, Duration)| serve(harness, &url, lease))
}

fn serve(harness: &Arc<dyn Harness>, url: &str, lease: Duration) -> Verdict {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let locks = runtime.block_on(async {
        let backend = harness.open(url).await?;
        client_of(backend, harness.clock(), lease, lease)
    })?;
    let mut guards = HashMap::new();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let answer = runtime
            .block_on(answer(&locks, &mut guards, &line))
            .unwrap_or_else(|error| format!("error {error}"));
        let mut out = std::io::stdout().lock();
        writeln!(out, "{MARK}{answer}")?;
        out.flush()?;
    }
    Ok(())
}

async fn answer(locks: &Locks, guards: &mut HashMap<String, Guard>, line: &str) -> Verdict<String> {
    let (command, name) = line.split_once(' ').unwrap_or((line, ""));
    let mut guard = || guards.remove(name).context("this lock was not asked for");
    match command {
        "acquire" | "least" => {
            let (name, least) = name.split_once(' ').map_or((name, None), |(name, ms)| (name, Some(ms)));
            let lock = locks.mutex(name)?;
            let lock = match least {
                Some(ms) => lock.at_least(Duration::from_millis(ms.parse()?))?,
                None => lock,
            };
            let guard = lock.acquire().await?;
            let answer = format!("{} {}", guard.token()?, guard.deadline().since_origin().as_nanos());
            guards.insert(name.to_owned(), guard);
            Ok(answer)
        }
        "hand" => Ok(guard()?.hand_over().await?.into()),
        "held" => {
            let guard = guard()?;
            let answer = format!("{} {}", guard.is_held(), guard.token().is_ok());
            guards.insert(name.to_owned(), guard);
            Ok(answer)
        }
        "wear" => {
            let (cycles, seed) = name.split_once(' ').context("how much, and a seed")?;
            wear::work(locks, cycles.parse()?, seed.parse()?).await?;
            Ok(serde_json::to_string(&Usage::now()?)?)
        }
        "release" => Ok(match guard()?.release().await {
            Ok(()) => "released".to_owned(),
            Err(error) => format!("{:?}", error.kind()),
        }),
        other => Err(Stop::failed(format!("a worker does not know `{other}`"))),
    }
}

/// A running worker. Killed when dropped.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts one as a client of the case's store, with leases of `lease` for holders and waiters.
    ///
    /// # Errors
    /// When the program cannot be started again.
    pub fn start(ctx: &Ctx, lease: Duration) -> Verdict<Self> {
        let (mut child, input) = child::start(ORDER, &(ctx.store().url()?, lease), Stdio::piped())?;
        let output = BufReader::new(child.stdout.take().context("the worker's output")?).lines();
        Ok(Self { child, input, output })
    }

    /// Sends a command without waiting for the answer.
    ///
    /// # Errors
    /// When the worker has gone.
    pub async fn send(&mut self, command: &str) -> Verdict {
        self.input.write_all(format!("{command}\n").as_bytes()).await.context("the worker's input")
    }

    /// The next answer.
    ///
    /// # Errors
    /// When the worker has gone, does not answer, or says that the command failed.
    pub async fn answer(&mut self) -> Verdict<String> {
        let line = async {
            loop {
                let line = self.output.next_line().await?.context("the worker has ended")?;
                if let Some(answer) = line.strip_prefix(MARK) {
                    return Ok::<_, Stop>(answer.to_owned());
                }
            }
        };
        let answer = within(PATIENCE, "an answer of the worker", line).await??;
        match answer.strip_prefix("error ") {
            Some(error) => Err(Stop::failed(error)),
            None => Ok(answer),
        }
    }

    /// Acquires an exclusive lock: its token and deadline.
    ///
    /// # Errors
    /// As [`Worker::answer`].
    pub async fn acquire(&mut self, name: &str) -> Verdict<(i64, Timestamp)> {
        self.send(&format!("acquire {name}")).await?;
        self.acquired().await
    }

    /// The answer to an `acquire` that was sent before.
    ///
    /// # Errors
    /// As [`Worker::answer`].
    pub async fn acquired(&mut self) -> Verdict<(i64, Timestamp)> {
        let answer = self.answer().await?;
        let (token, deadline) = answer.split_once(' ').context("an answer to acquire")?;
        let deadline = Timestamp::from_origin(Duration::from_nanos(deadline.parse()?));
        Ok((token.parse()?, deadline))
    }

    /// Lets it work for so many cycles, and says what it has in use afterwards.
    ///
    /// # Errors
    /// As [`Worker::answer`].
    pub async fn wear(&mut self, cycles: u64, seed: u64) -> Verdict<Usage> {
        self.send(&format!("wear {cycles} {seed}")).await?;
        Ok(serde_json::from_str(&self.answer().await?)?)
    }

    /// Stops it where it is, lets it go on, or kills it.
    ///
    /// # Errors
    /// When it has gone.
    pub fn signal(&self, signal: Signal) -> Verdict {
        signal_process(self.child.id().context("the worker has ended")?, signal)
    }

    /// Kills it and waits until it is gone.
    ///
    /// # Errors
    /// When that fails.
    pub async fn kill(mut self) -> Verdict {
        Ok(self.child.kill().await?)
    }
}
