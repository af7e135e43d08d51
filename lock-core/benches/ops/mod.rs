//! What is measured: what the client does by itself, on the memory store, where nothing else takes time; and the steps of
//! a line.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use onelock_core::line::Line;
use onelock_core::{
    Clock, FencingToken, Guard, HolderId, Lock, LockName, Locks, MemoryBackend, MemoryStore, Mode, Request,
    Timestamp,
};
use tokio::runtime::Runtime;

/// How many wait in the long line.
const CROWD: u128 = 64;

/// What the operations work on.
pub(crate) struct World {
    pub(crate) runtime: Runtime,
    free: Lock,
    busy: Lock,
    held: Guard,
    owned: Lock,
    _outer: Guard,
    short: Line,
    long: Line,
}

/// One operation, so many times.
pub(crate) type Operation = fn(&mut World, u64);

/// The operations, by name.
pub(crate) const OPERATIONS: &[(&str, Operation)] = &[
    ("cycle", |world, times| {
        let World { runtime, free, .. } = world;
        runtime.block_on(async {
            for _ in 0..times {
                free.acquire().await.unwrap().release().await.unwrap();
            }
        });
    }),
    ("busy try", |world, times| {
        let World { runtime, busy, .. } = world;
        runtime.block_on(async {
            for _ in 0..times {
                assert!(busy.try_acquire().await.unwrap().is_none());
            }
        });
    }),
    ("re-entry by guard", |world, times| {
        for _ in 0..times {
            drop(black_box(world.held.reenter().unwrap()));
        }
    }),
    ("re-entry by owner", |world, times| {
        let World { runtime, owned, .. } = world;
        runtime.block_on(async {
            for _ in 0..times {
                drop(black_box(owned.acquire().await.unwrap()));
            }
        });
    }),
    ("is it held", |world, times| {
        for _ in 0..times {
            black_box(world.held.is_held());
        }
    }),
    ("line: join and leave", |world, times| (0..times).for_each(|_| pass(&mut world.short))),
    ("line: join and leave behind 64", |world, times| (0..times).for_each(|_| pass(&mut world.long))),
];

impl World {
    pub(crate) fn new(runtime: Runtime, clock: Arc<dyn Clock>) -> Self {
        let (free, busy, held, owned, outer) = runtime.block_on(async {
            let store = MemoryStore::new(Arc::clone(&clock));
            let locks = Locks::builder(Arc::new(MemoryBackend::new(&store))).clock(clock).build().unwrap();
            let busy = locks.mutex("busy").unwrap();
            let held = busy.acquire().await.unwrap();
            let owned = locks.mutex("owned").unwrap().owner(&locks.owner()).unwrap();
            let outer = owned.acquire().await.unwrap();
            (locks.mutex("free").unwrap(), busy, held, owned, outer)
        });
        let mut long = Line::default();
        for holder in 1..=CROWD {
            join(&mut long, holder);
        }
        Self { runtime, free, busy, held, owned, _outer: outer, short: Line::default(), long }
    }
}

fn join(line: &mut Line, holder: u128) {
    let request = Request::new(
        LockName::new("line").unwrap(),
        HolderId::from_u128(holder),
        Mode::Exclusive,
        Duration::from_secs(1),
    );
    let next = || FencingToken::new(i64::try_from(holder).unwrap()).unwrap();
    black_box(line.acquire(Timestamp::from_origin(Duration::from_secs(1)), &request, next));
}

fn pass(line: &mut Line) {
    let now = Timestamp::from_origin(Duration::from_secs(1));
    let mut promoted = Vec::new();
    line.settle(now, &mut promoted);
    join(line, CROWD + 1);
    line.remove(HolderId::from_u128(CROWD + 1));
    line.settle(now, &mut promoted);
    black_box(promoted);
}
