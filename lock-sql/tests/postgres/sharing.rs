//! Many clients on one name.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use onelock_core::{Backend, HolderId, LockName, Mode, Release, Request, Standing, Wake};

use crate::postgres_server::PostgresServer;
use crate::server::open;

pub(crate) fn request(on: &str) -> Request {
    Request::new(
        LockName::new(on).unwrap(),
        HolderId::random().unwrap(),
        Mode::Exclusive,
        Duration::from_secs(60),
    )
}

/// Half of the tasks queue and half only try, so that joins, refusals and releases race on one counter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_exclude_each_other() {
    let server = PostgresServer::start(&["synchronous_commit=off"]).await.unwrap();
    let (inside, last) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicI64::new(0)));
    let mut tasks = Vec::new();
    for client in 0..6 {
        let store = Arc::new(open(&server.url()).await);
        for task in 0..4 {
            let (store, inside, last) = (store.clone(), inside.clone(), last.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..60 {
                    let request = request("hot").queue((client + task) % 2 == 0);
                    let ticket = request.ticket();
                    let token = match store.acquire(&request).await.unwrap() {
                        Standing::Held(grant) => grant.token,
                        Standing::Waiting(place) => {
                            while store.wait(&ticket).await.unwrap() != Wake::Held(place.token.unwrap()) {}
                            place.token.unwrap()
                        }
                        Standing::Busy(_) => continue,
                    };
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
                    assert!(last.swap(token.get(), Ordering::SeqCst) < token.get(), "tokens went back");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert_eq!(store.release(&ticket).await.unwrap(), Release::Released);
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
}
