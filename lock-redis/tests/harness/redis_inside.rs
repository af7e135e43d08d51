//! What is in servers of Redis, and what they are asked, seen past the driver.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onelock_conformance::ctx::{Entry, exclusive, name};
use onelock_conformance::harness::Store;
use onelock_conformance::servers::resp::Resp;
use onelock_conformance::verdict::{Stop, Verdict};
use onelock_core::toolkit::Mutex;
use tokio::sync::watch;

use super::servers::is_client;

/// What tells a counter from what must go: the key of one.
pub type IsCounter = fn(&str) -> bool;

/// What is put in the place of a line.
const FOREIGN: &str = "somebody else's";

/// The servers that keep the data of a case.
pub(super) struct Inside {
    servers: Vec<SocketAddr>,
    is_counter: IsCounter,
    planted: Mutex<Vec<String>>,
    watchers: tokio::sync::Mutex<Vec<Watcher>>,
}

impl Inside {
    pub(super) fn new(servers: Vec<SocketAddr>, is_counter: IsCounter) -> Self {
        Self { servers, is_counter, planted: Mutex::default(), watchers: tokio::sync::Mutex::default() }
    }

    async fn admins(&self) -> Verdict<Vec<Resp>> {
        let mut admins = Vec::new();
        for server in &self.servers {
            admins.push(Resp::connect(*server).await?);
        }
        Ok(admins)
    }

    async fn keys(&self) -> Verdict<Vec<String>> {
        let mut keys = Vec::new();
        for mut admin in self.admins().await? {
            keys.extend(admin.call(&["KEYS", "*"]).await?);
        }
        Ok(keys)
    }

    pub(super) async fn residue(&self) -> Verdict<Vec<String>> {
        Ok(self.keys().await?.into_iter().filter(|key| !(self.is_counter)(key)).collect())
    }

    pub(super) async fn counters(&self) -> Verdict<u64> {
        Ok(self.keys().await?.iter().filter(|key| (self.is_counter)(key)).count() as u64)
    }

    pub(super) async fn requests(&self) -> Verdict<u64> {
        let mut watchers = self.watchers.lock().await;
        if watchers.is_empty() {
            for server in &self.servers {
                watchers.push(Watcher::start(*server).await?);
            }
        }
        let mut sum = 0;
        for watcher in &mut *watchers {
            sum += watcher.count().await?;
        }
        Ok(sum)
    }

    /// Of the server that has most: a client has one to each.
    pub(super) async fn connections(&self) -> Verdict<u64> {
        let watchers = self.watchers.lock().await;
        let mut most = 0;
        for mut admin in self.admins().await? {
            let own = watchers.iter().map(|watcher| &watcher.admin).chain([&admin]);
            let own: Vec<_> = own.map(|admin| format!(" addr={} ", admin.local())).collect();
            let list = admin.call(&["CLIENT", "LIST"]).await?.concat();
            let others = |line: &&str| is_client(line) && !own.iter().any(|own| line.contains(own));
            most = most.max(list.lines().filter(others).count() as u64);
        }
        Ok(most)
    }

    /// Puts something else into the keys of the line of `text`.
    pub(super) async fn plant(&self, store: &impl Store, text: &str) -> Verdict {
        let keys = keys_of_line(store, text).await?;
        for key in &keys {
            self.on_key(&["SET", key, FOREIGN]).await?;
        }
        self.planted.lock().extend(keys);
        Ok(())
    }

    pub(super) async fn planted(&self) -> Verdict<bool> {
        let keys = self.planted.lock().clone();
        for key in &keys {
            if self.on_key(&["GET", key]).await? != [FOREIGN] {
                return Ok(false);
            }
        }
        Ok(!keys.is_empty())
    }

    /// Runs a command on the server that serves its key.
    async fn on_key(&self, command: &[&str]) -> Verdict<Vec<String>> {
        let mut last = Stop::failed("no server");
        for mut admin in self.admins().await? {
            match admin.call(command).await {
                Ok(texts) => return Ok(texts),
                Err(error) if error.to_string().contains("MOVED") => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }
}

/// The keys of the line of `text`: seen by putting a holder and a waiter there.
async fn keys_of_line(store: &impl Store, text: &str) -> Verdict<Vec<String>> {
    let (backend, name) = (store.connect().await?, name(text)?);
    let before = store.residue().await?;
    let first = Entry::holding(&backend, exclusive(&name)?).await?;
    let second = Entry::waiting(&backend, exclusive(&name)?).await?;
    let keys = store.residue().await?;
    second.release().await?;
    first.release().await?;
    Ok(keys.into_iter().filter(|key| !before.contains(key)).collect())
}

/// Counts the commands of clients with `MONITOR`: unlike the server's statistics it tells a script's own commands apart.
struct Watcher {
    admin: Resp,
    seen: Arc<AtomicU64>,
    marks: watch::Receiver<u64>,
    mark: u64,
    task: tokio::task::JoinHandle<()>,
}

impl Watcher {
    async fn start(address: SocketAddr) -> Verdict<Self> {
        let admin = Resp::connect(address).await?;
        let mut monitor = Resp::connect(address).await?;
        monitor.call(&["MONITOR"]).await?;
        let seen = Arc::new(AtomicU64::new(0));
        let (told, marks) = watch::channel(0);
        let (own, count) = (format!(" {}] ", admin.local()), Arc::clone(&seen));
        let task = tokio::spawn(async move {
            while let Ok(line) = monitor.line().await {
                if line.contains(&own) {
                    let mark = line.rsplit('"').nth(1).and_then(|mark| mark.parse().ok());
                    if let Some(mark) = mark {
                        told.send_replace(mark);
                    }
                } else if !line.contains(" lua] ") && !is_housekeeping(&line) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Ok(Self { admin, seen, marks, mark: 0, task })
    }

    /// What the server has served until now: the monitor has seen all of it when it has seen our mark.
    async fn count(&mut self) -> Verdict<u64> {
        self.mark += 1;
        let mark = self.mark;
        self.admin.call(&["ECHO", &mark.to_string()]).await?;
        let seen =
            tokio::time::timeout(Duration::from_secs(10), self.marks.wait_for(|told| *told >= mark)).await;
        match seen {
            Ok(Ok(_)) => Ok(self.seen.load(Ordering::Relaxed)),
            _ => Err(Stop::failed("the monitor has stopped")),
        }
    }
}

/// What replicas and sentinels send on their own account.
fn is_housekeeping(line: &str) -> bool {
    let command = line.split("] ").nth(1).unwrap_or_default();
    ["\"PING\"", "\"INFO\"", "\"REPLCONF\"", "\"PUBLISH\" \"__sentinel__"]
        .iter()
        .any(|own| command.starts_with(own))
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}
