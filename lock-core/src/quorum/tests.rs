use std::sync::atomic::AtomicBool;

use super::*;
use crate::clock::TokioClock;
use crate::holder::HolderId;
use crate::memory::{MemoryBackend, MemoryStore};
use crate::mode::Mode;
use crate::toolkit::{Layer, Layered};

fn memory() -> Arc<dyn Backend> {
    Arc::new(MemoryBackend::new(&MemoryStore::new(Arc::new(TokioClock::default()))))
}

#[tokio::test]
async fn what_cannot_be_a_quorum_is_refused() {
    let kind = |members, time| Quorum::with_member_timeout(members, time).unwrap_err().kind();
    let second = Duration::from_secs(1);
    assert_eq!(kind(vec![], second), ErrorKind::InvalidConfig);
    assert_eq!(kind(vec![memory()], second), ErrorKind::InvalidConfig);
    assert_eq!(kind((0..16).map(|_| memory()).collect(), second), ErrorKind::InvalidConfig);
    let twice = Quorum::new(vec![memory(), memory()]).unwrap_err().to_string();
    assert!(twice.contains("is a member twice"), "{twice}");
    let two = || vec![memory(), Renamed::new("another") as Arc<dyn Backend>];
    assert_eq!(kind(two(), Duration::ZERO), ErrorKind::InvalidConfig);
    assert_eq!(kind(two(), Duration::from_secs(61)), ErrorKind::InvalidConfig);
    for quarantine in [Duration::ZERO, Duration::MAX] {
        let members = two().into_iter().map(|member| (member, None)).collect();
        let refused = Quorum::with_gates(members, second, quarantine).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
    }
}

#[test]
fn it_needs_a_runtime() {
    let store: Arc<dyn Backend> = memory();
    let named: Arc<dyn Backend> = Renamed::new("another");
    assert_eq!(Quorum::new(vec![store, named]).unwrap_err().kind(), ErrorKind::Misuse);
}

/// A memory store under another address, which may answer to acquires a second late, release a second late, or answer renewals late.
#[derive(Debug)]
struct Renamed {
    store: Arc<dyn Backend>,
    address: &'static str,
    late: AtomicBool,
    releases_late: AtomicBool,
    answers_late: AtomicBool,
    /// Every call fails.
    away: AtomicBool,
}

impl Renamed {
    fn new(address: &'static str) -> Arc<Layered<Self>> {
        let [late, releases_late, answers_late, away] = [(); 4].map(|()| AtomicBool::new(false));
        Arc::new(Layered(Self { store: memory(), address, late, releases_late, answers_late, away }))
    }
}

impl Layer for Renamed {
    fn inner(&self) -> &dyn Backend {
        &*self.store
    }
    fn info(&self) -> Info {
        Info::new("memory", self.address)
    }
    fn capabilities(&self) -> Capabilities {
        let caps = self.store.capabilities().raise(false);
        caps.min_lease(Duration::from_millis(1500)).lease_step(Duration::from_secs(1))
    }
    async fn pass<T: Send>(
        &self,
        verb: &'static str,
        call: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        if verb == "acquire" && set(&self.late) || verb == "release" && set(&self.releases_late) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        if set(&self.away) {
            return Err(Error::new(ErrorKind::Unavailable, "away"));
        }
        let answer = call.await;
        if verb == "renew" && set(&self.answers_late) {
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        answer
    }
}

#[tokio::test]
async fn a_member_that_cannot_raise_makes_it_unfenced_and_permits_are_refused() {
    let quorum = Arc::new(Quorum::new(vec![memory(), Renamed::new("another")]).unwrap());
    let caps = quorum.capabilities();
    assert!(!caps.fencing && !caps.raise && !caps.permits && caps.shared);
    assert_eq!((caps.min_lease, caps.lease_step), (Duration::from_secs(2), Duration::from_secs(1)));
    let locks = crate::Locks::builder(quorum).clock(Arc::new(TokioClock::default())).build().unwrap();
    let refused = locks.semaphore("n", 3).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    let guard = locks.mutex("n").unwrap().acquire().await.unwrap();
    let refused = guard.token().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "a number that protects nothing: {refused}");
}

#[tokio::test(start_paused = true)]
async fn asked_again_it_keeps_its_number_and_its_majority() {
    let (members, quorum) = three();
    // The counter of one member is ahead.
    for holder in 1..=3 {
        members[2].0.store.acquire(&asks(holder)).await.unwrap();
        members[2].0.store.release(&asks(holder).ticket()).await.unwrap();
    }
    members[2].0.late.store(true, Ordering::Relaxed);
    let Standing::Held(first) = quorum.acquire(&asks(9)).await.unwrap() else { panic!("not held") };
    // Another majority is the first to answer now.
    members[2].0.late.store(false, Ordering::Relaxed);
    members[0].0.late.store(true, Ordering::Relaxed);
    let Standing::Held(again) = quorum.acquire(&asks(9)).await.unwrap() else { panic!("not held") };
    assert_eq!(again.token, first.token);
    // What comes late is given back, and takes nothing from what is held.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let held = held_on(&members).await;
    assert!(held >= 2, "on {held} members");
}

#[tokio::test(start_paused = true)]
async fn what_a_failed_attempt_gives_back_late_takes_nothing_from_the_next_one() {
    let (members, quorum) = three();
    for member in &members[..2] {
        member.0.store.acquire(&asks(1)).await.unwrap();
    }
    members[2].0.releases_late.store(true, Ordering::Relaxed);
    assert!(matches!(quorum.acquire(&asks(9)).await.unwrap(), Standing::Busy(_)));
    // Free on one member, while the last one is still about to give back what the attempt had there.
    members[1].0.store.release(&asks(1).ticket()).await.unwrap();
    while !matches!(quorum.acquire(&asks(9)).await.unwrap(), Standing::Held(_)) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    // One of them is of the holder before.
    let held = held_on(&members).await;
    assert_eq!(held, 3, "on {held} members");
}

/// All of the first hold is evicted, and two members say so late: the owner has asked again since, and holds on all.
#[tokio::test(start_paused = true)]
async fn a_late_answer_about_one_hold_takes_nothing_from_the_next_one() {
    let (members, quorum) = three();
    let Standing::Held(first) = quorum.acquire(&asks(9)).await.unwrap() else { panic!("not held") };
    for member in &members {
        for entry in member.0.store.inspect(&asks(9).name).await.unwrap().holders {
            member.0.store.evict(&asks(9).name, entry.token).await.unwrap();
        }
    }
    members[1..].iter().for_each(|member| member.0.answers_late.store(true, Ordering::Relaxed));
    let due = |token| Renewal::new(asks(9).ticket().token(token), asks(9).lease, asks(9).lease);
    quorum.renew(&[due(first.token)]).await.remove(0).unwrap_err();
    members[1..].iter().for_each(|member| member.0.answers_late.store(false, Ordering::Relaxed));
    let Standing::Held(second) = quorum.acquire(&asks(9)).await.unwrap() else { panic!("not held") };
    assert_ne!(first.token, second.token);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(held_on(&members).await >= 2);
    let renewed = quorum.renew(&[due(second.token)]).await.remove(0).unwrap();
    assert!(matches!(renewed, Renewed::Held(_)), "{renewed:?} while all members have it");
    assert_eq!(quorum.release(&asks(9).ticket().token(second.token)).await.unwrap(), Release::Released);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(held_on(&members).await, 0, "left after the release");
}

/// A request that was sent twice, and comes late, makes another entry for its holder. Another one may have held in between.
#[tokio::test(start_paused = true)]
async fn an_entry_that_comes_back_under_another_number_has_no_vote() {
    let (members, quorum) = three();
    let Standing::Held(first) = quorum.acquire(&asks(9)).await.unwrap() else { panic!("not held") };
    for Renamed { store, .. } in members[..2].iter().map(|member| &member.0) {
        let own = store.inspect(&asks(9).name).await.unwrap().holders[0].token;
        store.evict(&asks(9).name, own).await.unwrap();
        assert!(matches!(store.acquire(&asks(1)).await.unwrap(), Standing::Held(_)));
        store.release(&asks(1).ticket()).await.unwrap();
        store.acquire(&asks(9)).await.unwrap();
    }
    let due = Renewal::new(asks(9).ticket().token(first.token), asks(9).lease, asks(9).lease);
    let renewed = quorum.renew(&[due]).await.remove(0).unwrap();
    assert_eq!(renewed, Renewed::NotHeld, "another one has held a majority since");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(held_on(&members).await, 0, "left in the way of the next one");
}

fn three() -> ([Arc<Layered<Renamed>>; 3], Quorum) {
    let members = ["a", "b", "c"].map(Renamed::new);
    let all = members.iter().map(|member| Arc::clone(member) as Arc<dyn Backend>).collect();
    (members, Quorum::new(all).unwrap())
}

fn asks(holder: u128) -> Request {
    let (name, holder) = (LockName::new("n").unwrap(), HolderId::from_u128(holder));
    Request::new(name, holder, Mode::Exclusive, Duration::from_secs(30))
}

async fn held_on(members: &[Arc<Layered<Renamed>>]) -> usize {
    let mut held = 0;
    for member in members {
        held += member.0.store.inspect(&asks(9).name).await.unwrap().holders.len();
    }
    held
}

#[tokio::test(start_paused = true)]
async fn holds_that_ended_and_were_never_released_are_forgotten() {
    let members = (["a", "b", "c"]).map(|name| Renamed::new(name) as Arc<dyn Backend>);
    let quorum = Quorum::new(members.to_vec()).unwrap();
    for n in 0..500 {
        let name = LockName::new(format!("n{n}")).unwrap();
        let request =
            Request::new(name, HolderId::random().unwrap(), Mode::Exclusive, Duration::from_secs(2));
        assert!(matches!(quorum.acquire(&request).await.unwrap(), Standing::Held(_)));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let kept = quorum.store().shared.holds.lock().len();
    assert!(kept < 50, "{kept}");
}

/// Its lease was extended to an hour, and is asked for half a minute since: the members keep the hour.
#[tokio::test(start_paused = true)]
async fn a_hold_lasts_for_the_longest_lease_that_it_was_given() {
    let (members, quorum) = three();
    let Standing::Held(first) = quorum.acquire(&asks(9)).await.unwrap() else { panic!("not held") };
    let renew = async |lease| {
        let due = Renewal::new(asks(9).ticket().token(first.token), lease, lease);
        quorum.renew(&[due]).await.remove(0).unwrap()
    };
    for lease in [Duration::from_secs(3600), asks(9).lease] {
        assert!(matches!(renew(lease).await, Renewed::Held(_)));
    }
    tokio::time::sleep(Duration::from_secs(600)).await;
    // Others come, so that what has ended is forgotten.
    for n in 100..200 {
        let other = Request { name: LockName::new(format!("n{n}")).unwrap(), ..asks(n) };
        assert!(matches!(quorum.acquire(&other).await.unwrap(), Standing::Held(_)));
    }
    let (renewed, on) = (renew(asks(9).lease).await, held_on(&members).await);
    assert!(matches!(renewed, Renewed::Held(_)), "{renewed:?} while {on} members have it");
    members[0].0.away.store(true, Ordering::Relaxed);
    assert_eq!(quorum.release(&asks(9).ticket().token(first.token)).await.unwrap(), Release::Released);
    tokio::time::sleep(Duration::from_secs(600)).await;
    members[0].0.away.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(held_on(&members).await, 0, "members that nobody gives it back on");
}

/// A minority gives it, and is away then for longer than the lease before.
#[tokio::test(start_paused = true)]
async fn an_extension_that_fails_is_given_back_for_as_long_as_it_may_last() {
    let (members, quorum) = three();
    let Standing::Held(held) = quorum.acquire(&asks(9)).await.unwrap() else { panic!("not held") };
    for member in &members[..2] {
        let line = member.0.store.inspect(&asks(9).name).await.unwrap();
        member.0.store.evict(&asks(9).name, line.holders[0].token).await.unwrap();
    }
    members[2].0.releases_late.store(true, Ordering::Relaxed);
    let hour = Duration::from_secs(3600);
    let due = Renewal::new(asks(9).ticket().token(held.token), hour, hour);
    assert_eq!(quorum.renew(&[due]).await.remove(0).unwrap(), Renewed::NotHeld);
    members[2].0.away.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(held_on(&members).await, 1, "it is blocked there");
    members[2].0.away.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(held_on(&members).await, 0, "members that nobody gives it back on");
}
