//! An honest key-value server, small and in memory: the commands that the literature builds locks from.
//!
//! Every command is one step of the server and one await of its client, so that a client can be slow, or die, between two
//! of them. Expired keys are gone; the server's clock is the one of the suite.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use onelock_core::{Clock, Timestamp};
use tokio::sync::watch;

/// What a key holds.
#[derive(Clone, Debug)]
struct Item {
    value: String,
    /// When the server drops it; for ever if never.
    ends: Option<Timestamp>,
}

#[derive(Debug, Default)]
struct State {
    keys: BTreeMap<String, Item>,
    counter: i64,
}

/// The server.
#[derive(Debug)]
pub(crate) struct Server {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Told at every change, for those who watch.
    changes: watch::Sender<()>,
}

impl Server {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { clock, state: Mutex::default(), changes: watch::Sender::new(()) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap();
        let (now, before) = (self.clock.now(), state.keys.len());
        state.keys.retain(|_, item| item.ends.is_none_or(|ends| ends > now));
        if state.keys.len() < before {
            self.changes.send_replace(());
        }
        state
    }

    /// One step on the server, and the way back.
    async fn step<T>(&self, act: impl FnOnce(&mut State, Timestamp) -> T) -> T {
        let answer = act(&mut self.lock(), self.clock.now());
        tokio::time::sleep(Duration::from_millis(1)).await;
        answer
    }

    /// One step that changes something.
    async fn change<T>(&self, act: impl FnOnce(&mut State, Timestamp) -> T) -> T {
        self.step(|state, now| {
            let answer = act(state, now);
            self.changes.send_replace(());
            answer
        })
        .await
    }

    /// `SET key value NX [PX ttl]`; whether it was set.
    pub(crate) async fn set_nx(&self, key: &str, value: &str, ttl: Option<Duration>) -> bool {
        self.change(|state, now| {
            let free = !state.keys.contains_key(key);
            if free {
                state.set(key, value, ttl.map(|ttl| now + ttl));
            }
            free
        })
        .await
    }

    /// `SET key value PX ttl`.
    pub(crate) async fn set(&self, key: &str, value: &str, ttl: Duration) {
        self.change(|state, now| state.set(key, value, Some(now + ttl))).await;
    }

    /// `GET key`.
    pub(crate) async fn get(&self, key: &str) -> Option<String> {
        self.step(|state, _| state.keys.get(key).map(|item| item.value.clone())).await
    }

    /// `GETSET key value`.
    pub(crate) async fn get_set(&self, key: &str, value: &str) -> Option<String> {
        self.change(|state, _| {
            let old = state.keys.get(key).map(|item| item.value.clone());
            state.set(key, value, None);
            old
        })
        .await
    }

    /// `EXPIRE key ttl`, which never shortens; whether the key is there.
    pub(crate) async fn expire(&self, key: &str, ttl: Duration) -> bool {
        self.change(|state, now| state.keys.get_mut(key).map(|item| item.keep(now + ttl)).is_some()).await
    }

    /// `DEL key`; whether it was there.
    pub(crate) async fn del(&self, key: &str) -> bool {
        self.change(|state, _| state.keys.remove(key).is_some()).await
    }

    /// `INCR`.
    pub(crate) async fn incr(&self) -> i64 {
        self.change(|state, _| state.next()).await
    }

    /// A script: `SET key value NX PX ttl`, and with it a fresh number behind the value. The value that is there then.
    pub(crate) async fn take(&self, key: &str, value: &str, ttl: Duration) -> String {
        self.change(|state, now| {
            if !state.keys.contains_key(key) {
                let value = format!("{value} {}", state.next());
                state.set(key, &value, Some(now + ttl));
            }
            state.keys[key].value.clone()
        })
        .await
    }

    /// A script: keeps the key for `ttl` if its value fits; the value that is there.
    pub(crate) async fn keep_if(
        &self,
        key: &str,
        fits: impl Fn(&str) -> bool,
        ttl: Duration,
    ) -> Option<String> {
        self.change(|state, now| {
            let item = state.keys.get_mut(key).filter(|item| fits(&item.value))?;
            item.keep(now + ttl);
            Some(item.value.clone())
        })
        .await
    }

    /// A script: deletes the key if its value fits; whether it did.
    pub(crate) async fn del_if(&self, key: &str, fits: impl Fn(&str) -> bool) -> bool {
        self.change(|state, _| {
            let ours = state.keys.get(key).is_some_and(|item| fits(&item.value));
            ours && state.keys.remove(key).is_some()
        })
        .await
    }

    /// Makes a child under `parent`, numbered by the server, which goes with its session's lease; its number.
    pub(crate) async fn create(&self, parent: &str, value: &str, lease: Option<Duration>) -> i64 {
        self.change(|state, now| {
            let number = state.next();
            state.set(&child(parent, number), value, lease.map(|lease| now + lease));
            number
        })
        .await
    }

    /// The children of `parent`, by number, with their values and what is left of their leases.
    pub(crate) async fn children(&self, parent: &str) -> Vec<(i64, String, Option<Duration>)> {
        self.step(|state, now| {
            let from = child(parent, 0);
            let mine = state.keys.range(from..).take_while(|(key, _)| key.starts_with(&format!("{parent}/")));
            mine.map(|(key, item)| {
                let number = key.rsplit('/').next().unwrap().parse().unwrap();
                (number, item.value.clone(), item.ends.map(|ends| ends.saturating_since(now)))
            })
            .collect()
        })
        .await
    }

    /// Ends when any key has changed since the call, or one may have expired.
    pub(crate) fn watch(&self) -> Watch {
        Watch(self.changes.subscribe())
    }

    /// All keys, for what must not be left.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.lock().keys.keys().cloned().collect()
    }
}

/// The name of a child.
pub(crate) fn child(parent: &str, number: i64) -> String {
    format!("{parent}/{number:010}")
}

/// A watch: what changes between its making and its waiting is not missed.
pub(crate) struct Watch(watch::Receiver<()>);

impl Watch {
    pub(crate) async fn changed(&mut self, server: &Server) {
        loop {
            let look = tokio::time::timeout(Duration::from_millis(10), self.0.changed());
            if look.await.is_ok() {
                return;
            }
            // Lets the server drop what has expired.
            drop(server.lock());
        }
    }
}

impl State {
    fn next(&mut self) -> i64 {
        self.counter += 1;
        self.counter
    }

    fn set(&mut self, key: &str, value: &str, ends: Option<Timestamp>) {
        self.keys.insert(key.to_owned(), Item { value: value.to_owned(), ends });
    }
}

impl Item {
    fn keep(&mut self, ends: Timestamp) {
        self.ends = Some(self.ends.map_or(ends, |before| before.max(ends)));
    }
}
