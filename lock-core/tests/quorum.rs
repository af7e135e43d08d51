//! Quorums on paused time: who looks after their gates, and which members have a vote.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::driver::{Context, opening};
use onelock_core::quorum::{Gate, GateView};
use onelock_core::toolkit::{Layer, Layered};
use onelock_core::{
    Backend, Capabilities, Clock, Driver, Error, ErrorKind, HolderId, Info, LockName, Locks, MemoryBackend,
    MemoryStore, Mode, Quorum, Request, Result, Settings, StoreUrl, TokioClock,
};

const QUARANTINE: Duration = Duration::from_secs(60);

/// A gate; a flaky one does not answer every second look.
#[derive(Debug, Default)]
struct Switch {
    flaky: bool,
    looks: AtomicU32,
    open: AtomicBool,
}

#[async_trait]
impl Gate for Switch {
    async fn look(&self) -> Result<GateView> {
        if self.looks.fetch_add(1, Ordering::Relaxed) % 2 == 1 && self.flaky {
            return Err(Error::new(ErrorKind::Unavailable, "no answer"));
        }
        Ok(GateView { incarnation: "1".into(), open: self.open.load(Ordering::Relaxed), highest: 7 })
    }

    async fn open(&self, _: &str, _: i64) -> Result<bool> {
        self.open.store(true, Ordering::Relaxed);
        Ok(true)
    }
}

/// A quorum of memory stores behind three open gates.
fn gated(stores: &str, flaky: bool) -> (Quorum, Vec<Arc<Switch>>) {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let open = || Switch { flaky, looks: AtomicU32::new(0), open: AtomicBool::new(true) };
    let gates: Vec<_> = (0..3).map(|_| Arc::new(open())).collect();
    let members = gates.iter().enumerate().map(|(i, gate)| {
        let store = MemoryStore::named(&format!("{stores}-{i}"), Arc::clone(&clock)).unwrap();
        (Arc::new(MemoryBackend::new(&store)) as Arc<dyn Backend>, Some(Arc::clone(gate) as Arc<dyn Gate>))
    });
    (Quorum::with_gates(members.collect(), Quorum::MEMBER_TIMEOUT, QUARANTINE).unwrap(), gates)
}

/// Shuts a gate, as a restart does, and waits until it is open again.
async fn repaired(gate: &Switch) {
    gate.open.store(false, Ordering::Relaxed);
    let shut = tokio::time::Instant::now();
    while !gate.open.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(shut.elapsed() < QUARANTINE * 3, "the gate is still shut after {:?}", shut.elapsed());
    }
    assert!(shut.elapsed() >= QUARANTINE, "opened too early");
}

#[tokio::test(start_paused = true)]
async fn a_look_that_fails_does_not_begin_the_quarantine_anew() {
    let (_quorum, gates) = gated("flaky", true);
    repaired(&gates[0]).await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_is_found_though_nobody_asks_for_a_lock() {
    let (_quorum, gates) = gated("idle", false);
    tokio::time::sleep(QUARANTINE * 10).await;
    let looks = gates[0].looks.load(Ordering::Relaxed);
    assert!(looks <= 50, "{looks} looks at an open gate in ten times the quarantine");
    repaired(&gates[0]).await;
}

/// What looks after the gates ends with the quorum, however long it would sleep.
#[tokio::test(start_paused = true)]
async fn nothing_looks_after_the_gates_of_a_quorum_that_is_gone() {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let (closed, _) = gated("closed", false);
    let (dropped, _) = gated("dropped", false);
    // Each has looked, and sleeps.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(tasks(), before + 6);
    closed.close().await.unwrap();
    drop(dropped);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(tasks(), before, "tasks that are left");
}

#[tokio::test(start_paused = true)]
async fn no_extension_makes_an_entry_outlive_the_quarantine() {
    let (quorum, _) = gated("extended", false);
    let longest = quorum.capabilities().max_lease;
    let locks = Locks::builder(Arc::new(quorum)).clock(Arc::new(TokioClock::new())).build().unwrap();
    let lock = locks.mutex("n").unwrap().ttl(longest / 3).unwrap().lock_delay(longest / 3).unwrap();
    let guard = lock.acquire().await.unwrap();
    guard.extend(longest / 2).await.unwrap();
    let refused = guard.extend(longest).await;
    let there = locks.inspect("n").await.unwrap().holders[0].expires_in.unwrap();
    assert!(there <= longest, "the members keep it for {there:?}");
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidLease);
    assert!(guard.is_held());
}

/// A memory store under another address: `other://NAME` is `memory://NAME`, and `late://NAME` cannot be reached until
/// [`LATE_IS_THERE`], `gone://NAME` never. Of the store named `coarse` entries end early.
#[derive(Debug)]
struct Other(MemoryBackend, StoreUrl);

static LATE_IS_THERE: AtomicBool = AtomicBool::new(false);

const OTHER: Driver =
    Driver::new("other", &["other", "late", "gone"], |url, context| opening(open(url, context.clock)))
        .capabilities(onelock_core::memory::DRIVER.capabilities);

async fn open(url: StoreUrl, clock: Arc<dyn Clock>) -> Result<Layered<Other>> {
    if url.scheme == "gone" || url.scheme == "late" && !LATE_IS_THERE.load(Ordering::Relaxed) {
        return Err(Error::new(ErrorKind::Unavailable, "not there yet"));
    }
    let store = MemoryStore::named(url.single_host()?.0, clock)?;
    Ok(Layered(Other(MemoryBackend::new(&store), url)))
}

impl Layer for Other {
    fn inner(&self) -> &dyn Backend {
        &self.0
    }
    fn info(&self) -> Info {
        Info::new(self.1.scheme.clone(), self.1.address())
    }
    fn capabilities(&self) -> Capabilities {
        let mut caps = self.0.capabilities();
        if self.1.address().ends_with("coarse") {
            caps.granularity = Duration::from_secs(1);
        }
        caps
    }
}

async fn quorum(members: &str) -> Result<Quorum> {
    let url = format!("quorum://?members={members}");
    onelock_core::quorum::open(
        url.parse()?,
        &[onelock_core::memory::DRIVER, OTHER],
        &[],
        Context::new(Arc::new(TokioClock::new())),
    )
    .await
}

#[tokio::test(start_paused = true)]
async fn one_store_under_two_addresses_is_refused() {
    for members in ["memory://s1|other://s1|memory://s2", "memory://s2|memory://s1|memory://s3|other://s1"] {
        let error = quorum(members).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        let text = error.to_string();
        assert!(text.contains("memory://s1") && text.contains("other://s1"), "{text}");
    }
    let locks = Locks::builder(Arc::new(quorum("memory://s1|other://s2|memory://s3").await.unwrap()))
        .clock(Arc::new(TokioClock::new()));
    assert!(locks.build().unwrap().mutex("n").unwrap().try_acquire().await.unwrap().is_some());
}

/// Members that are away do not hide what can never work: who waits for them would wait for ever.
#[tokio::test(start_paused = true)]
async fn what_cannot_work_is_said_though_no_member_is_there() {
    for (members, wanted) in [
        ("gone://x|gone://x", "twice"),
        ("gone://x|gone://y&member_timeout=0s", "answer"),
        ("gone://x|gone://y&quarantine=1ms", "quarantine"),
    ] {
        let error = quorum(members).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains(wanted), "{error}");
    }
}

/// Both addresses are compared at the same moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_addresses_of_one_store_that_come_at_once_one_is_refused() {
    for round in 0..3000 {
        let opened = quorum("memory://at-once|other://at-once").await;
        assert!(opened.is_err(), "round {round}: one store has two votes");
    }
}

/// What a quorum believes in after its late members came: whether each of them got an entry.
#[tokio::test(start_paused = true)]
async fn a_late_member_votes_only_with_what_was_counted_on() {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let members = "memory://l1|memory://l2|memory://l3|late://coarse|late://fine";
    let quorum = quorum(members).await.unwrap();
    assert_eq!(quorum.capabilities().granularity, Duration::ZERO, "what the deadlines leave room for");
    let (coarse, fine) = (
        MemoryStore::named("coarse", Arc::clone(&clock)).unwrap(),
        MemoryStore::named("fine", Arc::clone(&clock)).unwrap(),
    );
    let locks = Locks::builder(Arc::new(quorum)).clock(clock).settings(Settings::default()).build().unwrap();
    LATE_IS_THERE.store(true, Ordering::Relaxed);
    // It is opened by the verbs, at most once a second, and joins what is held with a renewal.
    let guard = locks.mutex("n").unwrap().acquire().await.unwrap();
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(coarse.names(), 0, "a member whose entries end early has a vote");
    }
    assert_eq!(fine.names(), 1, "and one that is as expected has none");
    drop(guard);
}

/// A member that serves nothing while it is stopped, and then what has waited, in any order and after a random while.
#[derive(Debug)]
struct Stopped(MemoryBackend, Arc<tokio::sync::watch::Sender<bool>>, u64);

impl Layer for Stopped {
    fn inner(&self) -> &dyn Backend {
        &self.0
    }

    fn info(&self) -> Info {
        Info::new("memory", format!("memory {}", self.2))
    }

    async fn pass<T: Send>(
        &self,
        _: &'static str,
        call: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        _ = self.1.subscribe().wait_for(|stopped| !stopped).await;
        tokio::time::sleep(Duration::from_micros(getrandom::u64().unwrap() % 4_000)).await;
        call.await
    }
}

/// Every waiter of a crowd is served soon after a majority was away, though what they had asked for comes late.
#[tokio::test(start_paused = true)]
async fn a_crowd_is_served_after_an_outage() {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let stores: Vec<_> = (0..3)
        .map(|_| (MemoryStore::new(Arc::clone(&clock)), Arc::new(tokio::sync::watch::Sender::new(false))))
        .collect();
    let client = || {
        let member = |(i, (store, stop)): (u64, &(Arc<MemoryStore>, _))| {
            Arc::new(Layered(Stopped(MemoryBackend::new(store), Arc::clone(stop), i))) as Arc<dyn Backend>
        };
        let quorum = Quorum::new((0..).zip(&stores).map(member).collect()).unwrap();
        let mut settings = Settings::default();
        settings.ttl = Duration::from_secs(60);
        Locks::builder(Arc::new(quorum)).clock(Arc::clone(&clock)).settings(settings).build().unwrap()
    };
    let holder = client();
    let held = holder.mutex("n").unwrap().acquire().await.unwrap();
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..24 {
        let locks = client();
        waiters.spawn(async move {
            let guard = locks.mutex("n").unwrap().acquire().await;
            if let Ok(guard) = &guard {
                assert!(guard.is_held());
            }
            (guard.map(drop), locks)
        });
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let stop = |on: bool| stores[..2].iter().for_each(|(_, stop)| _ = stop.send_replace(on));
    stop(true);
    let releasing = tokio::spawn(held.release());
    tokio::time::sleep(Duration::from_secs(6)).await;
    stop(false);
    let start = tokio::time::Instant::now();
    releasing.await.unwrap().unwrap();
    let mut clients = Vec::new();
    while let Some(waiter) = waiters.join_next().await {
        let (got, locks) = waiter.unwrap();
        got.unwrap_or_else(|error| panic!("after {:?}: {error}", start.elapsed()));
        clients.push((start.elapsed(), locks));
    }
    let times: Vec<_> = clients.iter().map(|(time, _)| *time).collect();
    assert!(times[0] < Duration::from_secs(2), "nobody holds: {times:?}");
    assert!(times[23] < Duration::from_secs(15), "{times:?}");
}

/// A member that refuses every verb, as one whose password is wrong.
#[derive(Debug)]
struct Refuses(MemoryBackend);

impl Layer for Refuses {
    fn inner(&self) -> &dyn Backend {
        &self.0
    }

    fn info(&self) -> Info {
        Info::new("memory", "memory that refuses")
    }

    async fn pass<T: Send>(&self, _: &'static str, _: impl Future<Output = Result<T>> + Send) -> Result<T> {
        Err(Error::new(ErrorKind::Denied, "on purpose"))
    }
}

/// One of three members refuses all the time, which no retry helps, and the quorum does without it. When another one is away
/// for a moment, too, a retry helps.
#[tokio::test(start_paused = true)]
async fn a_member_that_refuses_ends_no_waiter_while_another_is_away() {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let store = || MemoryBackend::new(&MemoryStore::new(Arc::clone(&clock)));
    let stop = Arc::new(tokio::sync::watch::Sender::new(false));
    let members: Vec<Arc<dyn Backend>> = vec![
        Arc::new(Layered(Refuses(store()))),
        Arc::new(Layered(Stopped(store(), Arc::clone(&stop), 1))),
        Arc::new(Layered(Stopped(store(), Arc::default(), 2))),
    ];
    let locks = Locks::builder(Arc::new(Quorum::new(members).unwrap())).clock(clock).build().unwrap();
    let lock = locks.mutex("n").unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
    stop.send_replace(true);
    let back = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        stop.send_replace(false);
    };
    let (guard, ()) = tokio::join!(lock.acquire(), back);
    assert!(guard.unwrap().is_held());
}

/// A member that raises nothing.
#[derive(Debug)]
struct RaisesNothing(MemoryBackend, u64);

impl Layer for RaisesNothing {
    fn inner(&self) -> &dyn Backend {
        &self.0
    }

    fn info(&self) -> Info {
        Info::new("memory", format!("memory {}", self.1))
    }

    async fn pass<T: Send>(
        &self,
        verb: &'static str,
        call: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        if verb == "raise" { Err(Error::new(ErrorKind::Unavailable, "it is gone")) } else { call.await }
    }
}

/// Nobody is ahead: a member was lost between its grant and its raise.
#[tokio::test(start_paused = true)]
async fn a_member_that_is_lost_before_it_raises_is_not_somebody_ahead() {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let ahead = MemoryBackend::new(&MemoryStore::new(Arc::clone(&clock)));
    let ask = || {
        let (name, holder) = (LockName::new("n").unwrap(), HolderId::random().unwrap());
        Request::new(name, holder, Mode::Exclusive, Duration::from_secs(30)).queue(false)
    };
    let before = ask();
    ahead.acquire(&before).await.unwrap();
    ahead.release(&before.ticket()).await.unwrap();
    let behind = |n| {
        let store = MemoryBackend::new(&MemoryStore::new(Arc::clone(&clock)));
        Arc::new(Layered(RaisesNothing(store, n))) as Arc<dyn Backend>
    };
    let quorum = Quorum::new(vec![Arc::new(ahead), behind(1), behind(2)]).unwrap();
    let answer = quorum.acquire(&ask()).await;
    let error = answer.map(|standing| format!("{standing:?}")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("it is gone"), "{error}");
    let locks = Locks::builder(Arc::new(quorum)).clock(clock).build().unwrap();
    let tried = locks.mutex("n").unwrap().try_acquire().await;
    assert_eq!(tried.unwrap_err().kind(), ErrorKind::Unavailable);
}
