//! Real servers as child processes: on free ports of the loopback, with their data in memory where that is possible,
//! stopped by process id when dropped, and by the kernel when the test process is killed.

pub mod clock;
pub mod etcd;
mod folder;
pub mod hosts;
pub mod mariadb;
mod ports;
pub mod postgres;
pub mod power;
pub mod process;
pub mod redis;
pub mod resp;
pub mod tls;
pub mod zookeeper;

use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, mpsc};
use std::time::{Duration, Instant};

pub use folder::{Place, data_folder, folder_in};
pub use ports::free_port;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::ensure;
use crate::verdict::{Context as _, Stop, Verdict};

/// What is made once in this process; a failure is kept as well.
type Once<T> = LazyLock<Verdict<T>>;

/// Runs a program to its end, which must be a good one.
fn run(command: &mut Command) -> Verdict {
    let output = command.output().context(format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// What a program prints that ends well.
async fn printed(command: &mut tokio::process::Command) -> Verdict<String> {
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// What a server answers to this before it closes the connection.
async fn asked(address: SocketAddr, request: &str) -> Verdict<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Builds a program or a library from its source in C, in a folder that all users may read.
fn compiled(source: &str, name: &str, options: &[&str]) -> Verdict<(TempDir, PathBuf)> {
    let folder = data_folder()?;
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
    let (file, built) = (folder.path().join("source.c"), folder.path().join(name));
    std::fs::write(&file, source)?;
    run(Command::new("cc").args(options).arg("-o").args([&built, &file]))?;
    Ok((folder, built))
}

/// What starts a process, and where the process goes.
type Start = (Command, mpsc::SyncSender<io::Result<Child>>);

/// Starts a process, by a thread that lives as long as this process: the kernel sends the parent-death signal when the
/// *thread* ends that started the child, and a server may outlive the case that started it.
fn spawn(command: Command) -> Verdict<io::Result<Child>> {
    static STARTER: LazyLock<mpsc::Sender<Start>> = LazyLock::new(|| {
        let (starter, starts) = mpsc::channel::<Start>();
        std::thread::spawn(move || {
            for (mut command, started) in starts {
                // The caller waits for it.
                let _ = started.send(command.spawn());
            }
        });
        starter
    });
    let (tell, started) = mpsc::sync_channel(1);
    STARTER.send((command, tell)).ok().context("the thread that starts servers")?;
    started.recv().ok().context("an answer of the thread that starts servers")
}

/// Stops a process where it is, all its threads with it, or lets it go on.
///
/// # Errors
/// When it has gone, or does not stop.
pub fn pause_process(id: u32, stopped: bool) -> Verdict {
    const PATIENCE: Duration = Duration::from_secs(60);
    signal_process(id, if stopped { Signal::STOP } else { Signal::CONT })?;
    // Threads stop one by one: until the last has, it may answer yet.
    let end = Instant::now() + PATIENCE;
    while stopped && !stalls(id)? {
        if Instant::now() > end {
            return Err(Stop::failed("the server does not stop"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn stalls(id: u32) -> Verdict<bool> {
    for thread in std::fs::read_dir(format!("/proc/{id}/task"))? {
        // A thread may end meanwhile.
        let Ok(stat) = std::fs::read_to_string(thread?.path().join("stat")) else { continue };
        // The state follows the name, which is in parentheses and may hold anything. A process that has ended is stopped, too.
        if !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['T', 'Z', 'X'])) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The options of `setpriv` for the user who runs the servers that refuse root: root lends them one.
#[must_use]
pub fn as_user(user: &str) -> Vec<OsString> {
    if !geteuid().is_root() {
        return Vec::new();
    }
    let words =
        [format!("--reuid={user}"), format!("--regid={user}"), "--init-groups".into(), "--reset-env".into()];
    words.map(OsString::from).to_vec()
}

/// Sends a signal to a process this suite has started.
///
/// # Errors
/// When it has gone.
pub fn signal_process(id: u32, signal: Signal) -> Verdict {
    let id = i32::try_from(id).ok().and_then(Pid::from_raw).context("a process id")?;
    Ok(kill_process(id, signal)?)
}

fn find(program: &OsStr) -> Verdict<PathBuf> {
    let path = std::env::var_os("PATH").context("a PATH")?;
    let folders =
        std::env::split_paths(&path).chain(["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from));
    let found = folders.map(|folder| folder.join(program)).find(|file| file.is_file());
    found.context(format!("the tests need the program {program:?}: `sh scripts/setup.sh` installs it"))
}

#[cfg(test)]
mod tests {
    use super::process::Process;
    use super::*;

    #[test]
    fn a_server_outlives_the_thread_that_started_it() -> Verdict {
        let server = Process::new(Place::Memory, "data")?;
        let script = "trap 'echo lives' USR1; echo ready; while :; do sleep 0.01; done";
        let until_it_says = |word: &str| {
            while !server.log().contains(word) {
                server.check()?;
                std::thread::sleep(Duration::from_millis(1));
            }
            Verdict::Ok(())
        };
        let thread = std::thread::scope(|scope| {
            let starter = scope.spawn(|| {
                server.start(Vec::new(), "sh", vec!["-c".into(), script.into()])?;
                until_it_says("ready")?;
                Verdict::Ok(std::fs::canonicalize("/proc/thread-self")?)
            });
            starter.join().map_err(|_| Stop::failed("the thread panicked"))?
        })?;
        while thread.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The kernel would have sent the other signal before this one.
        server.signal(Signal::USR1)?;
        until_it_says("lives")
    }
}
