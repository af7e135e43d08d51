//! Acquire and release by the backend, beside the same two scripts sent raw through the same driver: the difference is
//! what this crate costs. It needs `redis-server` in the path.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "a benchmark")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;

use common::{Server, held, request};
use criterion::{Criterion, criterion_group, criterion_main};
use lock_core::Backend;
use redis::Cmd;

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

fn overhead(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (server, backend, raw) = runtime.block_on(async {
        let server = Server::start(&[]).await;
        let (backend, raw) = (server.backend().await, server.raw_as_the_backend().await);
        (server, backend, raw)
    });
    let scripts = [ACQUIRE, RELEASE].map(|verb| redis::Script::new(verb).get_hash().to_owned());
    let keys = ["e", "o", "w", "x"].map(|kind| format!("onelock:{{44}}:{kind}:a"));
    let ask = request("a", "x");
    let holder = ask.holder.to_hex();

    let mut group = criterion.benchmark_group("cycle");
    // In turns: on a shared machine neighbouring runs differ more than these two do.
    for round in 1..=4 {
        group.bench_function(format!("raw/{round}"), |bencher| {
            bencher.to_async(&runtime).iter(|| {
                let mut connection = raw.0.clone();
                let (scripts, keys, holder) = (&scripts, &keys, &holder);
                async move {
                    let mut acquire = Cmd::new();
                    acquire
                        .arg("EVALSHA")
                        .arg(&scripts[0])
                        .arg(5)
                        .arg(keys)
                        .arg("onelock:{44}:n")
                        .arg(holder);
                    acquire
                        .arg("x")
                        .arg(3_600_000)
                        .arg(1_800_000)
                        .arg(1)
                        .arg("onelock:inbox:raw")
                        .arg("a note");
                    black_box(connection.send_packed_command(&acquire).await.unwrap());
                    let mut release = Cmd::new();
                    release.arg("EVALSHA").arg(&scripts[1]).arg(4).arg(keys).arg(holder);
                    black_box(connection.send_packed_command(&release).await.unwrap());
                }
            });
        });
        group.bench_function(format!("backend/{round}"), |bencher| {
            bencher.to_async(&runtime).iter(|| async {
                black_box(held(backend.acquire(&ask).await.unwrap()));
                black_box(backend.release(&ask.ticket()).await.unwrap());
            });
        });
    }
    group.finish();
    drop((backend, raw));
    drop(server);
}

criterion_group!(benches, overhead);
criterion_main!(benches);
