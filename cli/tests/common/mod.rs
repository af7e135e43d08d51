//! What the tests of the program share: real stores, the real binary, and waiting with a bound.
#![allow(dead_code, unreachable_pub, missing_docs)]

pub mod terminal;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// No password of a store may ever be printed.
pub const PASSWORD: &str = "hunter2-never-printed";

/// How long anything may take on a busy machine before it counts as never.
pub const BOUND: Duration = Duration::from_secs(60);

/// A lease that the test waits for the end of: long enough for a machine that stalls for seconds.
pub const SHORT: &str = "6s";

/// In memory where there is such a place: a disk may stall for longer than a short lease.
pub fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() }.unwrap()
}

/// A folder for one test, and the URL of a store.
pub struct Bench {
    pub dir: TempDir,
    pub url: String,
}

impl Bench {
    pub fn sqlite() -> Self {
        let dir = folder();
        let url = format!("sqlite://{}/locks.db", dir.path().display());
        Self { dir, url }
    }

    pub fn redis() -> Self {
        static SHARED: OnceLock<Redis> = OnceLock::new();
        let redis = SHARED.get_or_init(Redis::start);
        // Tests share the server, not the names.
        let dir = folder();
        let unique: String =
            dir.path().display().to_string().chars().filter(char::is_ascii_alphanumeric).collect();
        Self { dir, url: format!("{}?prefix={unique}", redis.url()) }
    }

    /// The program on this store. The URL goes through the environment, as the manual advises.
    pub fn onelock(&self, words: &[&str]) -> Command {
        // Whoever runs the tests in the background of a shell has these ignored, and what is ignored stays so.
        let mut command = Command::new("env");
        command.args(["--default-signal=INT,QUIT", env!("CARGO_BIN_EXE_onelock")]);
        command.args(words).env("ONELOCK_STORE", &self.url).env("HIST", self.history_file());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn spawn(&self, words: &[&str]) -> Running {
        Running::new(self.onelock(words))
    }

    /// Runs it to its end.
    pub fn run(&self, words: &[&str]) -> Output {
        self.spawn(words).finish()
    }

    pub fn history_file(&self) -> PathBuf {
        self.dir.path().join("history")
    }

    /// The lines that commands appended to `$HIST`: one file opened for appending keeps the order of all of them.
    pub fn history(&self) -> Vec<String> {
        fs::read_to_string(self.history_file()).unwrap_or_default().lines().map(Into::into).collect()
    }

    pub fn wait_for_line(&self, line: &str) {
        until(&format!("`{line}` in the history"), || self.history().iter().any(|l| l == line));
    }

    /// `status --json`.
    pub fn status(&self, name: &str) -> serde_json::Value {
        serde_json::from_str(&self.run(&["status", name, "--json"]).out).unwrap()
    }

    pub fn wait_for_waiters(&self, name: &str, count: usize) {
        until("waiters in line", || self.status(name)["waiters"].as_array().unwrap().len() == count);
    }
}

/// A command that writes its token to the history over and over, until it is ended.
pub const BEAT: &str = r#"while :; do echo "$ONELOCK_TOKEN" >> "$HIST"; sleep 0.02; done"#;

/// The same, and TERM does not end it.
pub const STUBBORN_BEAT: &str =
    r#"trap '' TERM; while :; do echo "$ONELOCK_TOKEN" >> "$HIST"; sleep 0.02; done"#;

/// A running program; killed if the test fails before its end.
pub struct Running {
    child: Option<Child>,
}

/// How a program ended, and what it said.
#[derive(Debug)]
pub struct Output {
    pub status: ExitStatus,
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Running {
    pub fn new(mut command: Command) -> Self {
        Self { child: Some(command.spawn().unwrap()) }
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.as_ref().unwrap().id()).unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid()).unwrap(), signal).unwrap();
    }

    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().unwrap().try_wait().unwrap().is_none()
    }

    pub fn child(&mut self) -> &mut Child {
        self.child.as_mut().unwrap()
    }

    /// The deadman: its only child.
    pub fn deadman(&self) -> i32 {
        let mut found = None;
        until("a deadman", || {
            found = children_of(self.pid()).first().copied();
            found.is_some()
        });
        found.unwrap()
    }

    /// Waits for its end, and checks that it kept the secret and did not panic.
    pub fn finish(mut self) -> Output {
        let mut child = self.child.take().unwrap();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let read = |pipe: Option<Box<dyn std::io::Read + Send>>| {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                pipe.map(|mut pipe| pipe.read_to_end(&mut text));
                String::from_utf8(text).unwrap()
            })
        };
        let out = read(stdout.map(|pipe| Box::new(pipe) as _));
        let err = read(stderr.map(|pipe| Box::new(pipe) as _));
        let mut status = None;
        let ended = poll(|| {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        if !ended {
            let _ = child.kill();
            panic!("onelock did not end; it said: {}", err.join().unwrap());
        }
        let (status, out, err) = (status.unwrap(), out.join().unwrap(), err.join().unwrap());
        for text in [&out, &err] {
            assert!(!text.contains(PASSWORD), "a password was printed: {text}");
            assert!(!text.contains("panicked"), "{text}");
        }
        Output { status, code: status.code(), out, err }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            if std::thread::panicking() {
                eprintln!("ended with the test: {:?}", child.wait_with_output());
            } else {
                let _ = child.wait();
            }
        }
    }
}

/// A redis-server of our own. It ends with this process, however that ends: its minder reads our pipe.
pub struct Redis {
    minder: Child,
    port: u16,
    dir: TempDir,
}

impl Redis {
    pub fn start() -> Self {
        Self::with("--save '' --appendonly no")
    }

    /// One that keeps over a restart what it has answered.
    pub fn durable() -> Self {
        Self::with("--save '' --appendonly yes --appendfsync always")
    }

    fn with(options: &str) -> Self {
        for _ in 0..5 {
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
            let dir = folder();
            // A line on its input is a restart, its end is the end.
            let script = r#"start() { eval "redis-server --port $1 --bind 127.0.0.1 --dir '$2' $4 --requirepass '$3' \
                --pidfile '$2/pid' --logfile '$2/log' --daemonize no &"; pid=$!; echo $pid > "$2/server"; }
                start "$@"; while read -r what; do case $what in kill) kill -9 $pid; wait $pid;; *) start "$@";; esac; done
                kill -9 $pid; rm -rf "$2""#;
            let minder = Command::new("sh")
                .args([
                    "-c",
                    script,
                    "minder",
                    &port.to_string(),
                    dir.path().to_str().unwrap(),
                    PASSWORD,
                    options,
                ])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let redis = Self { minder, port, dir };
            // Its own word: somebody else may answer on that port.
            if redis.logs("Ready to accept connections") {
                return redis;
            }
        }
        panic!("redis-server does not start; is it installed?");
    }

    fn logs(&self, text: &str) -> bool {
        let log = self.dir.path().join("log");
        poll(|| {
            fs::read_to_string(&log).is_ok_and(|log| log.contains(text) || log.contains("Failed listening"))
        }) && fs::read_to_string(&log).is_ok_and(|log| log.contains(text))
    }

    pub fn url(&self) -> String {
        format!("redis://:{PASSWORD}@127.0.0.1:{}", self.port)
    }

    /// Kills the server, and starts it again after `meanwhile`.
    pub fn restart(&self, meanwhile: impl FnOnce()) {
        let say = |word: &str| self.minder.stdin.as_ref().unwrap().write_all(word.as_bytes()).unwrap();
        let starts = || {
            let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            log.matches("Ready to accept connections").count()
        };
        let before = starts();
        say("kill\n");
        meanwhile();
        say("start\n");
        until("the server is back", || starts() > before);
    }

    pub fn signal(&self, signal: Signal) {
        let pid: i32 = fs::read_to_string(self.dir.path().join("server")).unwrap().trim().parse().unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        drop(self.minder.stdin.take());
        let _ = self.minder.wait();
    }
}

/// Asks again and again until it is so.
pub fn poll(mut so: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < BOUND {
        if so() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

pub fn until(what: &str, so: impl FnMut() -> bool) {
    assert!(poll(so), "never: {what}");
}

pub fn children_of(parent: i32) -> Vec<i32> {
    processes().into_iter().filter(|p| p.1 == parent).map(|p| p.0).collect()
}

/// Whether anything of the group runs.
pub fn group_alive(group: i32) -> bool {
    processes().into_iter().any(|p| p.2 == group && p.3 != 'Z')
}

/// Process, parent, group, state.
fn processes() -> Vec<(i32, i32, i32, char)> {
    let stat = |path: &Path| -> Option<(i32, i32, i32, char)> {
        let text = fs::read_to_string(path.join("stat")).ok()?;
        let (pid, rest) = (text.split(' ').next()?, text.rsplit_once(") ")?.1);
        let fields: Vec<_> = rest.split(' ').collect();
        Some((pid.parse().ok()?, fields[1].parse().ok()?, fields[2].parse().ok()?, fields[0].chars().next()?))
    };
    fs::read_dir("/proc").unwrap().filter_map(|entry| stat(&entry.ok()?.path())).collect()
}

/// Every scenario on every store.
#[macro_export]
macro_rules! on_every_store {
    ($($scenario:ident)*) => {
        mod sqlite { $(#[test] fn $scenario() { super::$scenario(&$crate::common::Bench::sqlite()); })* }
        mod redis { $(#[test] fn $scenario() { super::$scenario(&$crate::common::Bench::redis()); })* }
    };
}
