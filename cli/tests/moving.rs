//! The guides of docs/moving-from.md: each library's own client and this one exclude each other while a fleet moves.
//!
//! The two sides take turns: each asks for the lock while the other one is inside. What they did is in a file that the
//! sections themselves write, and a folder is there as long as somebody is inside.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use onelock_testbed::servers::etcd::Member;
use onelock_testbed::servers::mariadb::MariaDb;
use onelock_testbed::servers::postgres::PostgresServer;
use onelock_testbed::servers::redis::{self, RedisServer};
use onelock_testbed::servers::zookeeper::{self, ZkServer};
use onelock_testbed::verdict::{Context as _, Stop, Verdict};
use onelock_testbed::{ensure, ensure_eq};
use tempfile::TempDir;
use tokio::process::Command;

/// Sections of each side.
const SECTIONS: usize = 100;

/// How long all of them may take on a busy machine.
const BOUND: Duration = Duration::from_secs(300);

/// The library's own lock is held around each of these, by the words of its shell or its command.
const SECTION: &str = "sh section.sh";

/// A folder in which two sides take turns.
struct Turns(TempDir);

impl Turns {
    fn new() -> Verdict<Self> {
        let folder = TempDir::new()?;
        for (name, text) in [
            ("turn.sh", include_str!("moving/turn.sh")),
            ("section.sh", include_str!("moving/section.sh")),
            ("redis_py.py", include_str!("moving/redis_py.py")),
            ("kazoo_lock.py", include_str!("moving/kazoo_lock.py")),
            ("Curator.java", include_str!("moving/Curator.java")),
        ] {
            fs::write(folder.path().join(name), text)?;
        }
        Ok(Self(folder))
    }

    /// A command in the folder, which ends with the test.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).args(words).current_dir(self.0.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    /// Sections of `side`, each by the command `locked`, in which `{}` stands for the section.
    fn commands(&self, side: &str, locked: &str) -> Command {
        let section = locked.replace("{}", &format!("{SECTION} {side}"));
        let text = format!("for i in $(seq {SECTIONS}); do sh turn.sh {side} && {section} || exit 1; done");
        self.command(&["sh", "-c", &text])
    }

    /// Sections of `side` in one session of a database's shell, whose input is `lock`, a section, `unlock`; `{}` in
    /// `section` stands for the section's command.
    fn session(
        &self,
        shell: &[&str],
        side: &str,
        lock: &str,
        section: &str,
        unlock: &str,
    ) -> Verdict<Command> {
        let section = section.replace("{}", &format!("{SECTION} {side}"));
        let text = format!("\\! sh turn.sh {side}\n{lock}\n\\! {section}\n{unlock}\n").repeat(SECTIONS);
        let script = self.0.path().join(format!("{side}.sql"));
        fs::write(&script, text)?;
        let mut command = self.command(shell);
        command.stdin(fs::File::open(script)?);
        Ok(command)
    }

    /// Sections of `ours` by the library.
    async fn library(&self, url: &str) -> Verdict {
        let lock = onelock::connect(url).await?.mutex("nightly")?;
        for _ in 0..SECTIONS {
            finish(self.command(&["sh", "turn.sh", "ours"])).await?;
            let guard = lock.acquire().await?;
            finish(self.command(&["sh", "section.sh", "ours"])).await?;
            guard.release().await?;
        }
        Ok(())
    }

    /// Lets both run to their ends, and judges by what they did.
    async fn judge(&self, ours: impl Future<Output = Verdict>, theirs: Command) -> Verdict {
        let both = async { tokio::try_join!(ours, finish(theirs)) };
        let played = tokio::time::timeout(BOUND, both).await.context("the turns did not end");
        let journal = fs::read_to_string(self.0.path().join("journal"))?;
        let sections: Vec<_> = journal.lines().collect();
        ensure!(!self.0.path().join("overlap").exists(), "two were inside: {sections:?}");
        played??;
        ensure_eq!(sections.len(), 2 * SECTIONS, "sections");
        ensure!(sections.windows(2).all(|two| two[0] != two[1]), "no turns were taken: {sections:?}");
        fs::remove_file(self.0.path().join("journal"))?;
        Ok(())
    }
}

async fn finish(mut command: Command) -> Verdict {
    let output = command.output().await?;
    if output.status.success() {
        return Ok(());
    }
    Err(Stop::failed(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr))))
}

/// The interpreter for which Debian ships the libraries; `PYTHON` names another one.
fn python() -> String {
    std::env::var("PYTHON").unwrap_or_else(|_| "/usr/bin/python3".to_owned())
}

/// The program of this build under its lock.
fn onelock(url: &str) -> String {
    format!("{} run --store '{url}' nightly -- {{}}", env!("CARGO_BIN_EXE_onelock"))
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_py() -> Verdict {
    let server = RedisServer::start(redis::Setup::default()).await?;
    let (turns, address) = (Turns::new()?, server.address());
    let theirs =
        turns.command(&[&python(), "redis_py.py", &address.port().to_string(), &SECTIONS.to_string()]);
    let url = format!("redis://{address}/0?layout=plain&namespace=job-lock:");
    turns.judge(turns.library(&url), theirs).await
}

#[tokio::test(flavor = "multi_thread")]
async fn etcdctl() -> Verdict {
    let server = Member::single(None).await?;
    let turns = Turns::new()?;
    let theirs = format!("ETCDCTL_API=3 etcdctl --endpoints={} lock nightly -- {{}}", server.address());
    let url = format!("etcd://{}?namespace=", server.address());
    turns.judge(turns.library(&url), turns.commands("theirs", &theirs)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn curator() -> Verdict {
    let server = ZkServer::start(zookeeper::Setup::default()).await?;
    let (turns, hosts) = (Turns::new()?, server.address().to_string());
    let (jars, sections) = ("/usr/share/java/*", SECTIONS.to_string());
    ensure!(
        Path::new("/usr/share/java/curator-recipes.jar").exists(),
        "apt-get install libcurator-recipes-java"
    );
    let theirs = turns.command(&["java", "-cp", jars, "Curator.java", &hosts, &sections]);
    turns.judge(turns.library(&format!("zk://{hosts}/onelock")), theirs).await
}

#[tokio::test(flavor = "multi_thread")]
async fn kazoo() -> Verdict {
    let server = ZkServer::start(zookeeper::Setup::default()).await?;
    let (turns, hosts) = (Turns::new()?, server.address().to_string());
    let kazoo = |sections: usize| turns.command(&[&python(), "kazoo_lock.py", &hosts, &sections.to_string()]);
    // The old side was there first.
    finish(kazoo(0)).await?;
    let theirs = kazoo(SECTIONS);
    turns.judge(turns.library(&format!("zk://{hosts}/onelock")), theirs).await
}

/// A lock of the application's in a database; then the same with ours inside it; then ours alone.
async fn in_a_database(shell: &[&str], url: &str, lock: &str, unlock: &str) -> Verdict {
    let turns = Turns::new()?;
    let locked = |side: &str, section: &str| turns.session(shell, side, lock, section, unlock);
    let ours = onelock(url);
    turns.judge(finish(locked("both", &ours)?), locked("theirs", "{}")?).await?;
    turns.judge(turns.library(url), locked("both", &ours)?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn advisory_locks() -> Verdict {
    let server = PostgresServer::start(&[]).await?;
    let url = server.url();
    let shell = ["psql", "-qX", "-v", "ON_ERROR_STOP=1", &url];
    in_a_database(&shell, &url, "select pg_advisory_lock(42);", "select pg_advisory_unlock(42);").await
}

#[tokio::test(flavor = "multi_thread")]
async fn get_lock() -> Verdict {
    let server = MariaDb::start(&[]).await?;
    let port = format!("--port={}", server.port());
    let shell = ["mariadb", "--no-defaults", "--protocol=tcp", "--host=127.0.0.1", &port, "--user=root"];
    let (lock, unlock) = ("select get_lock('nightly', 60);", "select release_lock('nightly');");
    in_a_database(&shell, &server.url(), lock, unlock).await
}

/// `flock` around a job; then `flock` around the program; then the program alone.
#[tokio::test(flavor = "multi_thread")]
async fn flock() -> Verdict {
    let turns = Turns::new()?;
    let url = format!("sqlite://{}/locks.db", turns.0.path().display());
    let both = format!("flock file {}", onelock(&url));
    turns.judge(finish(turns.commands("both", &both)), turns.commands("theirs", "flock file {}")).await?;
    turns.judge(finish(turns.commands("ours", &onelock(&url))), turns.commands("both", &both)).await
}
