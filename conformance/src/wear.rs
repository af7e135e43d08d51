//! Work of every kind for a client in a process of its own, and what that process has in use.

use std::time::Duration;

use onelock_core::client::Locks;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::ctx::{alive_tasks, all, cut_at, in_time};
use crate::rng::Rng;
use crate::verdict::{Context as _, Stop, Verdict};

/// Somebody else holds it all the time.
pub const BUSY: &str = "worn-busy";
/// How many tasks work at once: enough that pools and buffers are as large as they get.
const TASKS: u64 = 16;

/// What a process has in use.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Usage {
    /// Open files and connections.
    pub files: u64,
    /// Resident memory, in KiB.
    pub resident: u64,
    /// Tasks of its runtime.
    pub tasks: u64,
}

impl Usage {
    /// That of this process.
    ///
    /// # Errors
    /// Where the system does not tell.
    pub fn now() -> Verdict<Self> {
        let files = std::fs::read_dir("/proc/self/fd").context("open files")?.count() as u64;
        Ok(Self { files, resident: in_kib("VmRSS:")?, tasks: alive_tasks() as u64 })
    }
}

/// The most memory that a process has had.
pub(crate) const PEAK: &str = "VmHWM:";

/// The memory of this process in KiB, by the name of its line.
pub(crate) fn in_kib(name: &str) -> Verdict<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("the memory of this process")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).context(name)?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Acquires that succeed, are busy, run out of time, or are dropped under way; guards that are released or dropped. Ends when
/// nothing is owed any more.
///
/// # Errors
/// What the store says.
pub async fn work(locks: &Locks, cycles: u64, seed: u64) -> Verdict {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (locks, mut rng) = (locks.clone(), Rng::new(seed ^ task));
        tasks.spawn(async move {
            for _ in 0..cycles / TASKS {
                one(&locks, &mut rng).await?;
            }
            Ok::<_, Stop>(())
        });
    }
    all(tasks).await?;
    while locks.pending() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

async fn one(locks: &Locks, rng: &mut Rng) -> Verdict {
    let free = format!("worn-{}", rng.below(10_000));
    match rng.below(6) {
        0 => drop(locks.mutex(BUSY)?.try_acquire().await?),
        1 => drop(in_time(locks.mutex(BUSY)?.acquire_timeout(rng.time(Duration::from_millis(5))).await)?),
        2 => drop(cut_at(locks.mutex(BUSY)?.acquire(), rng.time(Duration::from_millis(3))).await),
        3 => drop(cut_at(locks.mutex(free)?.acquire(), rng.time(Duration::from_millis(3))).await),
        4 => drop(locks.mutex(free)?.acquire().await?),
        _ => locks.mutex(free)?.acquire().await?.release().await?,
    }
    Ok(())
}
