//! Quorums over simulated nodes: thousands of seeds on paused time, with late, lost and repeated messages, dead nodes
//! and clients that are cut off.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onelock_conformance::faults::{Net, Node};
use onelock_conformance::history::{self, KnownHold};
use onelock_conformance::rng::Rng;
use onelock_core::{
    Backend, Clock, ErrorKind, Locks, MemoryBackend, MemoryStore, Mode, Quorum, Settings, Timestamp,
    TokioClock,
};

const TTL: Duration = Duration::from_secs(2);
const MEMBER_TIMEOUT: Duration = Duration::from_millis(100);
const CLIENTS: u32 = 3;

/// What a run of one seed has seen.
#[derive(Default)]
struct Seen {
    holds: usize,
    lost_messages: u64,
    lost_holds: u64,
    failed: u64,
}

struct World {
    clock: Arc<dyn Clock>,
    stores: Vec<Arc<MemoryStore>>,
    /// By client and node.
    nets: Vec<Vec<Arc<Net>>>,
}

impl World {
    /// Nodes whose counters start apart, as after some history.
    async fn new(nodes: usize, rng: &mut Rng) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::default());
        let stores: Vec<_> = (0..nodes).map(|_| MemoryStore::new(Arc::clone(&clock))).collect();
        for store in &stores {
            let backend: Arc<dyn Backend> = Arc::new(MemoryBackend::new(store));
            let locks = Locks::builder(backend).clock(Arc::clone(&clock)).build().unwrap();
            for _ in 0..rng.below(4) {
                locks.mutex("sim").unwrap().acquire().await.unwrap().release().await.unwrap();
            }
        }
        let nets = (0..CLIENTS).map(|_| stores.iter().map(|_| Net::new(rng.bits())).collect()).collect();
        Self { clock, stores, nets }
    }

    fn client(&self, client: u32) -> Locks {
        let nets = &self.nets[client as usize];
        let members = self.stores.iter().zip(nets).enumerate().map(|(i, (store, net))| {
            let node = Node::new(Arc::new(MemoryBackend::new(store)), net, format!("node-{i}"));
            Arc::new(node) as Arc<dyn Backend>
        });
        let quorum = Quorum::with_member_timeout(members.collect(), MEMBER_TIMEOUT).unwrap();
        let mut settings = Settings::default();
        (settings.ttl, settings.waiter_lease) = (TTL, TTL);
        Locks::builder(Arc::new(quorum)).clock(Arc::clone(&self.clock)).settings(settings).build().unwrap()
    }

    fn every(&self) -> impl Iterator<Item = &Arc<Net>> {
        self.nets.iter().flatten()
    }
}

fn nanos(time: Timestamp) -> u64 {
    u64::try_from(time.since_origin().as_nanos()).unwrap()
}

async fn client(world: Arc<World>, who: u32, mut rng: Rng) -> (Vec<KnownHold>, u64, u64) {
    let (locks, clock) = (world.client(who), &world.clock);
    let (mut holds, mut lost, mut failed) = (Vec::new(), 0, 0);
    for _ in 0..4 {
        let lock = match rng.below(3) {
            0 => locks.rwlock("sim").unwrap().read(),
            _ => locks.mutex("sim").unwrap(),
        };
        let asked = clock.now();
        let guard = match lock.acquire_timeout(TTL * 4).await {
            Ok(Some(guard)) => guard,
            Ok(None) => continue,
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error}");
                failed += 1;
                tokio::time::sleep(rng.time(TTL)).await;
                continue;
            }
        };
        let (from, token) = (clock.now(), guard.token());
        let mut deadline = guard.deadline();
        let mode = lock.mode();
        let longest = if rng.below(4) == 0 { TTL * 4 } else { TTL / 8 };
        tokio::time::sleep(rng.time(longest)).await;
        deadline = deadline.max(guard.deadline());
        let until = clock.now().min(deadline).max(from);
        match guard.release().await {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Lost => lost += 1,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        if let Ok(token) = token {
            let (asked, from, until) = (nanos(asked), nanos(from), nanos(until));
            holds.push(KnownHold { lock: 0, client: who, mode, token: token.get(), asked, from, until });
        }
    }
    (holds, lost, failed)
}

/// Breaks things until it is dropped.
async fn nemesis(world: Arc<World>, mut rng: Rng) {
    loop {
        tokio::time::sleep(rng.time(TTL)).await;
        match rng.below(3) {
            // One node is gone for everybody.
            0 => {
                let node = rng.index(world.stores.len());
                world.nets.iter().for_each(|nets| nets[node].set(|weather| weather.down = true));
                tokio::time::sleep(rng.time(TTL * 2)).await;
                world.nets.iter().for_each(|nets| nets[node].set(|weather| weather.down = false));
            }
            // One client is cut off from a few nodes, perhaps a majority.
            1 => {
                let nets = &world.nets[rng.index(world.nets.len())];
                let cut: Vec<_> = nets.iter().filter(|_| rng.below(2) == 0).collect();
                cut.iter().for_each(|net| net.set(|weather| weather.down = true));
                // Long enough that whoever holds on to a minority meets another holder.
                tokio::time::sleep(rng.time(TTL * 4)).await;
                cut.iter().for_each(|net| net.set(|weather| weather.down = false));
            }
            // Everything takes long.
            _ => {
                world.every().for_each(|net| net.set(|weather| weather.longest_delay = MEMBER_TIMEOUT * 2));
                tokio::time::sleep(rng.time(TTL)).await;
                world.every().for_each(|net| net.set(|weather| weather.longest_delay = MEMBER_TIMEOUT / 4));
            }
        }
    }
}

async fn simulate(seed: u64) -> Seen {
    let mut rng = Rng::new(seed);
    let nodes = if rng.below(2) == 0 { 3 } else { 5 };
    let world = Arc::new(World::new(nodes, &mut rng).await);
    let loss = rng.below(8);
    for net in world.every() {
        net.set(|weather| {
            weather.longest_delay = MEMBER_TIMEOUT / 4;
            weather.loss = loss;
            weather.repeats = 5;
            weather.patience = MEMBER_TIMEOUT * 3;
        });
    }
    let trouble = tokio::spawn(nemesis(Arc::clone(&world), rng.fork()));
    let tasks: Vec<_> =
        (0..CLIENTS).map(|who| tokio::spawn(client(Arc::clone(&world), who, rng.fork()))).collect();
    let (mut holds, mut seen) = (Vec::new(), Seen::default());
    for task in tasks {
        let (some, lost, failed) = task.await.unwrap();
        holds.extend(some);
        seen.lost_holds += lost;
        seen.failed += failed;
    }
    trouble.abort();
    // Readers that hold together may share a token; everything else is unique.
    let mut readers = std::collections::HashSet::new();
    let unique: Vec<_> = (holds.iter().copied())
        .filter(|hold| hold.mode == Mode::Exclusive || readers.insert(hold.token))
        .collect();
    if let Some(violation) = history::exclusion(&holds).or_else(|| history::check(&unique)) {
        panic!("seed {seed}: {violation}");
    }
    // Healed: the lock can be had, and one lease later nothing is left.
    world.every().for_each(|net| net.set(|weather| *weather = Default::default()));
    let locks = world.client(0);
    let guard = locks.mutex("sim").unwrap().acquire_timeout(TTL * 4).await.unwrap();
    guard.unwrap_or_else(|| panic!("seed {seed}: stuck")).release().await.unwrap();
    tokio::time::sleep(TTL * 5).await;
    let left: Vec<_> = world.stores.iter().map(|store| store.names()).collect();
    assert!(left.iter().all(|names| *names == 0), "seed {seed}: left on the nodes: {left:?}");
    seen.holds = holds.len();
    seen.lost_messages = world.every().map(|net| net.lost()).sum();
    seen
}

/// The first client holds and loses the way to a majority; the second gets the lock, and by then the first must know.
async fn lose_the_majority(seed: u64) {
    let mut rng = Rng::new(seed);
    let nodes = if rng.below(2) == 0 { 3 } else { 5 };
    let world = World::new(nodes, &mut rng).await;
    for net in world.every() {
        net.set(|weather| {
            weather.longest_delay = MEMBER_TIMEOUT / 4;
            weather.patience = rng.time(MEMBER_TIMEOUT * 3);
        });
    }
    let (first, second) = (world.client(0), world.client(1));
    let held = first.mutex("sim").unwrap().acquire_timeout(TTL * 4).await.unwrap();
    let held = held.unwrap_or_else(|| panic!("seed {seed}: nobody else asks"));
    // Perhaps after a renewal or two.
    tokio::time::sleep(rng.time(TTL * 2)).await;
    assert!(held.is_held(), "seed {seed}: lost without a fault");
    let mut nets: Vec<_> = world.nets[0].iter().collect();
    for _ in 0..nodes / 2 {
        nets.swap_remove(rng.index(nets.len()));
    }
    nets.iter().for_each(|net| net.set(|weather| weather.down = true));
    let next = second.mutex("sim").unwrap().acquire_timeout(TTL * 8).await.unwrap();
    assert!(next.is_some(), "seed {seed}: a minority keeps the lock");
    assert!(!held.is_held(), "seed {seed}: two hold, one of them on {} of {nodes} members", nodes / 2);
    drop(held);
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// One world, on time that passes only while everybody waits.
fn run<T>(world: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(world)
}

#[test]
fn a_holder_without_its_majority_knows() {
    let first = number("ONELOCK_SEED", 1);
    for seed in first..first + 100 * number("ONELOCK_VOLUME", 1) {
        run(lose_the_majority(seed));
    }
}

/// `ONELOCK_VOLUME` multiplies the number of seeds, `ONELOCK_SEED` is the first.
#[test]
fn thousands_of_seeds() {
    let (first, count) = (number("ONELOCK_SEED", 1), 300 * number("ONELOCK_VOLUME", 1));
    let began = std::time::Instant::now();
    let (next, all) = (AtomicU64::new(first), Mutex::new(Seen::default()));
    let worker = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count {
                return;
            }
            let seen = run(simulate(seed));
            let mut all = all.lock().unwrap();
            all.holds += seen.holds;
            all.lost_messages += seen.lost_messages;
            all.lost_holds += seen.lost_holds;
            all.failed += seen.failed;
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        for worker in workers {
            // Said again here, where the test's output is kept: it names the seed.
            if let Err(panic) = worker.join() {
                panic!("{}", panic.downcast_ref::<String>().map_or("a run panicked", String::as_str));
            }
        }
    });
    let all = all.into_inner().unwrap();
    println!(
        "{count} seeds from {first} in {:.1?}: {} holds, {} lost messages, {} lost holds, {} failed attempts",
        began.elapsed(),
        all.holds,
        all.lost_messages,
        all.lost_holds,
        all.failed
    );
    assert!(all.holds as u64 > count * 3, "too few holds: the runs prove little");
    assert!(all.lost_messages > count && all.lost_holds > count / 100, "the faults did nothing");
}
