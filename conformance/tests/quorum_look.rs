//! What people see of a quorum, and evict, while a member does not answer.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use onelock_conformance::faults::{Net, Node};
use onelock_core::{
    Backend, Clock, ErrorKind, Locks, MemoryBackend, MemoryStore, Quorum, Release, TokioClock,
};

const MEMBER_TIMEOUT: Duration = Duration::from_millis(100);

/// A quorum of three, of which the first counts far ahead: it gives the tokens.
async fn quorum() -> (Locks, Vec<Arc<Net>>) {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::default());
    let (mut members, mut nets) = (Vec::new(), Vec::new());
    for node in 0..3 {
        let (store, net) = (MemoryStore::new(Arc::clone(&clock)), Net::new(0));
        let backend: Arc<dyn Backend> = Arc::new(MemoryBackend::new(&store));
        if node == 0 {
            let locks = Locks::builder(Arc::clone(&backend)).clock(Arc::clone(&clock)).build().unwrap();
            for _ in 0..9 {
                locks.mutex("n").unwrap().acquire().await.unwrap().release().await.unwrap();
            }
        }
        members.push(Arc::new(Node::new(backend, &net, format!("node-{node}"))) as Arc<dyn Backend>);
        nets.push(net);
    }
    let quorum = Quorum::with_member_timeout(members, MEMBER_TIMEOUT).unwrap();
    (Locks::builder(Arc::new(quorum)).clock(clock).build().unwrap(), nets)
}

#[tokio::test(start_paused = true)]
async fn a_held_token_is_never_said_to_be_free() {
    let (locks, nets) = quorum().await;
    let guard = locks.mutex("n").unwrap().acquire().await.unwrap();
    let token = guard.token().unwrap();
    assert_eq!(token.get(), 10);
    let name = guard.name().clone();
    nets[0].set(|weather| {
        weather.down = true;
        weather.patience = Duration::from_secs(1);
    });
    let line = locks.inspect(&name).await.unwrap();
    assert_eq!(line.holders.len(), 1, "two of three members show it");
    let unknown = locks.evict(&name, token).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::Unavailable, "{unknown}");

    nets[0].set(|weather| weather.down = false);
    assert_eq!(locks.inspect(&name).await.unwrap().holders[0].token, token);
    assert_eq!(locks.evict(&name, token).await.unwrap(), Release::Released);
    assert_eq!(locks.evict(&name, token).await.unwrap(), Release::NotHeld);
}

#[tokio::test(start_paused = true)]
async fn a_slow_member_is_waited_for() {
    let (locks, nets) = quorum().await;
    let guard = locks.mutex("n").unwrap().acquire().await.unwrap();
    let token = guard.token().unwrap();
    nets[0].set(|weather| weather.longest_delay = MEMBER_TIMEOUT / 3);
    assert_eq!(locks.inspect(guard.name()).await.unwrap().holders[0].token, token);
    assert_eq!(locks.evict(guard.name(), token).await.unwrap(), Release::Released);
}
