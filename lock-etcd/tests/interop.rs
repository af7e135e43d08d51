//! One lock shared with `etcdctl lock`, which is Go's `concurrency.Mutex`: a plain name and an empty prefix.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use crate::support::server::Member;
use onelock_conformance::Verdict;
use onelock_conformance::ctx::{PATIENCE, exclusive, held, name, request, ticket, trying, waiting};
use onelock_conformance::harness::open_by;
use onelock_core::{Backend, LockName, Locks, Mode, Standing, Wake};
use onelock_etcd::DRIVER;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

async fn client(server: &Member) -> Arc<dyn Backend> {
    open_by(&DRIVER, &format!("{}?prefix=", server.url())).await.unwrap()
}

fn etcdctl(server: &Member, arguments: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", "etcdctl"]);
    command.arg(format!("--endpoints={}", server.address())).args(arguments);
    command.env("ETCDCTL_API", "3").stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    command
}

/// An `etcdctl lock` that prints its key once it holds.
struct Theirs {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl Theirs {
    fn start(server: &Member, name: &str) -> Self {
        let mut child = etcdctl(server, &["lock", name]).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, output }
    }

    async fn holds(&mut self) -> String {
        timeout(PATIENCE, self.output.next_line()).await.unwrap().unwrap().unwrap()
    }

    async fn stop(mut self) {
        let id = Pid::from_raw(i32::try_from(self.child.id().unwrap()).unwrap()).unwrap();
        kill_process(id, Signal::INT).unwrap();
        timeout(PATIENCE, self.child.wait()).await.unwrap().unwrap();
    }
}

async fn until_in_line(backend: &Arc<dyn Backend>, name: &LockName, count: usize) -> Verdict {
    let work = async {
        loop {
            let line = backend.inspect(name).await?;
            if line.holders.len() + line.waiters.len() == count {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, work).await.unwrap()
}

#[tokio::test]
async fn they_wait_for_us_and_we_for_them() -> Verdict {
    let server = Member::single(None).await?;
    let backend = client(&server).await;
    for mode in ["x", "s", "p2"] {
        let mode: Mode = mode.parse()?;
        let name = name(&format!("jobs-{mode}"))?;
        let ours = request(&name, mode)?;
        let grant = held(&backend, &ours).await?;
        let mut theirs = Theirs::start(&server, name.as_str());
        until_in_line(&backend, &name, 2).await?;
        let line = backend.inspect(&name).await?;
        assert_eq!((line.holders.len(), line.waiters.len()), (1, 1), "{mode}");
        // Nobody passes them, as they are first in the line of waiters.
        assert!(matches!(backend.acquire(&trying(request(&name, mode)?)).await?, Standing::Busy(_)));
        let behind = request(&name, mode)?;
        let place = waiting(&backend, &behind).await?;
        backend.release(&ticket(&ours, grant.token)).await?;
        let key = theirs.holds().await;
        assert!(key.starts_with(&format!("{name}/")), "{key}");
        let line = backend.inspect(&name).await?;
        assert_eq!((line.holders.len(), line.waiters.len()), (1, 1), "{mode}");
        let (waiter, wanted) = (Arc::clone(&backend), ticket(&behind, place.token));
        let woken = tokio::spawn(async move { waiter.wait(&wanted).await });
        theirs.stop().await;
        assert_eq!(woken.await??, Wake::Held(place.token.unwrap()));
        backend.release(&ticket(&behind, place.token)).await?;
    }
    Ok(())
}

/// An entry of theirs is evicted by its number, and they notice that they lost it.
#[tokio::test]
async fn their_entry_can_be_evicted() -> Verdict {
    let server = Member::single(None).await?;
    let backend = client(&server).await;
    let name = name("stuck")?;
    let mut theirs = Theirs::start(&server, "stuck");
    theirs.holds().await;
    let token = backend.inspect(&name).await?.holders[0].token;
    assert!(matches!(backend.acquire(&trying(exclusive(&name)?)).await?, Standing::Busy(_)));
    backend.evict(&name, token).await?;
    held(&backend, &trying(exclusive(&name)?)).await?;
    theirs.stop().await;
    Ok(())
}

/// Both write `in` and `out` to one file under the lock: the words never interleave.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_both_kinds_excludes_each_other() -> Verdict {
    const EACH: usize = 10;
    let server = Member::single(None).await?;
    let file = tempfile::NamedTempFile::new()?;
    let path = file.path().to_owned();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let script = format!("echo in >>{0}; sleep 0.002; echo out >>{0}", path.display());
        let runs: Vec<_> =
            (0..EACH).map(|_| etcdctl(&server, &["lock", "crowd", "--", "sh", "-c", &script])).collect();
        tasks.spawn(async move {
            for mut run in runs {
                assert!(timeout(PATIENCE, run.status()).await.unwrap().unwrap().success());
            }
        });
        let locks = Locks::builder(client(&server).await).build()?;
        let path = path.clone();
        tasks.spawn(async move {
            use std::io::Write as _;
            for _ in 0..EACH * 3 {
                let guard = locks.mutex("crowd").unwrap().acquire().await.unwrap();
                let mut file = std::fs::File::options().append(true).open(&path).unwrap();
                writeln!(file, "in").unwrap();
                tokio::time::sleep(Duration::from_millis(2)).await;
                writeln!(file, "out").unwrap();
                guard.release().await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done?;
    }
    let words = std::fs::read_to_string(&path)?;
    let words: Vec<_> = words.lines().collect();
    assert_eq!(words.len(), 2 * 2 * (EACH + EACH * 3));
    assert!(words.chunks(2).all(|pair| pair == ["in", "out"]), "{words:?}");
    Ok(())
}
