//! A clock that tests move, and short ways to the verbs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use onelock_core::store::Checked;
use onelock_core::{
    Backend, BootClock, Clock, Error, FencingToken, HolderId, LockName, Mode, Release, Renewal, Request,
    Standing, Ticket, Timestamp,
};
use onelock_sql::{SqliteBackend, SqliteConfig};
use tempfile::TempDir;

/// Stands still until it is moved.
#[derive(Debug)]
pub(crate) struct HandClock(AtomicU64);

impl HandClock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(Duration::from_secs(1_000).as_nanos() as u64)))
    }

    pub(crate) fn advance(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_origin(Duration::from_nanos(self.0.load(Ordering::SeqCst)))
    }
}

pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

pub(crate) fn file(folder: &TempDir) -> PathBuf {
    folder.path().join("locks.db")
}

pub(crate) async fn open(path: &Path) -> Checked<SqliteBackend> {
    SqliteBackend::open(SqliteConfig::new(path), Arc::new(BootClock)).await.unwrap()
}

pub(crate) async fn open_with(path: &Path, clock: &Arc<HandClock>) -> Checked<SqliteBackend> {
    SqliteBackend::open(SqliteConfig::new(path), clock.clone()).await.unwrap()
}

pub(crate) fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

/// An exclusive request that queues, with leases of a minute.
pub(crate) fn request(on: &str, holder: u128) -> Request {
    Request::new(name(on), HolderId::from_u128(holder), Mode::Exclusive, Duration::from_secs(60))
}

pub(crate) fn renewal(request: &Request) -> Renewal {
    Renewal::new(request.ticket(), request.lease, request.waiter_lease)
}

pub(crate) async fn hold(backend: &dyn Backend, request: &Request) -> FencingToken {
    match backend.acquire(request).await.unwrap() {
        Standing::Held(grant) => grant.token,
        other => panic!("not held: {other:?}"),
    }
}

pub(crate) async fn queue(backend: &dyn Backend, request: &Request) -> FencingToken {
    match backend.acquire(request).await.unwrap() {
        Standing::Waiting(place) => place.token.unwrap(),
        other => panic!("not waiting: {other:?}"),
    }
}

pub(crate) async fn release(backend: &dyn Backend, ticket: &Ticket) {
    assert_eq!(backend.release(ticket).await.unwrap(), Release::Released);
}

/// Asks again and again until it is so, and fails after a long while.
pub(crate) async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !so().await {
        assert!(began.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(crate) async fn refused(path: &Path) -> Error {
    SqliteBackend::open(SqliteConfig::new(path), Arc::new(BootClock)).await.unwrap_err()
}

/// Another program's connection to the file.
pub(crate) fn raw(path: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open(path).unwrap()
}

/// The value that a query gives.
pub(crate) fn one<T: rusqlite::types::FromSql>(file: &rusqlite::Connection, query: &str) -> T {
    file.query_row(query, (), |row| row.get(0)).unwrap()
}

/// Set in a test that runs in a mount namespace of its own.
pub(crate) const INSIDE: &str = "ONELOCK_IN_A_NAMESPACE";

/// Runs a test of this binary again where this user may mount: in a namespace of its own.
pub(crate) fn in_a_namespace(test: &str) {
    assert!(std::env::var_os(INSIDE).is_none(), "nothing can be mounted in a namespace either");
    let status = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .status()
        .unwrap();
    assert!(
        status.success(),
        "{test} in a namespace: run it as a user who may mount, or allow user namespaces"
    );
}
