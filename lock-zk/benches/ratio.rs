//! The whole cycle through the client, and through the backend alone, as a ratio to the same two requests sent raw by
//! the same driver; then how often a lock changes hands among eight contenders, beside the plain recipe. What is compared
//! takes turns, so that whatever else the machine does hits all alike.
//!
//! `cargo bench -p lock-zk --bench ratio`. It needs Java and ZooKeeper, as the tests do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "a benchmark")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::hint::black_box;
use std::time::{Duration, Instant};

use lock_conformance::ctx::{exclusive, held, name, ticket};
use lock_conformance::servers::zookeeper::{Setup, ZkServer};
use lock_core::Locks;
use support::harness::open;
use tokio::task::JoinSet;
use zookeeper_client as zk;

const CYCLES: usize = 4_000;
const CONTENDERS: u64 = 8;
const TIME: Duration = Duration::from_secs(3);
const ROUNDS: u32 = 3;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(ZkServer::start(Setup::default())).unwrap();
    runtime.block_on(cycles(&server));
    runtime.block_on(changes(&server));
}

fn url(server: &ZkServer) -> String {
    format!("zk://{}/bench?tick=200ms", server.address())
}

async fn raw(server: &ZkServer) -> zk::Client {
    let connector = zk::Client::connector().with_session_timeout(Duration::from_secs(40));
    connector.connect(&server.address().to_string()).await.unwrap()
}

async fn cycles(server: &ZkServer) {
    let backend = open(&url(server)).await.unwrap();
    let locks = Locks::builder(open(&url(server)).await.unwrap()).build().unwrap();
    let lock = locks.mutex("client").unwrap();
    let own = name("backend").unwrap();
    let client = raw(server).await;
    client.mkdir("/raw", &folder()).await.unwrap();
    let mut times = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    for cycle in 0..CYCLES + 200 {
        let began = Instant::now();
        black_box(two_requests(&client).await);
        let raw = Instant::now();
        let request = exclusive(&own).unwrap();
        let grant = held(&backend, &request).await.unwrap();
        black_box(backend.release(&ticket(&request, grant.token)).await.unwrap());
        let by_backend = Instant::now();
        lock.acquire().await.unwrap().release().await.unwrap();
        let by_client = Instant::now();
        create_and_delete(&client).await;
        let plain = Instant::now();
        if cycle >= 200 {
            times[0].push(raw - began);
            times[1].push(by_backend - raw);
            times[2].push(by_client - by_backend);
            times[3].push(plain - by_client);
        }
    }
    let [raw, backend, client, plain] = times.map(|mut times| median(&mut times));
    println!("uncontended cycle, median of {CYCLES}:");
    let all = [
        ("the same two requests, raw", raw),
        ("backend", backend),
        ("client", client),
        ("one node created and deleted, raw", plain),
    ];
    for (what, time) in all {
        let ratio = time.as_secs_f64() / raw.as_secs_f64();
        println!("  {what:34} {:8.1} us  {ratio:.3} of raw", time.as_secs_f64() * 1e6);
    }
}

fn folder() -> zk::CreateOptions<'static> {
    zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all())
}

/// What an acquire and a release of a free lock send: a node for the name with the entry in it, and both gone again.
async fn two_requests(client: &zk::Client) -> i64 {
    let (parent, entry) = ("/raw/name", "/raw/name/_c_01234567-89ab-cdef-0123-456789abcdef-lock-0000000000");
    let mut join = client.new_multi_writer();
    join.add_create(parent, b"", &zk::CreateMode::Container.with_acls(zk::Acls::anyone_all())).unwrap();
    join.add_create(entry, b"", &zk::CreateMode::Ephemeral.with_acls(zk::Acls::anyone_all())).unwrap();
    join.add_set_data(entry, b"onelock/1 x host:12345", Some(0)).unwrap();
    let Some(zk::MultiWriteResult::SetData { stat }) = join.commit().await.unwrap().pop() else { panic!() };
    let mut leave = client.new_multi_writer();
    leave.add_delete(entry, None).unwrap();
    leave.add_delete(parent, None).unwrap();
    leave.commit().await.unwrap();
    stat.czxid
}

/// The least that any lock on ephemeral nodes could send.
async fn create_and_delete(client: &zk::Client) {
    let options = zk::CreateMode::EphemeralSequential.with_acls(zk::Acls::anyone_all());
    let (_, sequence) = client.create("/raw/plain-", b"", &options).await.unwrap();
    client.delete(&format!("/raw/plain-{sequence}"), None).await.unwrap();
}

async fn changes(server: &ZkServer) {
    let mut ours = Vec::new();
    for _ in 0..CONTENDERS {
        ours.push(Locks::builder(open(&url(server)).await.unwrap()).build().unwrap());
    }
    let mut theirs = Vec::new();
    for _ in 0..CONTENDERS {
        theirs.push(std::sync::Arc::new(raw(server).await));
    }
    theirs[0].mkdir("/raw/recipe", &folder()).await.unwrap();
    let mut counts = [0, 0, 0];
    for _ in 0..ROUNDS {
        counts[0] += by_us(&ours).await;
        counts[1] += by_us(&vec![ours[0].clone(); ours.len()]).await;
        counts[2] += by_the_recipe(&theirs).await;
    }
    println!("owner changes per second, {CONTENDERS} contenders:");
    let all = ["a client for each", "one client for all", "the plain recipe, a session for each"];
    for (what, count) in all.into_iter().zip(counts) {
        let rate = count as f64 / (TIME * ROUNDS).as_secs_f64();
        println!("  {what:38} {rate:7.0}  {:.2} of the recipe", count as f64 / counts[2] as f64);
    }
}

async fn by_us(clients: &[Locks]) -> u64 {
    let until = Instant::now() + TIME;
    let mut tasks = JoinSet::new();
    for locks in clients {
        let lock = locks.mutex("hot").unwrap();
        tasks.spawn(async move {
            let mut count = 0;
            while Instant::now() < until {
                lock.acquire().await.unwrap().release().await.unwrap();
                count += 1;
            }
            count
        });
    }
    tasks.join_all().await.into_iter().sum()
}

/// Create, list, watch the one before until it is the first, delete.
async fn by_the_recipe(clients: &[std::sync::Arc<zk::Client>]) -> u64 {
    let until = Instant::now() + TIME;
    let mut tasks = JoinSet::new();
    for client in clients {
        let client = std::sync::Arc::clone(client);
        tasks.spawn(async move {
            let mut count = 0;
            while Instant::now() < until {
                let options = zk::CreateMode::EphemeralSequential.with_acls(zk::Acls::anyone_all());
                let (_, own) = client.create("/raw/recipe/lock-", b"", &options).await.unwrap();
                let own = format!("lock-{own}");
                loop {
                    let mut children = client.list_children("/raw/recipe").await.unwrap();
                    children.sort_unstable();
                    let at = children.iter().position(|child| *child == own).unwrap();
                    let Some(before) = at.checked_sub(1) else { break };
                    let before = format!("/raw/recipe/{}", children[before]);
                    match client.get_and_watch_data(&before).await {
                        Ok((.., watcher)) => drop(watcher.changed().await),
                        Err(zk::Error::NoNode) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                client.delete(&format!("/raw/recipe/{own}"), None).await.unwrap();
                count += 1;
            }
            count
        });
    }
    tasks.join_all().await.into_iter().sum()
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
