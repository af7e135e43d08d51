//! The deadman by itself, spoken to over its socket.

use std::io::{BufRead as _, BufReader, IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{Bench, STUBBORN_BEAT, group_alive, until};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

struct Deadman {
    process: Child,
    socket: UnixStream,
    reports: BufReader<UnixStream>,
}

impl Deadman {
    fn spawn(bench: &Bench, script: &str) -> Self {
        Self::spawn_by(&[env!("CARGO_BIN_EXE_onelock")], bench, script)
    }

    /// Through a program that runs it.
    fn spawn_by(program: &[&str], bench: &Bench, script: &str) -> Self {
        let (socket, theirs) = UnixStream::pair().unwrap();
        let process = Command::new(program[0])
            .args(&program[1..])
            .args(["__deadman", "sh", "-c", script])
            .env("HIST", bench.history_file())
            .env("ONELOCK_TOKEN", "7")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .process_group(0)
            .spawn()
            .unwrap();
        socket.set_read_timeout(Some(crate::common::BOUND)).unwrap();
        let reports = BufReader::new(socket.try_clone().unwrap());
        Self { process, socket, reports }
    }

    /// Has the command started under a lease that ends `left` from now.
    fn start(&self, left: Duration, grace: Duration) {
        let time = |time: Duration| json!({ "secs": time.as_secs(), "nanos": time.subsec_nanos() });
        let start = json!({ "Start": {
            "deadline": nanos(boot_time() + left), "ttl": time(Duration::from_secs(60)), "grace": time(grace),
            "terminal": null, "foreground": false,
        }});
        let text = format!("{start}\n");
        let input = std::fs::File::open("/dev/null").unwrap();
        let limit = rustix::fs::memfd_create("onelock-limit", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let files = [input.as_fd(), limit.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&files));
        rustix::net::sendmsg(
            &self.socket,
            &[IoSlice::new(text.as_bytes())],
            &mut control,
            SendFlags::empty(),
        )
        .unwrap();
    }

    fn report(&mut self) -> Value {
        let mut line = String::new();
        self.reports.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// The group of the command that it says it has started.
    fn started(&mut self) -> i32 {
        i32::try_from(self.report()["Started"]["group"].as_i64().unwrap()).unwrap()
    }
}

/// The command dies with it.
impl Drop for Deadman {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn boot_time() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.try_into().unwrap(), now.tv_nsec.try_into().unwrap())
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap()
}

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn a_lease_that_is_nearly_over_starts_nothing() {
    let bench = Bench::sqlite();
    for left in [Duration::ZERO, Duration::from_secs(4)] {
        let mut deadman = Deadman::spawn(&bench, "echo in >> $HIST");
        deadman.start(left, Duration::from_secs(5));
        assert_eq!(deadman.report(), json!({ "Refused": "TooLate" }));
        deadman.socket.write_all(b"\"Bye\"\n").unwrap();
        assert!(deadman.process.wait().unwrap().success());
    }
    assert!(bench.history().is_empty());
}

#[test]
fn silence_ends_the_group_before_the_deadline() {
    let bench = Bench::sqlite();
    let mut deadman = Deadman::spawn(
        &bench,
        "trap 'echo term >> $HIST; exit 3' TERM; echo up >> $HIST; while :; do sleep 0.02; done",
    );
    deadman.start(Duration::from_secs(10), Duration::from_secs(8));
    let deadline = boot_time() + Duration::from_secs(10);
    let group = deadman.started();
    assert_eq!(deadman.report(), json!("Ending"));
    assert_eq!(deadman.report(), json!({ "Exited": { "Code": 3 } }));
    assert_eq!(deadman.report(), json!("Gone"));
    assert!(boot_time() < deadline && !group_alive(group));
    assert_eq!(bench.history(), ["up", "term"]);
}

#[test]
fn news_keeps_the_command_running() {
    let bench = Bench::sqlite();
    let mut deadman = Deadman::spawn(&bench, "while [ ! -e $HIST.go ]; do sleep 0.02; done; exit 5");
    deadman.start(Duration::from_secs(3), Duration::from_secs(1));
    deadman.started();
    writeln!(deadman.socket, "{}", json!({ "Deadline": nanos(boot_time() + HOUR) })).unwrap();
    let first_deadline = boot_time() + Duration::from_secs(3);
    until("the first deadline", || boot_time() > first_deadline);
    std::fs::write(bench.history_file().with_extension("go"), "").unwrap();
    assert_eq!(deadman.report(), json!({ "Exited": { "Code": 5 } }));
    assert_eq!(deadman.report(), json!("Gone"));
}

#[test]
fn a_closed_socket_ends_the_group_at_once() {
    let bench = Bench::sqlite();
    let mut deadman = Deadman::spawn(&bench, STUBBORN_BEAT);
    deadman.start(HOUR, Duration::from_millis(200));
    let group = deadman.started();
    until("a beat", || !bench.history().is_empty());
    deadman.socket.shutdown(std::net::Shutdown::Both).unwrap();
    until("the group's end", || !group_alive(group));
    assert!(deadman.process.wait().unwrap().success());
}

#[test]
fn a_good_bye_leaves_the_group_alone() {
    let bench = Bench::sqlite();
    let mut deadman = Deadman::spawn(
        &bench,
        r#"(echo $$ > $HIST; while [ ! -e "$HIST.go" ]; do sleep 0.02; done; echo on >> "$HIST") & exit 0"#,
    );
    deadman.start(HOUR, Duration::from_millis(200));
    let group = deadman.started();
    assert_eq!(deadman.report(), json!({ "Exited": { "Code": 0 } }));
    deadman.socket.write_all(b"\"Bye\"\n").unwrap();
    assert!(deadman.process.wait().unwrap().success());
    assert!(group_alive(group));
    std::fs::write(bench.history_file().with_extension("go"), "").unwrap();
    bench.wait_for_line("on");
}

#[test]
fn what_it_does_not_understand_ends_the_command() {
    let bench = Bench::sqlite();
    let mut deadman = Deadman::spawn(&bench, STUBBORN_BEAT);
    deadman.start(HOUR, Duration::from_millis(200));
    let group = deadman.started();
    deadman.socket.write_all(b"nonsense\n").unwrap();
    until("the group's end", || !group_alive(group));
}

/// The kernel reaps the command at once, so the number of its group may be another group's a moment later.
#[test]
fn a_group_without_a_leader_of_ours_is_not_signalled() {
    let bench = Bench::sqlite();
    let ignoring = ["env", "--ignore-signal=CHLD", env!("CARGO_BIN_EXE_onelock")];
    // What the command leaves behind stands for the other group.
    let script = "(while [ ! -e $HIST.go ]; do sleep 0.02; done; echo on >> $HIST) & exit 3";
    let mut deadman = Deadman::spawn_by(&ignoring, &bench, script);
    deadman.start(HOUR, Duration::ZERO);
    let group = deadman.started();
    assert!(deadman.report()["Exited"].is_object());
    assert_eq!(deadman.report(), json!("Gone"));
    deadman.socket.shutdown(std::net::Shutdown::Both).unwrap();
    assert!(deadman.process.wait().unwrap().success());
    assert!(group_alive(group));
    std::fs::write(bench.history_file().with_extension("go"), "").unwrap();
    bench.wait_for_line("on");
}

/// Its `run` died between asking and being served.
#[test]
fn nothing_is_started_for_who_is_gone() {
    let bench = Bench::sqlite();
    // A TERM that comes before the command would hide that it is started.
    let ignored = ["sh", "-c", "trap '' TERM; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_onelock")];
    let mut deadman = Deadman::spawn_by(&ignored, &bench, "echo in >> $HIST");
    let pid = rustix::process::Pid::from_raw(deadman.process.id().try_into().unwrap()).unwrap();
    // Stopped while both come in, so that it reads them at once.
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    deadman.start(HOUR, Duration::from_secs(60));
    deadman.socket.shutdown(std::net::Shutdown::Both).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    assert!(deadman.process.wait().unwrap().success());
    assert!(bench.history().is_empty());
}
