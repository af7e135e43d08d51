//! The whole cycle through the client, and through the backend alone, as a ratio to the same two scripts sent raw by the
//! same driver. The three take turns cycle by cycle, so that whatever else the machine does hits them alike; medians.
//!
//! `cargo bench -p lock-redis --bench ratio`. It needs `redis-server` in the path.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "a benchmark")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::time::{Duration, Instant};

use common::{Server, held, request};
use lock_core::{Backend, Locks};
use redis::Cmd;

const CYCLES: usize = 20_000;
/// The scripts as the backend sends them.
const ACQUIRE: &str = concat!(
    include_str!("../src/scripts/base.lua"),
    include_str!("../src/scripts/gates.lua"),
    include_str!("../src/scripts/acquire.lua"),
    include_str!("../src/scripts/common.lua"),
    include_str!("../src/scripts/acquire_line.lua"),
);
const RELEASE: &str = concat!(
    include_str!("../src/scripts/base.lua"),
    include_str!("../src/scripts/release.lua"),
    include_str!("../src/scripts/common.lua"),
    include_str!("../src/scripts/release_line.lua"),
);

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let [mut raw, mut backend, mut client] = runtime.block_on(measure());
    let floor = median(&mut raw);
    for (what, times) in [("raw", floor), ("backend", median(&mut backend)), ("client", median(&mut client))]
    {
        let ratio = times.as_secs_f64() / floor.as_secs_f64();
        println!("{what:8} median {:7.1} us  {ratio:.3} of raw", times.as_secs_f64() * 1e6);
    }
}

async fn measure() -> [Vec<Duration>; 3] {
    let server = Server::start(&[]).await;
    let backend = server.backend().await;
    let locks = Locks::builder(server.backend().await).build().unwrap();
    let lock = locks.mutex("a").unwrap();
    let raw = server.raw_as_the_backend().await;
    let scripts = [ACQUIRE, RELEASE].map(|verb| redis::Script::new(verb).get_hash().to_owned());
    let keys = ["e", "o", "w", "x"].map(|kind| format!("onelock:{{44}}:{kind}:a"));
    let ask = request("a", "x");
    let holder = ask.holder.to_hex();

    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for cycle in 0..CYCLES + 1_000 {
        let began = Instant::now();
        let mut connection = raw.0.clone();
        let mut acquire = Cmd::new();
        acquire.arg("EVALSHA").arg(&scripts[0]).arg(5).arg(&keys).arg("onelock:{44}:n").arg(&holder);
        acquire.arg("x").arg(3_600_000).arg(1_800_000).arg(1).arg("onelock:inbox:raw").arg("a note");
        black_box(connection.send_packed_command(&acquire).await.unwrap());
        let mut release = Cmd::new();
        release.arg("EVALSHA").arg(&scripts[1]).arg(4).arg(&keys).arg(&holder);
        black_box(connection.send_packed_command(&release).await.unwrap());
        let done = Instant::now();
        black_box(held(backend.acquire(&ask).await.unwrap()));
        black_box(backend.release(&ask.ticket()).await.unwrap());
        let backend_done = Instant::now();
        lock.acquire().await.unwrap().release().await.unwrap();
        let client_done = Instant::now();
        if cycle >= 1_000 {
            times[0].push(done - began);
            times[1].push(backend_done - done);
            times[2].push(client_done - backend_done);
        }
    }
    times
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
