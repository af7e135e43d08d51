//! What `run` and the deadman say to each other: one JSON value a line, over a socket pair.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd, RawFd};
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use onelock::Timestamp;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What `run` tells the deadman.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Start the command. With it come, in this order: the command's standard input, the file of the [`Limit`], and
    /// the connections that must stay open for as long as anything of the group runs.
    ///
    /// [`Limit`]: super::limit::Limit
    Start(Start),
    /// The lease was renewed.
    Deadline(Moment),
    /// End the group: the lock is lost.
    End,
    /// Nothing is left to guard.
    Bye,
}

/// What the deadman needs to know before the command may run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Start {
    /// Until when the lock may be believed in.
    pub(crate) deadline: Moment,
    /// The lease.
    pub(crate) ttl: Duration,
    /// How long after TERM comes KILL, at most.
    pub(crate) grace: Duration,
    /// The group to give the terminal back to, if the command has it when `run` is gone.
    pub(crate) terminal: Option<i32>,
    /// Whether the command begins in the foreground of the terminal.
    pub(crate) foreground: bool,
}

/// What the deadman tells `run`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The command runs, as the leader of this process group.
    Started {
        /// The group.
        group: i32,
    },
    /// The command was not started.
    Refused(Refusal),
    /// The command was stopped by a signal.
    Stopped {
        /// The signal.
        signal: i32,
    },
    /// The lease is about to run out: the group is being ended.
    Ending,
    /// The command itself ended. Others of its group may still run.
    Exited(Ended),
    /// Nothing of the group runs any more.
    Gone,
}

/// Why the command was not started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    /// Too little of the lease is left.
    TooLate,
    /// The operating system's words.
    System(String),
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ended {
    /// With an exit code.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

/// A moment of boot time, which means the same in every process of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Moment(pub(super) u64);

impl From<Timestamp> for Moment {
    fn from(moment: Timestamp) -> Self {
        Self(u64::try_from(moment.since_origin().as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Moment> for Timestamp {
    fn from(moment: Moment) -> Self {
        Self::from_origin(Duration::from_nanos(moment.0))
    }
}

/// Writes one message whole, or fails: on a local socket a short message is never cut. `files` go with it, by number:
/// one that was closed meanwhile is an error.
pub(crate) fn send(socket: impl AsFd, message: &impl Serialize, files: &[RawFd]) -> io::Result<()> {
    let mut text = serde_json::to_vec(message)?;
    text.push(b'\n');
    let rights = [ControlMessage::ScmRights(files)];
    let rights = if files.is_empty() { &[] } else { &rights[..] };
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    let sent = sendmsg::<()>(socket.as_fd().as_raw_fd(), &[IoSlice::new(&text)], rights, flags, None)?;
    if sent == text.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// How many files go with one message at most: the kernel's own limit.
pub(crate) const FILES: usize = 253;

/// Takes messages apart as they come in.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    /// What came along with the messages.
    pub(crate) files: Vec<OwnedFd>,
}

impl Inbox {
    /// Reads what is there. `Ok(false)`: the other side is gone.
    pub(crate) fn fill(&mut self, socket: impl AsFd) -> io::Result<bool> {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let got = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                self.files.extend(files);
            }
        }
        self.bytes.extend_from_slice(bytes.get(..got.bytes).unwrap_or_default());
        Ok(got.bytes > 0)
    }

    /// The next whole message.
    pub(crate) fn next<T: DeserializeOwned>(&mut self) -> Option<io::Result<T>> {
        let end = self.bytes.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.bytes.drain(..=end).collect();
        Some(serde_json::from_slice(&line).map_err(Into::into))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn messages_and_a_file_come_over_in_order() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let start = Start {
            deadline: Timestamp::from_origin(Duration::from_secs(5)).into(),
            ttl: Duration::from_secs(30),
            grace: Duration::from_secs(5),
            terminal: None,
            foreground: false,
        };
        send(&ours, &Order::Start(start.clone()), &[file.as_raw_fd(); FILES]).unwrap();
        send(&ours, &Order::Bye, &[]).unwrap();
        drop(ours);
        let mut inbox = Inbox::default();
        while inbox.fill(&theirs).unwrap() {}
        assert_eq!(inbox.next::<Order>().unwrap().unwrap(), Order::Start(start));
        assert_eq!(inbox.next::<Order>().unwrap().unwrap(), Order::Bye);
        assert!(inbox.next::<Order>().is_none());
        assert_eq!(inbox.files.len(), FILES);
    }

    #[test]
    fn half_a_message_waits_for_the_rest() {
        let mut inbox = Inbox { bytes: b"{\"Deadline\":7".to_vec(), files: Vec::new() };
        assert!(inbox.next::<Order>().is_none());
        inbox.bytes.extend_from_slice(b"}\nx");
        assert_eq!(inbox.next::<Order>().unwrap().unwrap(), Order::Deadline(Moment(7)));
        assert!(inbox.next::<Order>().is_none());
    }
}
