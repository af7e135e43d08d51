//! The queue of processes that found the file busy.
//!
//! SQLite lets one connection write and keeps no queue of those who want to: each tries again and again, and a hundred of
//! them leave the processor no time for the one who writes. So whoever finds the file busy first takes a `flock` on the
//! write-ahead log, for which the kernel keeps a queue in the order of arrival, and only its head tries again. SQLite has no
//! locks on the log itself, so closing this handle of it drops none.
//!
//! The queue is about order and load only. Who is not at its head in time tries without, so a process that is stopped at
//! the head takes nobody with it.

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio::sync::oneshot;

/// Is at the head until it is dropped.
#[derive(Debug)]
pub(super) struct Place(#[allow(dead_code, reason = "closing it leaves the queue")] File);

/// Waits until it is at the head of the queue; `None` when that is not so by `deadline`, or where there is no log yet.
pub(super) async fn enter(path: &Path, deadline: Instant) -> Option<Place> {
    let mut log = std::fs::canonicalize(path).ok()?.into_os_string();
    log.push("-wal");
    let log = File::open(log).ok()?;
    match flock(&log, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => return Some(Place(log)),
        Err(Errno::WOULDBLOCK) => {}
        Err(_) => return None,
    }
    // The kernel's wait has no deadline, so a thread of its own waits. One that comes too late finds nobody to answer, and
    // leaves the queue by dropping the handle.
    let (reply, place) = oneshot::channel();
    let wait = move || {
        let locked = loop {
            match flock(&log, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                locked => break locked,
            }
        };
        if locked.is_ok() {
            let _ = reply.send(Place(log));
        }
    };
    std::thread::Builder::new().name("onelock-queue".into()).stack_size(64 << 10).spawn(wait).ok()?;
    tokio::time::timeout_at(deadline.into(), place).await.ok()?.ok()
}
