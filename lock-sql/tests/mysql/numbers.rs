//! Numbers are never given twice, and what they need is bounded.

use std::sync::Arc;
use std::time::Duration;

use onelock_core::{Backend, FencingToken, Mode, Raise, Release, Standing};

use crate::mysql_server::{Admin as _, MariaDb};
use crate::support::{connect, held, name, request, ticket};

/// Sessions that race for a name that nobody has asked for before: exactly one holds, and the numbers differ.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn racing_sessions_have_one_holder() {
    let server = MariaDb::start(&[]).await.unwrap();
    let mut stores = Vec::new();
    for i in 0..8 {
        // Half of them send blocks, half several statements.
        let url = format!("{}?blocks={}", server.url(), i % 2 == 0);
        stores.push(Arc::new(connect(&url).await));
    }
    for round in 0..60 {
        let barrier = Arc::new(tokio::sync::Barrier::new(16));
        let mut tasks = tokio::task::JoinSet::new();
        for i in 0..16 {
            let (store, barrier) = (Arc::clone(&stores[i % 8]), Arc::clone(&barrier));
            tasks.spawn(async move {
                let mut entry = request(&format!("race-{round}"), Mode::Exclusive);
                entry.queue = i % 3 > 0;
                barrier.wait().await;
                (store.acquire(&entry).await.unwrap(), entry)
            });
        }
        let (mut holders, mut tokens) = (0, Vec::new());
        while let Some(done) = tasks.join_next().await {
            match done.unwrap().0 {
                Standing::Held(grant) => {
                    holders += 1;
                    tokens.push(grant.token);
                }
                Standing::Waiting(place) => tokens.push(place.token.unwrap()),
                Standing::Busy(_) => {}
            }
        }
        assert_eq!(holders, 1, "round {round}");
        let count = tokens.len();
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), count, "round {round}: a number was given twice");
    }
}

/// However many names were used, the counters are as many as at the start, and numbers of a name only grow.
#[tokio::test]
async fn idle_names_leave_no_row_and_numbers_grow() {
    let server = MariaDb::start(&[]).await.unwrap();
    let store = connect(&server.url()).await;
    let mut last = Vec::new();
    for i in 0..600 {
        let entry = request(&format!("idle-{i}"), Mode::Exclusive);
        last.push(held(&store, &entry).await.token);
        store.release(&entry.ticket()).await.unwrap();
    }
    store.close().await.unwrap();
    assert_eq!(server.count("SELECT COUNT(*) FROM locks.onelock_line").await.unwrap(), 0);
    assert_eq!(server.count("SELECT COUNT(*) FROM locks.onelock_counter").await.unwrap(), 1024);
    let used = "SELECT COUNT(*) FROM locks.onelock_counter WHERE number > 0";
    assert!(server.count(used).await.unwrap() > 300, "the names are not spread over the counters");
    let store = connect(&server.url()).await;
    for (i, before) in last.into_iter().enumerate() {
        let entry = request(&format!("idle-{i}"), Mode::Exclusive);
        assert!(held(&store, &entry).await.token > before);
        store.release(&entry.ticket()).await.unwrap();
    }
}

/// Entries of clients that are gone leave the table though nobody asks for their names.
#[tokio::test]
async fn what_has_expired_is_swept() {
    let server = MariaDb::start(&[]).await.unwrap();
    let gone = connect(&server.url()).await;
    for i in 0..20 {
        held(&gone, &request(&format!("gone-{i}"), Mode::Exclusive)).await;
    }
    drop(gone);
    let store = connect(&server.url()).await;
    let kept = request("kept", Mode::Exclusive);
    held(&store, &kept).await;
    server.run("UPDATE locks.onelock_line SET ends = joined WHERE name <> 'kept'").await.unwrap();
    let swept = async {
        while server.count("SELECT COUNT(*) FROM locks.onelock_line").await.unwrap() > 1 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(40), swept).await.unwrap();
    assert_eq!(store.release(&kept.ticket()).await.unwrap(), Release::Released);
}

/// Many clients take and release the same few names: tokens of each name only grow.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_that_come_and_go_repeat_no_number() {
    let server = MariaDb::start(&[]).await.unwrap();
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    for client in 0..6 {
        let (url, seen) = (server.url(), Arc::clone(&seen));
        tasks.spawn(async move {
            for _ in 0..12 {
                let store = connect(&url).await;
                for i in 0..4 {
                    let mut entry = request(&format!("shared-{}", (i + client) % 4), Mode::Exclusive);
                    entry.queue = false;
                    if let Standing::Held(grant) = store.acquire(&entry).await.unwrap() {
                        // While it holds, nobody else is given a number of this name.
                        seen.lock().unwrap().push((entry.name.clone(), grant.token));
                        store.release(&ticket(&entry, grant.token)).await.unwrap();
                    }
                }
                store.close().await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    assert!(seen.len() > 50, "{} grants: nothing was proven", seen.len());
    for text in ["shared-0", "shared-1", "shared-2", "shared-3"] {
        let tokens: Vec<_> = seen.iter().filter(|(n, _)| *n == name(text)).map(|(_, token)| *token).collect();
        assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{text}: {tokens:?}");
    }
}

/// A number at the end of its range is an error for the names of its counter alone.
#[tokio::test]
async fn the_last_number_is_an_error_of_its_counter() {
    let server = MariaDb::start(&[]).await.unwrap();
    let store = connect(&server.url()).await;
    let entry = request("full", Mode::Exclusive);
    let grant = held(&store, &entry).await;
    let last = FencingToken::new((1 << 48) - 1).unwrap();
    assert_eq!(store.raise(&ticket(&entry, grant.token), last).await.unwrap(), Raise::Raised);
    // Only a join begins a later epoch.
    let beyond = FencingToken::new(1 << 48).unwrap();
    let error = store.raise(&ticket(&entry, grant.token), beyond).await.unwrap_err();
    assert_eq!(error.kind(), onelock_core::ErrorKind::InvalidConfig, "{error}");
    store.release(&entry.ticket()).await.unwrap();
    let error = store.acquire(&request("full", Mode::Exclusive)).await.unwrap_err();
    assert_eq!(error.kind(), onelock_core::ErrorKind::Full, "{error}");
    store.close().await.unwrap();
    let store = connect(&server.url()).await;
    let error = store.acquire(&request("full", Mode::Exclusive)).await.unwrap_err();
    assert_eq!(error.kind(), onelock_core::ErrorKind::Full, "{error}");
    held(&store, &request("other", Mode::Exclusive)).await;
}
