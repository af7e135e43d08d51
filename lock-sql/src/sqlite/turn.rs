//! Turns among the clients of one process that write to the same file.
//!
//! SQLite lets one connection write at a time and keeps no line of those who want to: who finds the file busy naps and
//! tries again, and whoever comes meanwhile goes first. Within a process we can do better: first come, first served, and
//! told at once. A turn is about order only. It is waited for as long as another process' writing would be, and who has
//! not got it by then tries without, so nobody who is stuck takes the others with him.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use tokio::sync::{Mutex as FairMutex, MutexGuard};

/// By the absolute path. Two paths to one file are two lines, which costs order and nothing else.
static FILES: Mutex<Option<HashMap<PathBuf, Weak<FairMutex<()>>>>> = Mutex::new(None);

/// The line of this process' writers to one file.
#[derive(Clone, Debug)]
pub(super) struct Turns(Arc<FairMutex<()>>);

impl Turns {
    /// The line for the file at `path`.
    pub(super) fn of(path: &Path) -> Self {
        let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
        let files = files.get_or_insert_default();
        files.retain(|_, turns| turns.strong_count() > 0);
        if let Some(turns) = files.get(path).and_then(Weak::upgrade) {
            return Self(turns);
        }
        let turns = Arc::default();
        files.insert(path.to_owned(), Arc::downgrade(&turns));
        Self(turns)
    }

    /// Waits for its turn, which lasts until the answer is dropped; `None` when it has not come by `deadline`.
    pub(super) async fn take(&self, deadline: Instant) -> Option<MutexGuard<'_, ()>> {
        tokio::time::timeout_at(deadline.into(), self.0.lock()).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::poll;
    use onelock_conformance::ctx::{exclusive, name, ticket};
    use onelock_core::{Backend as _, BootClock, Standing};

    use super::*;
    use crate::sqlite::{SqliteBackend, SqliteConfig};

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[tokio::test]
    async fn first_come_first_served() {
        let (one, same) = (Turns::of(Path::new("/a")), Turns::of(Path::new("/a")));
        let first = one.take(soon()).await.unwrap();
        let (mut second, mut third) = (Box::pin(same.take(soon())), Box::pin(one.take(soon())));
        assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
        assert!(Turns::of(Path::new("/b")).take(soon()).await.is_some(), "another file is another line");
        drop(first);
        assert!(poll!(&mut third).is_pending(), "the second is before it");
        drop(second.await.unwrap());
        assert!(third.await.is_some());
    }

    #[tokio::test]
    async fn the_line_goes_with_the_last_client() {
        let path = Path::new("/gone");
        drop(Turns::of(path));
        let _other = Turns::of(Path::new("/other"));
        assert!(!FILES.lock().unwrap().as_ref().unwrap().contains_key(path));
    }

    async fn open(path: &Path, busy_timeout: Duration) -> SqliteBackend {
        let config = SqliteConfig { busy_timeout, ..SqliteConfig::new(path) };
        SqliteBackend::open(config, Arc::new(BootClock)).await.unwrap()
    }

    /// Takes and gives back a free lock.
    async fn cycle(backend: &SqliteBackend) {
        let request = exclusive(&name("turn").unwrap()).unwrap();
        let Standing::Held(grant) = backend.acquire(&request).await.unwrap() else { panic!("it is free") };
        backend.release(&ticket(&request, grant.token)).await.unwrap();
    }

    #[tokio::test]
    async fn who_writes_waits_for_its_turn() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("locks.db"), folder.path().join("link"));
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        let backend = open(&path, Duration::from_secs(60)).await;
        let turns = Turns::of(&path);
        let turn = turns.take(soon()).await;
        let mut waits = Box::pin(cycle(&backend));
        assert!(poll!(&mut waits).is_pending());
        // By another path, so without a turn: long after the first could have done it.
        let other = open(&link.join("locks.db"), Duration::from_secs(60)).await;
        for _ in 0..100 {
            cycle(&other).await;
        }
        assert!(poll!(&mut waits).is_pending());
        drop(turn);
        waits.await;
    }

    #[tokio::test]
    async fn a_turn_that_does_not_come_is_not_waited_for_longer_than_a_busy_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        let backend = open(&path, Duration::from_millis(50)).await;
        let turns = Turns::of(&path);
        let _never_given_back = turns.take(soon()).await;
        cycle(&backend).await;
    }
}
