//! The clients of a trial: processes of their own, or tasks where the store lives in one process.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use onelock_core::client::Locks;
use onelock_core::toolkit::Mutex;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Plan;
use super::event::{DEPOSED, Journal, RELEASED, STOPPED};
use super::pulse::{self, THREADS};
use super::work::Work;
use crate::case::Need;
use crate::child;
use crate::ctx::{Ctx, PATIENCE, within};
use crate::ensure;
use crate::faults::Link;
use crate::harness::Harness;
use crate::servers::{data_folder, signal_process};
use crate::verdict::{Context as _, Stop, Verdict};

const ORDER: &str = "ONELOCK_TRIAL_CLIENT";

/// What a client process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ClientOrder {
    plan: Plan,
    number: u32,
    url: String,
    journal: PathBuf,
    seed: u64,
}

/// Works as a client when this process was started as one.
pub fn run_if_asked(harness: &Arc<dyn Harness>) -> Option<ExitCode> {
    child::run_if_asked(ORDER, |order| serve(harness, order))
}

fn serve(harness: &Arc<dyn Harness>, order: ClientOrder) -> Verdict {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()?;
    let worked = runtime.block_on(async {
        let (stop, stopped) = watch::channel(false);
        let journal = journal(&order.journal)?;
        let commands = tokio::spawn(obey(stop, Arc::clone(&journal)));
        let backend = loop {
            match harness.open(&order.url).await {
                Ok(backend) => break backend,
                // It may be started while its way is cut.
                Err(error) if error.is_retryable() => tokio::time::sleep(Duration::from_millis(50)).await,
                Err(error) => return Err(error.into()),
            }
        };
        let work = Work::new((backend, harness.clock()), (order.plan, order.number), journal, stopped)?;
        let locks = work.locks.clone();
        let mut work = tokio::spawn(work.run(order.seed));
        tokio::select! {
            worked = &mut work => worked??,
            // Whatever was asked of it, its parent has gone.
            obeyed = commands => {
                obeyed??;
                work.await??;
            }
        }
        Ok(locks.close(PATIENCE).await?)
    });
    // A read of the input may be under way.
    runtime.shutdown_background();
    worked
}

/// The journal of a client, in which it is noted too when the client could not run.
fn journal(path: &Path) -> Verdict<Arc<Journal>> {
    let journal = Arc::new(Journal::open(path)?);
    pulse::watch(&journal);
    Ok(journal)
}

/// Reads commands until the work is to stop.
async fn obey(stop: watch::Sender<bool>, journal: Arc<Journal>) -> Verdict {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        match line.split_once(' ') {
            Some(("block", ms)) => {
                pulse::block(&journal, Duration::from_millis(ms.parse()?));
            }
            _ => break,
        }
    }
    stop.send_replace(true);
    Ok(())
}

/// All clients of a trial.
pub struct Crew {
    /// The clients.
    pub clients: Vec<Client>,
    _folder: TempDir,
}

/// One client.
pub struct Client {
    /// Its number.
    pub number: u32,
    /// The way to the store.
    pub link: Arc<Link>,
    order: ClientOrder,
    journals: Mutex<Vec<Tail>>,
    body: tokio::sync::Mutex<Body>,
}

/// Reads what is new in a journal.
#[derive(Debug)]
struct Tail {
    path: PathBuf,
    read: u64,
    counts: Counts,
}

/// What a trial waits for: full cycles, works that the end of their hold stopped, and those of leaders that led no more.
type Counts = [u64; 3];

impl Tail {
    fn of(path: PathBuf) -> Self {
        Self { path, read: 0, counts: Counts::default() }
    }

    fn counts(&mut self) -> Verdict<Counts> {
        use std::io::{Read as _, Seek as _, SeekFrom};
        // It may not have begun to write.
        let Ok(mut file) = std::fs::File::open(&self.path) else { return Ok(self.counts) };
        file.seek(SeekFrom::Start(self.read))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.read += whole as u64;
        for (count, what) in self.counts.iter_mut().zip([RELEASED, STOPPED, DEPOSED]) {
            *count += text[..whole].matches(what).count() as u64;
        }
        Ok(self.counts)
    }
}

fn sum(mut counts: impl Iterator<Item = Verdict<Counts>>) -> Verdict<Counts> {
    counts.try_fold(Counts::default(), |sum, next| {
        let next = next?;
        Ok(std::array::from_fn(|i| sum[i] + next[i]))
    })
}

enum Body {
    Process { child: Box<Child>, input: ChildStdin },
    Task { work: JoinHandle<Verdict>, stop: watch::Sender<bool>, locks: Locks },
    Ended,
}

impl Crew {
    /// Starts `count` clients.
    ///
    /// # Errors
    /// When a client cannot be started.
    pub async fn start(ctx: &Ctx, count: u32, plan: &Plan) -> Verdict<Self> {
        let folder = data_folder()?;
        let mut clients = Vec::new();
        for number in 0..count {
            clients.push(Client::start(ctx, number, plan, folder.path()).await?);
        }
        Ok(Self { clients, _folder: folder })
    }

    /// How many works have been stopped by the end of their hold, and by that of their leader's term.
    ///
    /// # Errors
    /// When a journal cannot be read.
    pub fn stopped(&self) -> Verdict<(u64, u64)> {
        let [_, stopped, deposed] = sum(self.clients.iter().map(Client::counts))?;
        Ok((stopped, deposed))
    }

    /// Ends the work of all and says when each could not run.
    ///
    /// # Errors
    /// When a client met an error that no fault explains, or does not end.
    pub async fn stop(&self) -> Verdict {
        for client in &self.clients {
            client.stop().await.context(format!("client {}", client.number))?;
        }
        Ok(())
    }
}

impl Client {
    async fn start(ctx: &Ctx, number: u32, plan: &Plan, folder: &Path) -> Verdict<Self> {
        let (link, file) = (Link::new(), folder.join(format!("client-{number}.jsonl")));
        let lacks = |need| ctx.harness().lacks(need).is_some();
        let url = match (lacks(Need::Processes), lacks(Need::Network)) {
            (true, _) => String::new(),
            (false, true) => ctx.store().url()?,
            (false, false) => ctx.store().url_by(&link).await?,
        };
        let seed = ctx.rng().bits();
        let order = ClientOrder { plan: plan.clone(), number, url, journal: file.clone(), seed };
        let body = if lacks(Need::Processes) {
            let backend = ctx.store().connect_by(&link).await?;
            let (stop, stopped) = watch::channel(false);
            let work = Work::new((backend, ctx.clock()), (plan.clone(), number), journal(&file)?, stopped)?;
            let locks = work.locks.clone();
            Body::Task { work: tokio::spawn(work.run(seed)), stop, locks }
        } else {
            process(&order)?
        };
        let journals = Mutex::new(vec![Tail::of(file)]);
        Ok(Self { number, link, order, journals, body: tokio::sync::Mutex::new(body) })
    }

    /// Where it, and whoever was there before it in its place, wrote down events.
    #[must_use]
    pub fn journals(&self) -> Vec<PathBuf> {
        self.journals.lock().iter().map(|tail| tail.path.clone()).collect()
    }

    /// How many full cycles have been written down.
    ///
    /// # Errors
    /// When a journal cannot be read.
    pub fn cycles(&self) -> Verdict<u64> {
        Ok(self.counts()?[0])
    }

    fn counts(&self) -> Verdict<Counts> {
        sum(self.journals.lock().iter_mut().map(Tail::counts))
    }

    /// Stops it where it is for `time`, and lets it go on.
    ///
    /// # Errors
    /// When it has gone, or is no process.
    pub async fn pause(&self, time: Duration) -> Verdict {
        let id = self.id().await?;
        signal_process(id, Signal::STOP)?;
        tokio::time::sleep(time).await;
        signal_process(id, Signal::CONT)
    }

    /// Blocks every thread of its runtime for `time`.
    ///
    /// # Errors
    /// When it has gone, or is no process.
    pub async fn block(&self, time: Duration) -> Verdict {
        if let Body::Process { input, .. } = &mut *self.body.lock().await {
            let line = format!("block {}\n", time.as_millis());
            input.write_all(line.as_bytes()).await.context("a client's input")?;
        }
        tokio::time::sleep(time).await;
        Ok(())
    }

    /// Kills it and starts another in its place.
    ///
    /// # Errors
    /// When that fails, or it had ended by itself.
    pub async fn replace(&self, seed: u64) -> Verdict {
        ensure!(!self.has_ended().await?, "client {} has ended; it said why", self.number);
        let mut body = self.body.lock().await;
        if let Body::Process { child, .. } = &mut *body {
            child.kill().await?;
            // By itself, just before.
            let ended = child.wait().await?;
            ensure!(ended.signal().is_some(), "client {} has ended; it said why", self.number);
        }
        let next = self.order.journal.with_extension(format!("{seed}.jsonl"));
        *body = process(&ClientOrder { journal: next.clone(), seed, ..self.order.clone() })?;
        self.journals.lock().push(Tail::of(next));
        Ok(())
    }

    /// Whether it has ended without being told to: a client ends with the first error that no fault explains.
    ///
    /// # Errors
    /// When its process cannot be looked at.
    pub async fn has_ended(&self) -> Verdict<bool> {
        Ok(match &mut *self.body.lock().await {
            Body::Process { child, .. } => child.try_wait()?.is_some(),
            Body::Task { work, .. } => work.is_finished(),
            Body::Ended => true,
        })
    }

    async fn id(&self) -> Verdict<u32> {
        match &*self.body.lock().await {
            Body::Process { child, .. } => child.id().context("the client has ended"),
            _ => Err(Stop::failed("a client that is no process")),
        }
    }

    async fn stop(&self) -> Verdict {
        let body = std::mem::replace(&mut *self.body.lock().await, Body::Ended);
        let ended = async {
            match body {
                Body::Process { mut child, mut input } => {
                    input.write_all(b"stop\n").await.context("a client's input")?;
                    let status = child.wait().await?;
                    status.success().then_some(()).context(format!("it ended with {status}"))
                }
                Body::Task { work, stop, locks } => {
                    stop.send_replace(true);
                    work.await??;
                    Ok(locks.close(PATIENCE).await?)
                }
                Body::Ended => Ok(()),
            }
        };
        within(PATIENCE * 3, "it ends", ended).await?
    }
}

fn process(order: &ClientOrder) -> Verdict<Body> {
    let (child, input) = child::start(ORDER, order, Stdio::null())?;
    Ok(Body::Process { child: Box::new(child), input })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::*;

    /// Another in its place would hide why.
    #[tokio::test]
    async fn who_has_ended_by_itself_is_not_replaced() {
        if std::env::var_os(ORDER).is_some() {
            // In its place.
            return;
        }
        let plan = Plan {
            lease: PATIENCE,
            modes: false,
            fifo: true,
            fencing: true,
            delay: false,
            worked: false,
            resource: 0,
        };
        let folder = data_folder().unwrap();
        let journal = folder.path().join("client-0.jsonl");
        let order = ClientOrder { plan, number: 0, url: String::new(), journal, seed: 0 };
        let mut child = tokio::process::Command::new("false").stdin(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let id = rustix::process::Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
        waitid(WaitId::Pid(id), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        let body = tokio::sync::Mutex::new(Body::Process { child: Box::new(child), input });
        let client = Client { number: 0, link: Link::new(), order, journals: Mutex::new(Vec::new()), body };
        assert!(client.replace(1).await.is_err());
    }
}
