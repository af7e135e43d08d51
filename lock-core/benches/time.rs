//! What the client costs by itself, in time.
//!
//! `cargo bench -p onelock-core --bench time`

#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark")]

mod ops;

use std::sync::Arc;
use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use onelock_core::BootClock;

fn time(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut world = ops::World::new(runtime, Arc::new(BootClock));
    for (name, operation) in ops::OPERATIONS {
        c.bench_function(name, |b| {
            b.iter_custom(|times| {
                let began = Instant::now();
                operation(&mut world, times);
                began.elapsed()
            });
        });
    }
}

criterion_group!(benches, time);
criterion_main!(benches);
