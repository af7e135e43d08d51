//! The whole cycle through the client, and through the backend alone, as a ratio to the same two requests sent raw by
//! the same driver; then how often a lock changes hands among eight contenders, beside the server's own lock service. What
//! is compared takes turns, so that whatever else the machine does hits all alike.
//!
//! Every acquisition has a key of its own, and etcd steps over those that are gone until it compacts; so the raw requests
//! have fresh keys as well, and the history is compacted now and then, as a server does that is set up for it.
//!
//! `cargo bench -p lock-etcd --bench ratio`. It needs `etcd` in the path.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "a benchmark")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::hint::black_box;
use std::time::{Duration, Instant};

use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, GetOptions, LockOptions, PutOptions, SortOrder, SortTarget,
    Txn, TxnOp,
};
use lock_conformance::ctx::{exclusive, held, name, ticket};
use lock_conformance::harness::open_by;
use lock_core::Locks;
use lock_etcd::DRIVER;
use support::server::Member;
use tokio::task::JoinSet;

const CYCLES: usize = 4_000;
/// How many cycles lie between two compactions.
const COMPACTED: usize = 250;
const CONTENDERS: u64 = 8;
const TIME: Duration = Duration::from_secs(3);
const ROUNDS: u32 = 3;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(Member::single(None)).unwrap();
    runtime.block_on(cycles(&server));
    runtime.block_on(changes(&server));
}

async fn raw(server: &Member) -> Client {
    let options = ConnectOptions::new().with_require_leader(true);
    Client::connect([format!("127.0.0.1:{}", server.port())], Some(options)).await.unwrap()
}

async fn cycles(server: &Member) {
    let backend = open_by(&DRIVER, &server.url()).await.unwrap();
    let locks = Locks::builder(open_by(&DRIVER, &server.url()).await.unwrap()).build().unwrap();
    let lock = locks.mutex("client").unwrap();
    let own = name("backend").unwrap();
    let mut client = raw(server).await;
    let lease = client.lease_grant(3_600, None).await.unwrap().id();
    let mut times = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    for cycle in 0..CYCLES + 200 {
        if cycle % COMPACTED == 0 {
            compact(&mut client).await;
        }
        let began = Instant::now();
        black_box(two_requests(&client, lease, cycle).await);
        let raw = Instant::now();
        let request = exclusive(&own).unwrap();
        let grant = held(&backend, &request).await.unwrap();
        black_box(backend.release(&ticket(&request, grant.token)).await.unwrap());
        let by_backend = Instant::now();
        lock.acquire().await.unwrap().release().await.unwrap();
        let by_client = Instant::now();
        client.put("plain", "", Some(PutOptions::new().with_lease(lease))).await.unwrap();
        client.delete("plain", None).await.unwrap();
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
        ("one key put and deleted, raw", plain),
    ];
    for (what, time) in all {
        let ratio = time.as_secs_f64() / raw.as_secs_f64();
        println!("  {what:34} {:8.1} us  {ratio:.3} of raw", time.as_secs_f64() * 1e6);
    }
}

/// What an acquire and a release of a free lock send: the transaction that joins the line, and the deletion.
async fn two_requests(client: &Client, lease: i64, cycle: usize) -> i64 {
    let (line, end, key) = ("onelock/raw/", "onelock/raw0", format!("onelock/raw/{cycle:032x}"));
    let put = || TxnOp::put(&key[..], "host:12345", Some(PutOptions::new().with_lease(lease)));
    let read =
        GetOptions::new().with_range(end).with_sort(SortTarget::Create, SortOrder::Ascend).with_keys_only();
    let join = Txn::new()
        .when([Compare::create_revision(line, CompareOp::Equal, 0).with_range(end)])
        .and_then([put()])
        .or_else([put(), TxnOp::get(line, Some(read))]);
    let join = Txn::new()
        .when([Compare::create_revision(&key[..], CompareOp::Equal, 0)])
        .and_then([TxnOp::txn(join), TxnOp::delete("onelock/raw/0123456789abcdef0123456789abcdef/", None)]);
    let joined = client.kv_client().txn(join).await.unwrap();
    assert_eq!(client.kv_client().delete(&key[..], None).await.unwrap().deleted(), 1);
    joined.header().unwrap().revision()
}

/// Forgets the keys that are gone.
async fn compact(client: &mut Client) {
    let now = client.get("now", None).await.unwrap().header().unwrap().revision();
    client.compact(now, None).await.unwrap();
}

async fn changes(server: &Member) {
    let mut ours = Vec::new();
    for _ in 0..CONTENDERS {
        ours.push(Locks::builder(open_by(&DRIVER, &server.url()).await.unwrap()).build().unwrap());
    }
    let mut theirs = Vec::new();
    for _ in 0..CONTENDERS {
        let mut client = raw(server).await;
        let lease = client.lease_grant(3_600, None).await.unwrap().id();
        theirs.push((client, lease));
    }
    let mut counts = [0, 0, 0];
    let mut requests = [0, 0, 0];
    let received = async || server.received().await.unwrap().into_iter().map(|(_, count)| count).sum::<u64>();
    for _ in 0..ROUNDS {
        for (i, count) in counts.iter_mut().enumerate() {
            compact(&mut theirs[0].0).await;
            let before = received().await;
            *count += match i {
                0 => by_us(&ours).await,
                1 => by_us(&vec![ours[0].clone(); ours.len()]).await,
                _ => by_the_service(&theirs).await,
            };
            requests[i] += received().await - before;
        }
    }
    println!("owner changes per second, {CONTENDERS} contenders:");
    let all = ["a client for each", "one client for all", "the server's lock service, a client for each"];
    for ((what, count), requests) in all.into_iter().zip(counts).zip(requests) {
        let (rate, each) = (count as f64 / (TIME * ROUNDS).as_secs_f64(), requests as f64 / count as f64);
        let ratio = count as f64 / counts[2] as f64;
        println!("  {what:46} {rate:7.0}  {ratio:.2} of the service, {each:.2} requests each");
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

async fn by_the_service(clients: &[(Client, i64)]) -> u64 {
    let until = Instant::now() + TIME;
    let mut tasks = JoinSet::new();
    for (client, lease) in clients.iter().cloned() {
        tasks.spawn(async move {
            let mut lock = client.lock_client();
            let mut count = 0;
            while Instant::now() < until {
                let key = lock.lock("service", Some(LockOptions::new().with_lease(lease))).await.unwrap();
                lock.unlock(key.key()).await.unwrap();
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
