//! A real redis-server for one test: a free port, a folder that goes away, and no way to be left behind.
#![allow(dead_code, unreachable_pub, reason = "every test file takes what it needs")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

pub mod group;

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use onelock_core::store::Checked;
use onelock_core::{
    Backend, ErrorKind, FencingToken, Grant, HolderId, LockName, Mode, Note, Place, Renewal, Renewed,
    Request, Standing, Ticket, Wake,
};
use onelock_redis::{RedisBackend, RedisConfig};
use redis::AsyncConnectionConfig;
use redis::Value;
use redis::aio::MultiplexedConnection;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

pub const HOUR: Duration = Duration::from_secs(3600);
/// The bound of every wait in these tests; no test is right or wrong by how long something took.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Server {
    guard: Child,
    folder: TempDir,
    pub port: u16,
    options: Vec<String>,
}

impl Server {
    pub async fn start(options: &[&str]) -> Self {
        let port = onelock_conformance::servers::free_port().unwrap();
        Self::start_at(port, options).await
    }

    async fn start_at(port: u16, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options: Vec<_> = options.iter().map(|o| (*o).to_owned()).collect();
        let server = Self { guard: spawn(port, &folder, &options), folder, port, options };
        server.ready().await;
        server
    }

    async fn ready(&self) {
        let until = Instant::now() + PATIENCE;
        while self.ping().await.is_err() {
            assert!(Instant::now() < until, "redis-server did not come up");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits for any answer: connections are accepted before the server listens on its socket.
    async fn ping(&self) -> std::io::Result<usize> {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.write_all(b"PING\r\n").await?;
        stream.read(&mut [0; 64]).await
    }

    fn pid(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("pid")).unwrap().trim().to_owned()
    }

    pub fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.pid()]).status().unwrap().success());
    }

    /// Kills it and starts it again on the same port, with its data where it keeps any.
    pub async fn restart(&mut self) {
        self.signal("-KILL");
        self.restart_dead().await;
    }

    fn log(&self) -> std::path::PathBuf {
        self.folder.path().join("appendonlydir/appendonly.aof.1.incr.aof")
    }

    /// How much its append-only file has.
    pub fn written(&self) -> u64 {
        std::fs::metadata(self.log()).unwrap().len()
    }

    /// Kills it, takes what it has written since its append-only file had this length, and starts it again: what a loss
    /// of power does to a server that does not sync every write.
    pub async fn lose_power(&mut self, synced: u64) {
        self.signal("-KILL");
        self.guard.wait().unwrap();
        let file = std::fs::File::options().write(true).open(self.log()).unwrap();
        file.set_len(synced).unwrap();
        self.restart_dead().await;
    }

    /// Starts a server again that was killed.
    pub async fn restart_dead(&mut self) {
        self.guard.wait().unwrap();
        let until = Instant::now() + PATIENCE;
        while tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.is_ok() {
            assert!(Instant::now() < until, "redis-server did not go away");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.guard = spawn(self.port, &self.folder, &self.options);
        self.ready().await;
    }

    pub fn config(&self) -> RedisConfig {
        RedisConfig::new("127.0.0.1", self.port)
    }

    pub async fn backend(&self) -> Arc<Checked<RedisBackend>> {
        Arc::new(RedisBackend::connect(self.config()).await.unwrap())
    }

    pub async fn raw(&self) -> Raw {
        let client = redis::Client::open(("127.0.0.1", self.port)).unwrap();
        let mut last = None;
        let until = Instant::now() + PATIENCE;
        // The driver's own is half a second, which a busy machine may take.
        let patient = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
        while Instant::now() < until {
            match client.get_multiplexed_async_connection_with_config(&patient).await {
                Ok(connection) => return Raw(connection),
                Err(e) => last = Some(e),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("no raw connection: {last:?}");
    }
}

/// A shell stands between: it kills the server when its input ends, as it does when this process dies in any way.
fn spawn(port: u16, folder: &TempDir, options: &[String]) -> Child {
    let dir = folder.path().to_str().unwrap();
    let script = "exec 3<&0; ${ONELOCK_REDIS_SERVER:-redis-server} \"$@\" </dev/null >\"$D/log\" 2>&1 3<&- & p=$!; echo $p >\"$D/pid.new\"; \
                  mv \"$D/pid.new\" \"$D/pid\"; (cat <&3 >/dev/null; kill -KILL $p 2>/dev/null) & wait $p";
    let port = port.to_string();
    let args = ["--port", &port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--daemonize", "no"];
    let _ = std::fs::remove_file(folder.path().join("pid"));
    let child = Command::new("sh")
        .args(["-c", script, "sh"])
        .args(args)
        .args(options)
        .env("D", dir)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let until = Instant::now() + PATIENCE;
    while !folder.path().join("pid").exists() {
        assert!(Instant::now() < until, "redis-server was not started");
        std::thread::sleep(Duration::from_millis(2));
    }
    child
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

/// A plain connection, to look at the server from outside.
#[derive(Clone)]
pub struct Raw(pub MultiplexedConnection);

impl Raw {
    pub async fn run(&mut self, line: &str) -> Value {
        let args: Vec<_> = line.split(' ').collect();
        self.run_args(&args).await
    }

    pub async fn run_args(&mut self, args: &[&str]) -> Value {
        let mut command = redis::Cmd::new();
        command.arg(args);
        self.0.send_packed_command(&command).await.unwrap()
    }

    pub async fn text(&mut self, line: &str) -> String {
        match self.run(line).await {
            Value::BulkString(bytes) => String::from_utf8(bytes).unwrap(),
            other => panic!("{line}: {other:?}"),
        }
    }

    pub async fn int(&mut self, line: &str) -> i64 {
        match self.run(line).await {
            Value::Int(n) => n,
            other => panic!("{line}: {other:?}"),
        }
    }

    /// All keys but the counters.
    pub async fn residue(&mut self) -> Vec<String> {
        let Value::Array(keys) = self.run("KEYS *").await else { panic!("KEYS") };
        let mut names: Vec<String> =
            keys.into_iter().map(|key| redis::from_redis_value(key).unwrap()).collect();
        names.retain(|name| !name.ends_with("}:n"));
        names.sort();
        names
    }

    /// How often the server ran this command.
    pub async fn calls(&mut self, command: &str) -> u64 {
        let stats = self.run("INFO commandstats").await;
        let stats: String = redis::from_redis_value(stats).unwrap();
        let line = stats
            .lines()
            .find_map(|l| l.strip_prefix(&format!("cmdstat_{command}:calls=")).map(str::to_owned));
        line.map_or(0, |l| l.split(',').next().unwrap().parse().unwrap())
    }
}

pub fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

pub fn request(text: &str, mode: &str) -> Request {
    Request::new(name(text), HolderId::random().unwrap(), mode.parse::<Mode>().unwrap(), HOUR)
        .waiter_lease(HOUR / 2)
        .note(Note::new("a note").unwrap())
}

pub fn held(standing: Standing) -> Grant {
    match standing {
        Standing::Held(grant) => grant,
        other => panic!("not held: {other:?}"),
    }
}

pub fn waits(standing: Standing) -> Place {
    match standing {
        Standing::Waiting(place) => place,
        other => panic!("not waiting: {other:?}"),
    }
}

pub async fn renew_one(backend: &dyn Backend, ticket: &Ticket) -> onelock_core::Result<Renewed> {
    let item = Renewal::new(ticket.clone(), HOUR, HOUR / 2);
    backend.renew(&[item]).await.pop().unwrap()
}

pub fn token(n: i64) -> FencingToken {
    FencingToken::new(n).unwrap()
}

/// Waits as a client does: that the connection was lost is told first, and then the waiter is to ask over the next one.
pub async fn told(backend: &dyn Backend, ticket: &Ticket) -> Wake {
    loop {
        match soon(backend.wait(ticket)).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => {}
            wake => return wake.unwrap(),
        }
    }
}

pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("in a bounded time")
}
