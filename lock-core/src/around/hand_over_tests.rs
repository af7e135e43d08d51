use tokio::sync::Semaphore;

use super::*;
use crate::backend::Backend;
use crate::client::settings::Settings;
use crate::clock::{Clock, TokioClock};
use crate::memory::{MemoryBackend, MemoryStore};
use crate::token::TokenEpoch;
use crate::toolkit::{Layer, Layered};

const SECOND: Duration = Duration::from_secs(1);

fn clients<const N: usize>() -> ([Locks; N], Arc<MemoryStore>) {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let store = MemoryStore::new(Arc::clone(&clock));
    let client = |_| {
        let backend = Arc::new(MemoryBackend::new(&store));
        Locks::builder(backend).clock(Arc::clone(&clock)).build().unwrap()
    };
    (std::array::from_fn(client), store)
}

async fn handed_over(locks: &Locks) -> HandOver {
    locks.mutex("a:b").unwrap().acquire().await.unwrap().hand_over().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_lock_goes_on_elsewhere_with_its_token_and_is_never_free() {
    let ([first, second, third], store) = clients();
    let guard = first.mutex("n").unwrap().acquire().await.unwrap();
    let token = guard.token().unwrap();
    let waiter = third.mutex("n").unwrap();
    let waiter = tokio::spawn(async move { waiter.acquire().await.unwrap() });
    tokio::time::sleep(SECOND * 20).await;
    let sent = serde_json::to_string(&guard.hand_over().await.unwrap()).unwrap();
    first.close(SECOND).await.unwrap();
    tokio::time::sleep(SECOND * 20).await;
    let resumed = second.resume(serde_json::from_str(&sent).unwrap()).await.unwrap();
    assert_eq!(resumed.token().unwrap(), token);
    tokio::time::sleep(SECOND * 120).await;
    assert!(resumed.is_held() && !waiter.is_finished());
    resumed.release().await.unwrap();
    assert!(waiter.await.unwrap().token().unwrap() > token);
    third.close(SECOND).await.unwrap();
    assert_eq!(store.names(), 0, "no claim is left");
}

#[tokio::test(start_paused = true)]
async fn one_of_many_who_resume_the_same_gets_it() {
    let ([first, second, third], _) = clients();
    let hand_over = handed_over(&first).await;
    let both = tokio::join!(second.resume(hand_over.clone()), third.resume(hand_over.clone()));
    let (guard, refused) = match both {
        (Ok(guard), Err(refused)) | (Err(refused), Ok(guard)) => (guard, refused),
        both => panic!("{both:?}"),
    };
    assert_eq!((refused.kind(), refused.verb()), (ErrorKind::Lost, Some("resume")));
    // Neither while it is held, nor later.
    assert_eq!(second.resume(hand_over.clone()).await.unwrap_err().loss(), Some(LossReason::NotHeld));
    assert!(guard.is_held());
    guard.release().await.unwrap();
    assert_eq!(third.resume(hand_over).await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn a_client_of_another_token_epoch_gives_the_lock_back_at_once() {
    let ([first, third], store) = clients();
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let backend = Arc::new(MemoryBackend::new(&store));
    let settings = Settings { token_epoch: TokenEpoch::new(2).unwrap(), ..Settings::default() };
    let second = Locks::builder(backend).clock(clock).settings(settings).build().unwrap();
    let hand_over = handed_over(&first).await;
    assert_eq!(second.resume(hand_over).await.unwrap_err().kind(), ErrorKind::Lost);
    let next = third.mutex("a:b").unwrap();
    let next = tokio::time::timeout(SECOND, next.acquire()).await;
    assert!(next.is_ok_and(|next| next.is_ok()), "before its lease ends");
    let of_epoch = second.mutex("of 2").unwrap().acquire().await.unwrap();
    let token = of_epoch.token().unwrap();
    let resumed = second.resume(of_epoch.hand_over().await.unwrap()).await.unwrap();
    assert_eq!(resumed.token().unwrap(), token, "of the same epoch it goes on");
}

#[tokio::test(start_paused = true)]
async fn what_is_expired_changed_or_of_elsewhere_is_refused() {
    let ([first, second], _) = clients();
    let ([elsewhere], _) = clients();
    let hand_over = handed_over(&first).await;
    assert_eq!(elsewhere.resume(hand_over.clone()).await.unwrap_err().kind(), ErrorKind::Lost);
    let text = String::from(hand_over.clone());
    for i in 0..text.len() {
        for change in [b'0', b'1', b':', b'x'] {
            let mut bytes = text.clone().into_bytes();
            if bytes[i] == change {
                continue;
            }
            bytes[i] = change;
            let changed = String::from_utf8(bytes).unwrap().parse::<HandOver>();
            assert_eq!(changed.unwrap_err().kind(), ErrorKind::Foreign, "byte {i}");
        }
        assert!(text[..i].parse::<HandOver>().is_err());
    }
    assert_eq!(text.parse::<HandOver>().unwrap(), hand_over);
    let hex = hand_over.ticket.holder.to_hex();
    assert!(!format!("{hand_over:?}").contains(&hex), "nothing printed opens the lock");
    tokio::time::sleep(SECOND * 31).await;
    assert_eq!(second.resume(hand_over).await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(second.mutex("a:b").unwrap().try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_cannot_go_gives_its_lock_back() {
    let ([first, second], _) = clients();
    let guard = first.mutex("n").unwrap().acquire().await.unwrap();
    let again = guard.reenter().unwrap();
    assert_eq!(guard.hand_over().await.unwrap_err().kind(), ErrorKind::Misuse);
    second.evict("n", again.token().unwrap()).await.unwrap();
    assert_eq!(again.hand_over().await.unwrap_err().kind(), ErrorKind::Lost);
    let guard = first.mutex("n").unwrap().auto_renew(false).acquire().await.unwrap();
    tokio::time::sleep(SECOND * 31).await;
    assert_eq!(guard.hand_over().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(second.mutex("n").unwrap().try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn nobody_enters_a_lock_that_is_being_handed_over() {
    let ([first, second], _) = clients();
    let owner = first.owner();
    let lock = first.mutex("n").unwrap().owner(&owner).unwrap();
    let guard = lock.acquire().await.unwrap();
    let (handed, entered) = tokio::join!(guard.hand_over(), lock.acquire_timeout(SECOND));
    assert!(entered.unwrap().is_none(), "the owner holds what is another's");
    let resumed = second.resume(handed.unwrap()).await.unwrap();
    let (next, released) = tokio::join!(lock.acquire_timeout(SECOND), resumed.release());
    released.unwrap();
    assert!(next.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn after_a_wait_the_lease_of_a_holder_is_handed_over() {
    let ([first, second], _) = clients();
    let lock = first.mutex("n").unwrap();
    let before = lock.acquire().await.unwrap();
    let (guard, released) = tokio::join!(lock.acquire(), before.release());
    released.unwrap();
    let guard = guard.unwrap();
    let (waiters, holders) = (guard.ttl(), SECOND * 30);
    assert!(waiters < holders, "{waiters:?}");
    let resumed = second.resume(guard.hand_over().await.unwrap()).await.unwrap();
    assert_eq!(resumed.ttl(), holders);
}

#[tokio::test(start_paused = true)]
async fn a_lock_with_a_least_time_is_not_handed_over() {
    let ([first, second], _) = clients();
    let lock = first.mutex("n").unwrap().at_least(SECOND * 50).unwrap();
    let refused = lock.acquire().await.unwrap().hand_over().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Misuse);
    assert!(second.mutex("n").unwrap().acquire_timeout(SECOND * 45).await.unwrap().is_none());
    assert!(second.mutex("n").unwrap().acquire_timeout(SECOND * 10).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_longer_than_a_client_may_ask_for_goes_on_through_it() {
    let ([first, third], store) = clients();
    let settings = Settings { max_ttl: SECOND * 20, ttl: SECOND * 20, ..Settings::default() };
    let builder = Locks::builder(Arc::new(MemoryBackend::new(&store))).clock(Arc::new(TokioClock::new()));
    let second = builder.settings(settings).build().unwrap();
    let resumed = second.resume(handed_over(&first).await).await.unwrap();
    let resumed = third.resume(resumed.hand_over().await.unwrap()).await.unwrap();
    assert_eq!(resumed.ttl(), SECOND * 30);
}

/// The memory store. A verb waits for its turn; without any it fails.
#[derive(Debug)]
struct InTurn(MemoryBackend, &'static str, Arc<Semaphore>);

impl Layer for InTurn {
    fn inner(&self) -> &dyn Backend {
        &self.0
    }

    async fn pass<T: Send>(&self, verb: &str, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if verb == self.1 {
            let turn = self.2.acquire().await;
            turn.map_err(|_| Error::new(ErrorKind::Unavailable, "on purpose"))?.forget();
        }
        call.await
    }
}

fn in_turn(store: &Arc<MemoryStore>, verb: &'static str) -> (Locks, Arc<Semaphore>) {
    let turns = Arc::new(Semaphore::new(0));
    let backend = Layered(InTurn(MemoryBackend::new(store), verb, Arc::clone(&turns)));
    let locks = Locks::builder(Arc::new(backend)).clock(Arc::new(TokioClock::new())).build().unwrap();
    (locks, turns)
}

#[tokio::test(start_paused = true)]
async fn a_close_waits_for_what_is_being_resumed_and_nobody_gets_it() {
    let ([first, third], store) = clients();
    let (second, turns) = in_turn(&store, "evict");
    let hand_over = handed_over(&first).await;
    let resumed = tokio::spawn({
        let second = second.clone();
        async move { second.resume(hand_over).await }
    });
    tokio::time::sleep(SECOND).await;
    let closing = tokio::spawn(async move { second.close(SECOND * 60).await });
    tokio::time::sleep(SECOND).await;
    assert!(!closing.is_finished(), "it is half way");
    turns.add_permits(1);
    assert_eq!(resumed.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    closing.await.unwrap().unwrap();
    let next = third.mutex("a:b").unwrap().acquire_timeout(SECOND).await.unwrap();
    assert!(next.is_some(), "it is given back");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_closed_uses_no_hand_over_up() {
    let ([first, second, third], _) = clients();
    let hand_over = handed_over(&first).await;
    // Its guard keeps the store open.
    let _kept = second.mutex("kept").unwrap().acquire().await.unwrap();
    second.close(SECOND).await.unwrap();
    assert_eq!(second.resume(hand_over.clone()).await.unwrap_err().kind(), ErrorKind::Closed);
    drop(third.resume(hand_over).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_lock_whose_first_renewal_fails_is_given_back() {
    let ([first, third], store) = clients();
    let (second, turns) = in_turn(&store, "renew");
    turns.close();
    let refused = second.resume(handed_over(&first).await).await.unwrap_err();
    assert_eq!((refused.kind(), refused.verb()), (ErrorKind::Unavailable, Some("resume")));
    let next = third.mutex("a:b").unwrap().acquire_timeout(SECOND).await.unwrap();
    assert!(next.is_some(), "before its lease ends");
}
