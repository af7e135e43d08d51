use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::clock::{Clock, TokioClock};
use crate::error::Error;
use crate::memory::{MemoryBackend, MemoryStore};

fn clients<const N: usize>() -> [Locks; N] {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let store = MemoryStore::new(Arc::clone(&clock));
    std::array::from_fn(|_| {
        Locks::builder(Arc::new(MemoryBackend::new(&store))).clock(Arc::clone(&clock)).build().unwrap()
    })
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn terms_do_not_overlap_and_every_candidate_leads() {
    let locks = clients::<3>();
    let (leading, terms) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(Vec::new())));
    let mut candidates = tokio::task::JoinSet::new();
    for (n, locks) in locks.into_iter().enumerate() {
        let (leading, terms) = (Arc::clone(&leading), Arc::clone(&terms));
        candidates.spawn(async move {
            let election = locks.election("e").unwrap().note(format!("n{n}")).unwrap();
            let mut left = 5;
            let work = |term: Term| {
                left -= 1;
                let (last, leading, terms) = (left == 0, Arc::clone(&leading), Arc::clone(&terms));
                async move {
                    assert_eq!(leading.fetch_add(1, Ordering::SeqCst), 0);
                    terms.lock().unwrap().push((n, term.token()?));
                    tokio::time::sleep(SECOND).await;
                    leading.fetch_sub(1, Ordering::SeqCst);
                    if last { Ok(()) } else { Err(Error::new(ErrorKind::Busy, "again")) }
                }
            };
            election.pause_after_failure(Duration::ZERO).run(work).await.unwrap();
        });
    }
    candidates.join_all().await;
    let terms = terms.lock().unwrap();
    assert_eq!(terms.len(), 15);
    assert!(terms.is_sorted_by_key(|(_, token)| *token), "{terms:?}");
    assert!(
        terms.windows(2).all(|pair| pair[0].0 != pair[1].0),
        "a failed leader stands at the end: {terms:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_term_ends_its_work_and_the_candidate_stands_again() {
    let [locks, other] = clients();
    let election = locks.election("e").unwrap().on_failure(|error| panic!("nothing has failed: {error}"));
    let mut terms = Vec::new();
    let done = election
        .run(|term| {
            terms.push(term.token().unwrap());
            let (first, other) = (terms.len() == 1, other.clone());
            async move {
                if first {
                    other.evict("e", term.token()?).await?;
                    std::future::pending::<()>().await;
                }
                Ok::<_, Error>(term.is_leader())
            }
        })
        .await;
    assert!(done.unwrap());
    assert!(terms.len() == 2 && terms[0] < terms[1], "{terms:?}");
}

#[tokio::test(start_paused = true)]
async fn a_candidate_that_is_evicted_from_the_line_stands_again() {
    let [locks, other] = clients();
    let held = other.mutex("e").unwrap().acquire().await.unwrap();
    let election = locks.election("e").unwrap();
    let candidate = tokio::spawn(async move { election.run(|_| async { Ok::<_, Error>(()) }).await });
    tokio::time::sleep(SECOND).await;
    let first = other.inspect("e").await.unwrap().waiters[0].token;
    other.evict("e", first).await.unwrap();
    tokio::time::sleep(SECOND * 2).await;
    assert!(other.inspect("e").await.unwrap().waiters[0].token > first);
    held.release().await.unwrap();
    candidate.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_steps_down_ends_its_work_first_and_stands_behind_the_others() {
    let [locks, other] = clients();
    let log = Arc::new(Mutex::new(Vec::new()));
    let (election, seen) = (locks.election("e").unwrap().step_down_notice(SECOND), Arc::clone(&log));
    let mut terms = 0;
    let first = tokio::spawn(async move {
        let run = election.run(|term| {
            terms += 1;
            let (first, log) = (terms == 1, Arc::clone(&seen));
            async move {
                log.lock().unwrap().push(if first { "leads" } else { "leads again" });
                if first {
                    let asked = term.clone();
                    tokio::spawn(async move {
                        tokio::time::sleep(SECOND).await;
                        asked.step_down().await;
                    });
                    term.ending().await;
                    tokio::time::sleep(SECOND / 2).await;
                    log.lock().unwrap().push("has ended");
                    std::future::pending::<()>().await;
                }
                Ok::<_, Error>(())
            }
        });
        run.await.unwrap();
    });
    tokio::time::sleep(SECOND / 2).await;
    let (election, seen) = (other.election("e").unwrap(), Arc::clone(&log));
    let second = tokio::spawn(async move {
        let run = election.run(|_| async {
            seen.lock().unwrap().push("the other leads");
            Ok::<_, Error>(())
        });
        run.await.unwrap();
    });
    first.await.unwrap();
    second.await.unwrap();
    assert_eq!(*log.lock().unwrap(), ["leads", "has ended", "the other leads", "leads again"]);
}

#[tokio::test(start_paused = true)]
async fn failures_are_told_and_a_panic_gives_the_lock_back() {
    let [locks, other] = clients();
    let seen_by = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&seen_by);
    let election =
        locks.election("e").unwrap().on_failure(move |error| seen.lock().unwrap().push(error.to_string()));
    let mut terms = 0;
    let work = |_| {
        terms += 1;
        async move { if terms < 3 { Err(format!("failure {terms}")) } else { Ok(terms) } }
    };
    assert_eq!(election.run(work).await.unwrap(), 3);
    assert_eq!(*seen_by.lock().unwrap(), ["failure 1", "failure 2"]);
    let panics = tokio::spawn(async move {
        election.run(|_| async { if true { panic!("on purpose") } else { Ok::<(), String>(()) } }).await
    });
    assert!(panics.await.unwrap_err().is_panic());
    let next = other.mutex("e").unwrap().acquire_timeout(SECOND).await.unwrap();
    assert!(next.is_some(), "the lock was given back");
    locks.close(SECOND).await.unwrap();
    let closed = locks.election("e").unwrap().run(|_| async { Ok::<(), String>(()) }).await;
    assert_eq!(closed.unwrap_err().kind(), ErrorKind::Closed);
}

/// As by work that does not await, and learns of its end too late.
#[tokio::test(start_paused = true)]
async fn a_pause_after_a_failure_keeps_no_lock_and_ends_with_its_client() {
    let [locks, other] = clients();
    let election = locks.election("e").unwrap().pause_after_failure(SECOND * 3600);
    let work = |term: Term| async move {
        crate::testing::lose(&term.guard, LossReason::MaxHold);
        Err::<(), _>("its time is over")
    };
    let run = tokio::spawn(async move { election.run(work).await });
    tokio::time::sleep(SECOND).await;
    let next = other.mutex("e").unwrap().acquire_timeout(SECOND).await.unwrap();
    assert!(next.is_some(), "nobody works, and it is held");
    locks.close(SECOND).await.unwrap();
    let ended = tokio::time::timeout(SECOND * 2, run).await.expect("it sleeps on").unwrap();
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn work_that_fails_at_once_lets_others_run() {
    let [locks] = clients();
    let election = locks.election("e").unwrap().pause_after_failure(Duration::ZERO);
    let run = tokio::spawn(async move { election.run(|_| async { Err::<(), _>("at once") }).await });
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    run.abort();
    assert!(run.await.unwrap_err().is_cancelled());
}

/// Says when it is dropped whether the lock was held until then.
struct UntilDropped(Term, Arc<Mutex<Option<bool>>>);

impl Drop for UntilDropped {
    fn drop(&mut self) {
        *self.1.lock().unwrap() = Some(self.0.is_leader());
    }
}

#[tokio::test(start_paused = true)]
async fn a_clone_of_a_term_keeps_no_lock_of_a_campaign_that_is_gone() {
    for panics in [false, true] {
        let [locks, other] = clients();
        let election = locks.election("e").unwrap();
        let (tell, begun) = tokio::sync::oneshot::channel();
        let (mut tell, led) = (Some(tell), Arc::new(Mutex::new(None)));
        let until = Arc::clone(&led);
        let run = tokio::spawn(async move {
            let work = |term: Term| {
                let _ = tell.take().unwrap().send(term.clone());
                let working = UntilDropped(term, Arc::clone(&until));
                async move {
                    tokio::time::sleep(SECOND).await;
                    assert!(!panics, "on purpose");
                    std::future::pending::<()>().await;
                    drop(working);
                    Ok::<_, Error>(())
                }
            };
            election.run(work).await
        });
        let term = begun.await.unwrap();
        let asked = term.clone();
        let stepping_down = tokio::spawn(async move {
            tokio::time::sleep(SECOND * 3).await;
            asked.step_down().await;
        });
        tokio::time::sleep(SECOND * 2).await;
        run.abort();
        assert_eq!(run.await.unwrap_err().is_panic(), panics);
        assert_eq!(*led.lock().unwrap(), Some(true), "given back after the work");
        let next = other.mutex("e").unwrap().acquire_timeout(SECOND / 2).await.unwrap();
        assert!(next.is_some(), "panics: {panics}");
        assert_eq!(term.lost().await, LossReason::Released);
        stepping_down.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn observers_see_each_leader_and_nobody() {
    let [locks, other] = clients();
    let mut seen = other.election("e").unwrap().observe();
    assert_eq!(seen.next().await, None);
    let election = locks.election("e").unwrap().note("me").unwrap();
    let leader = tokio::spawn(async move {
        let work = |_: Term| async {
            tokio::time::sleep(SECOND * 5).await;
            Ok::<_, Error>(())
        };
        election.run(work).await.unwrap();
    });
    let first = seen.next().await.unwrap();
    assert_eq!(first.note, "me");
    assert!(first.since.is_some());
    // A stream may be left and taken up again.
    assert!(tokio::time::timeout(SECOND, seen.next()).await.is_err());
    assert_eq!(seen.next().await, None);
    leader.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_observer_outlives_an_outage() {
    use crate::around::testing::{hold_elsewhere, outage, paused};
    let locks = paused().unwrap();
    let mut seen = locks.election("e").unwrap().observe();
    assert_eq!(seen.next().await, None);
    let away = outage(&locks).unwrap();
    assert!(
        tokio::time::timeout(SECOND * 10, seen.next()).await.is_err(),
        "a store that is away says nothing"
    );
    drop(away);
    let held = hold_elsewhere(&locks, "e").await.unwrap();
    let leader = tokio::time::timeout(SECOND * 60, seen.next()).await.expect("it sees nothing any more");
    assert_eq!(leader.unwrap().token, held.token().unwrap());
}

#[test]
fn a_smaller_token_of_the_same_candidate_is_no_change() {
    let leader = |note: &str, token| Leader {
        note: note.to_owned(),
        token: FencingToken::new(token).unwrap(),
        since: None,
    };
    let seen = leader("a", 7);
    assert!(same(Some(&seen), Some(&leader("a", 7))) && same(None, None));
    assert!(same(Some(&seen), Some(&leader("a", 6))), "a quorum while a member does not answer");
    assert!(!same(Some(&seen), Some(&leader("b", 6))), "another one, of whom no more is known");
    assert!(!same(Some(&seen), Some(&leader("a", 8))), "a second term");
    let now = SystemTime::now();
    let since = |time, of| Leader { since: Some(time), ..of };
    let seen = since(now, seen);
    assert!(same(Some(&seen), Some(&since(now - SECOND, leader("b", 6)))), "its release was forgotten");
    assert!(!same(Some(&seen), Some(&since(now + SECOND * 2, leader("b", 6)))), "a store from a backup");
    assert!(!same(Some(&seen), Some(&leader("b", 6))), "of whom no more is known");
    assert!(!same(Some(&seen), None) && !same(None, Some(&seen)));
}

/// Counts the requests of a client by their verb.
#[derive(Default)]
struct Requests(Mutex<std::collections::BTreeMap<String, usize>>);

impl crate::Observer for Requests {
    fn on_event(&self, event: &crate::Event<'_>) {
        if let crate::Event::Request { verb, .. } = event {
            *self.0.lock().unwrap().entry((*verb).to_owned()).or_default() += 1;
        }
    }
}

/// A candidate that waits for a minute costs its renewals, one each third of a waiter's lease, and nothing else.
#[tokio::test(start_paused = true)]
async fn an_idle_candidate_costs_its_renewals() {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let store = MemoryStore::new(Arc::clone(&clock));
    let requests = Arc::new(Requests::default());
    let client = |settings| {
        let backend = Arc::new(MemoryBackend::new(&store));
        Locks::builder(backend).clock(Arc::clone(&clock)).settings(settings).build().unwrap()
    };
    let leads = client(crate::Settings::default());
    let stands_by = client(crate::Settings::default().observer(Arc::clone(&requests) as _));
    let _leader = leads.election("e").unwrap().lock.acquire().await.unwrap();
    let candidate = tokio::spawn(async move {
        let election = stands_by.election("e").unwrap();
        election.run(|_| async { Ok::<_, Error>(()) }).await
    });
    tokio::time::sleep(SECOND).await;
    requests.0.lock().unwrap().clear();
    tokio::time::sleep(SECOND * 60).await;
    candidate.abort();
    let counted = requests.0.lock().unwrap().clone();
    let renewals = counted.get("renew").copied().unwrap_or_default();
    assert!(counted.len() == 1 && (18..=20).contains(&renewals), "{counted:?}");
}
