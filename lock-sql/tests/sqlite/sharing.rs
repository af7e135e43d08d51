//! One file under many backends and many processes at once.

use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use onelock_core::store::Checked;
use onelock_core::{Backend, BootClock, ErrorKind, HolderId, Standing, Wake};
use onelock_sql::{SqliteBackend, SqliteConfig};

use crate::support::{file, folder, hold, name, one, open, queue, raw, refused, release, renewal, request};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_file_is_made_once_by_many() {
    let folder = folder();
    let path = file(&folder);
    let opened = (0..24).map(|i| {
        let path = path.clone();
        tokio::spawn(async move {
            let store = open(&path).await;
            hold(&store, &request("n", 1_000 + i).tap(|r| r.name = name(&format!("own-{i}")))).await
        })
    });
    let mut tokens: Vec<_> =
        futures_util::future::join_all(opened).await.into_iter().map(|t| t.unwrap().get()).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, (1..=24).collect::<Vec<_>>());
}

trait Tap: Sized {
    fn tap(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl<T> Tap for T {}

/// Cycles of acquire, wait and release on one name; checks that it is alone inside and that tokens grow.
async fn cycle(store: &Checked<SqliteBackend>, rounds: usize, inside: &AtomicUsize, last: &AtomicI64) {
    for _ in 0..rounds {
        let request = request("hot", HolderId::random().unwrap().as_u128());
        let ticket = request.ticket();
        let token = match store.acquire(&request).await.unwrap() {
            Standing::Held(grant) => grant.token,
            Standing::Waiting(place) => {
                assert_eq!(store.wait(&ticket).await.unwrap(), Wake::Held(place.token.unwrap()));
                place.token.unwrap()
            }
            Standing::Busy(busy) => panic!("{busy:?}"),
        };
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
        assert!(last.swap(token.get(), Ordering::SeqCst) < token.get(), "tokens went back");
        tokio::task::yield_now().await;
        inside.fetch_sub(1, Ordering::SeqCst);
        release(store, &ticket).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_backends_exclude_each_other() {
    let folder = folder();
    let path = file(&folder);
    let (inside, last) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicI64::new(0)));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let store = Arc::new(open(&path).await);
        for _ in 0..3 {
            let (store, inside, last) = (store.clone(), inside.clone(), last.clone());
            tasks.push(tokio::spawn(async move { cycle(&store, 25, &inside, &last).await }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(last.load(Ordering::SeqCst), 4 * 3 * 25);
}

/// Set in the child processes of the tests below: which file to work on and how.
const ROLE: &str = "ONELOCK_SQLITE_TEST_ROLE";

/// Runs `child_process` of this test binary in a process of its own.
fn child(role: &str, path: &std::path::Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["sharing::child_process", "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, format!("{role} {}", path.display()))
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

/// Does nothing unless it is started by the tests below.
#[test]
fn child_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (role, path) = role.split_once(' ').unwrap();
    let path = std::path::Path::new(path);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = open(path).await;
        match role {
            // A counter in a plain file: read, think, write. Only the lock keeps the sum right.
            "count" => {
                let counter = path.with_extension("counter");
                for _ in 0..40 {
                    let request = request("hot", HolderId::random().unwrap().as_u128());
                    let ticket = request.ticket();
                    if let Standing::Waiting(place) = store.acquire(&request).await.unwrap() {
                        assert_eq!(store.wait(&ticket).await.unwrap(), Wake::Held(place.token.unwrap()));
                    }
                    let text = std::fs::read_to_string(&counter).unwrap_or_default();
                    let value: u64 = text.parse().unwrap_or(0);
                    tokio::task::yield_now().await;
                    std::fs::write(&counter, (value + 1).to_string()).unwrap();
                    release(&store, &ticket).await;
                }
            }
            // Holds with a short lease and tells so, until it is killed.
            "hold" => {
                hold(&store, &request("held", 7).tap(|r| r.lease = Duration::from_secs(2))).await;
                std::fs::write(path.with_extension("held"), "").unwrap();
                std::future::pending().await
            }
            // Holds for a minute and goes away.
            "take" => {
                hold(&store, &request("n", 7)).await;
                store.close().await.unwrap();
            }
            // The file is sound, and says what the process before wrote.
            "judge" => {
                let seen = store.inspect(&name("n")).await.unwrap();
                assert_eq!(seen.holders.len(), 1, "{seen:?}");
                let file = raw(path);
                let sound: String = one(&file, "PRAGMA integrity_check");
                assert_eq!(sound, "ok");
                queue(&store, &request("n", 8)).await;
                release(&store, &request("n", 7).ticket()).await;
            }
            other => panic!("no role {other}"),
        }
    });
}

#[test]
fn many_processes_make_one_file_and_exclude_each_other() {
    let folder = folder();
    let path = file(&folder);
    let children: Vec<_> = (0..5).map(|_| child("count", &path)).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let sum = std::fs::read_to_string(path.with_extension("counter")).unwrap();
    assert_eq!(sum, (5 * 40).to_string());
}

#[tokio::test]
async fn the_lock_of_a_killed_process_is_freed_by_its_lease() {
    let folder = folder();
    let path = file(&folder);
    let store = SqliteBackend::open(SqliteConfig::new(&path), Arc::new(BootClock)).await.unwrap();
    let mut holder = child("hold", &path);
    crate::support::until("the child holds", async || path.with_extension("held").exists()).await;
    let waiter = request("held", 8);
    let token = queue(&store, &waiter).await;
    holder.kill().unwrap();
    holder.wait().unwrap();
    crate::support::until("the lease of the killed process ends", async || {
        match store.renew(&[crate::support::renewal(&waiter)]).await[0] {
            Ok(onelock_core::Renewed::Held(grant)) => {
                assert_eq!(grant.token, token);
                true
            }
            Ok(onelock_core::Renewed::Waiting(_)) => false,
            ref other => panic!("{other:?}"),
        }
    })
    .await;
}

/// `rm *-wal *-shm` under a running process: the next one makes new ones, and each has a line of its own.
#[tokio::test]
async fn a_lost_log_is_noticed_and_not_written_over_what_came_after() {
    let folder = folder();
    let path = file(&folder);
    let store = open(&path).await;
    let idle = open(&path).await;
    hold(&store, &request("n", 1)).await;
    for other in 0..50 {
        hold(&store, &request(&format!("other-{other}"), 1)).await;
    }
    for suffix in ["-wal", "-shm"] {
        std::fs::remove_file(format!("{}{suffix}", path.display())).unwrap();
    }
    assert!(child("take", &path).wait().unwrap().success());
    let error = store.renew(&[renewal(&request("n", 1))]).await.remove(0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    assert!(error.to_string().contains("restart"), "{error}");
    // Nor by a new connection, which SQLite would give the old index.
    assert_eq!(refused(&path).await.kind(), ErrorKind::Protocol);
    store.close().await.unwrap();
    drop(idle);
    assert_eq!(refused(&path).await.kind(), ErrorKind::Protocol);
    assert!(child("judge", &path).wait().unwrap().success());
}
