//! The deadman as `run` sees it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use onelock::Timestamp;
use rustix::process::{Pid, Signal};
use tokio::net::UnixStream;

use crate::deadman::limit::{self, Limit};
use crate::deadman::protocol::{self, FILES, Inbox, Order, Report, Start};
use crate::deadman::{ROLE, SELF};

/// A running deadman.
#[derive(Debug)]
pub(super) struct Ward {
    process: Child,
    socket: UnixStream,
    inbox: Inbox,
    pub(super) limit: Limit,
}

impl Ward {
    /// Starts a deadman for `command`. The command itself waits for [`Ward::start`].
    ///
    /// It gets a process group of its own, so that what hits ours does not hit it, and no URL: it knows no store.
    pub(super) fn spawn(
        command: &[OsString],
        env: &[(&str, String)],
        deadline: Timestamp,
    ) -> io::Result<Self> {
        // Whatever is left of the command's group if the deadman dies becomes our child, so that we can end it.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        let limit = Limit::create(deadline)?;
        let mut deadman = Command::new(SELF);
        if !limit::is_inside() {
            deadman.env_remove(limit::VARIABLE);
        }
        let process = deadman
            .arg0("onelock")
            .arg(ROLE)
            .args(command)
            // Another lock's, when one run is inside another, on a store that has none.
            .env_remove("ONELOCK_TOKEN")
            .envs(env.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .process_group(0)
            .spawn()?;
        Ok(Self { process, socket: UnixStream::from_std(ours)?, inbox: Inbox::default(), limit })
    }

    /// Has the command started, with our standard input. `connections`: the deadman keeps copies of our connections,
    /// so that none is closed before the group has ended, even if we are killed.
    pub(super) fn start(&self, start: Start, connections: bool) -> io::Result<()> {
        let mut files = vec![io::stdin().as_raw_fd(), self.limit.0.as_raw_fd()];
        if connections {
            // Not our end of its own socket: the deadman would not see that close.
            files.extend(sockets()?.into_iter().filter(|socket| *socket != self.socket.as_raw_fd()));
        }
        files.truncate(FILES);
        protocol::send(&self.socket, &Order::Start(start), &files)
    }

    /// Tells the new deadline.
    pub(super) fn renewed(&self, deadline: Timestamp) {
        self.limit.renewed(deadline);
        // One that is not told only ends the command sooner; the next one may get through.
        let _ = protocol::send(&self.socket, &Order::Deadline(deadline.into()), &[]);
    }

    /// Has the group ended.
    pub(super) fn end(&self) {
        // If this does not get through, the deadline it knows ends the group; and so do we.
        let _ = protocol::send(&self.socket, &Order::End, &[]);
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // Somebody may have stopped it. It is our child and not reaped, so this is no other process.
            let _ = rustix::process::kill_process(pid, Signal::CONT);
        }
    }

    /// The next report; `None` when the deadman is gone.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn report(&mut self) -> io::Result<Option<Report>> {
        loop {
            if let Some(report) = self.inbox.next() {
                return report.map(Some);
            }
            self.socket.readable().await?;
            let Self { socket, inbox, .. } = self;
            match socket.try_io(tokio::io::Interest::READABLE, || inbox.fill(&*socket)) {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // It went away with something of ours unread.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Lets it go: nothing is left to guard. It ends at once, unless somebody stopped it; then it has nothing to do when it is
    /// continued.
    pub(super) fn dismiss(self) {
        self.limit.lift();
        let _ = protocol::send(&self.socket, &Order::Bye, &[]);
    }
}

/// The sockets of this process that are not its standard streams.
fn sockets() -> io::Result<Vec<RawFd>> {
    let is_socket = |path: &std::path::Path| {
        fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
    };
    let open = fs::read_dir("/proc/self/fd")?.filter_map(|entry| {
        let entry = entry.ok()?;
        let number: RawFd = entry.file_name().to_str()?.parse().ok()?;
        (number > 2 && is_socket(&entry.path())).then_some(number)
    });
    Ok(open.collect())
}
