//! What the client itself costs: cycles on the memory store, where nothing else takes time.
//!
//! `cargo bench -p lock-core`

#![allow(clippy::unwrap_used, missing_docs)]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use lock_core::{BootClock, Clock, Locks, MemoryBackend, MemoryStore};

fn memory(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let locks = runtime.block_on(async {
        let clock: Arc<dyn Clock> = Arc::new(BootClock);
        let store = MemoryStore::new(Arc::clone(&clock));
        Locks::builder(Arc::new(MemoryBackend::new(&store))).clock(clock).build().unwrap()
    });

    let lock = locks.mutex("cycle").unwrap();
    c.bench_function("memory/acquire_release", |b| {
        b.to_async(&runtime).iter(|| async { lock.acquire().await.unwrap().release().await.unwrap() });
    });

    let held = runtime.block_on(locks.mutex("busy").unwrap().acquire()).unwrap();
    let busy = locks.mutex("busy").unwrap();
    c.bench_function("memory/busy_try", |b| {
        b.to_async(&runtime).iter(|| async { assert!(busy.try_acquire().await.unwrap().is_none()) });
    });

    c.bench_function("memory/reenter", |b| b.iter(|| black_box(held.reenter().unwrap())));

    let owner = locks.owner();
    let lock = locks.mutex("owned").unwrap().owner(&owner).unwrap();
    let _outer = runtime.block_on(lock.acquire()).unwrap();
    c.bench_function("memory/owner_acquire_again", |b| {
        b.to_async(&runtime).iter(|| async { black_box(lock.acquire().await.unwrap()) });
    });

    c.bench_function("memory/is_held", |b| b.iter(|| black_box(held.is_held())));
}

criterion_group!(benches, memory);
criterion_main!(benches);
