use std::future::Future as _;
use std::sync::Mutex;
use std::time::Duration;

use super::entry::{Entry, Upkeep, View};
use super::schedule::Schedule;
use crate::backend::{Grant, Place, Renewed, Request, Ticket};
use crate::clock::Timestamp;
use crate::error::{Error, ErrorKind};
use crate::holder::HolderId;
use crate::lease::Margin;
use crate::mode::Mode;
use crate::model::loss::LossReason;
use crate::name::LockName;
use crate::token::{FencingToken, TokenEpoch};

const SEC: fn(u64) -> Duration = Duration::from_secs;

fn at(secs: u64) -> Timestamp {
    Timestamp::from_origin(SEC(secs))
}

fn token() -> FencingToken {
    FencingToken::new(7).unwrap()
}

fn request() -> Request {
    Request::new(LockName::new("n").unwrap(), HolderId::from_u128(1), Mode::Exclusive, SEC(30))
        .waiter_lease(SEC(10))
}

fn upkeep() -> Upkeep {
    Upkeep {
        margin: Margin::new(0.1, Duration::ZERO).unwrap(),
        lease: SEC(30),
        auto_renew: true,
        max_hold: None,
        at_least: None,
    }
}

fn held(lease: u64) -> Renewed {
    Renewed::Held(Grant::new(token(), SEC(lease)))
}

fn waiting(lease: u64) -> Renewed {
    Renewed::Waiting(Place::new(token(), SEC(lease)))
}

/// Where it holds, its caller has it.
fn entry(upkeep: Upkeep, answer: Renewed) -> Entry {
    let entry = Entry::new(&request(), upkeep, at(100), at(103), answer).unwrap();
    assert_eq!(entry.receive(at(103)), matches!(answer, Renewed::Held(_)));
    entry
}

fn delayed(answer: Renewed) -> Entry {
    let request = request().delay(SEC(5));
    Entry::new(&request, upkeep(), at(100), at(103), answer).unwrap()
}

fn deadline(entry: &Entry, now: u64) -> Option<Timestamp> {
    match entry.view(at(now)) {
        View::Held { deadline } | View::Waiting { deadline, .. } => Some(deadline),
        View::Over(_) => None,
    }
}

#[test]
fn the_deadline_counts_from_before_the_send_and_from_what_the_store_gave() {
    assert_eq!(deadline(&entry(upkeep(), held(30)), 103), Some(at(127)));
    assert_eq!(deadline(&entry(upkeep(), held(20)), 103), Some(at(118)));
}

#[test]
fn what_is_lost_stays_lost() {
    let entry = entry(upkeep(), held(30));
    assert_eq!(entry.view(at(127)), View::Over(LossReason::Expired));
    entry.renewed(at(126), at(128), &Ok(held(30)));
    assert_eq!(entry.view(at(128)), View::Over(LossReason::Expired));
    assert_eq!(entry.view(at(100)), View::Over(LossReason::Expired), "not even an earlier moment revives it");
    assert!(entry.take_unreceived().is_none(), "work may still be running under it");
    assert!(entry.take_owed().is_some(), "when that has ended it is given back");
    assert!(entry.take_owed().is_none(), "once");
}

#[test]
fn what_the_clock_ends_under_a_lock_delay_is_left_to_its_lease() {
    let lost = delayed(held(30));
    assert!(lost.receive(at(103)));
    lost.end(at(127), LossReason::Released);
    assert_eq!(lost.view(at(127)), View::Over(LossReason::Expired), "the clock was first");
    assert!(lost.take_owed().is_none());
    let released = delayed(held(30));
    assert!(released.receive(at(103)));
    assert!(
        released.end_for_release(at(104), LossReason::Released).unwrap().is_some(),
        "its user says that the work has ended"
    );
    let dropped = delayed(held(30));
    assert!(dropped.receive(at(103)));
    dropped.end(at(104), LossReason::Released);
    assert!(dropped.take_owed().is_some());
    let unused = delayed(waiting(10));
    assert!(unused.pushed(token(), at(104)));
    assert_eq!(unused.view(at(109)), View::Over(LossReason::Expired));
    assert!(unused.take_unreceived().is_some(), "no work ever ran under it");
}

#[test]
fn a_grant_that_no_caller_receives_ends_with_the_waiters_lease() {
    let entry = entry(upkeep(), waiting(10));
    entry.renewed(at(104), at(105), &Ok(held(30)));
    assert!(entry.due_renewal(at(114)).is_none(), "nobody uses it");
    assert_eq!(entry.next_event(), Some(at(115)));
    assert_eq!(entry.view(at(115)), View::Over(LossReason::Expired));
    assert!(!entry.receive(at(115)), "too late");
    assert!(entry.take_unreceived().is_some());
}

#[test]
fn renewals_that_are_due_when_a_slow_answer_comes_gather() {
    let answered_at = |now| {
        let entry = Entry::new(&request(), upkeep(), at(100), now, waiting(10)).unwrap();
        entry.next_event().unwrap()
    };
    assert_eq!(answered_at(at(103)), at(100) + SEC(10) / 3);
    assert_eq!(answered_at(at(105)), at(105) + SEC(10) / 24);
    // Little is left: at once.
    assert!(answered_at(at(107)) < at(107));
}

#[test]
fn a_late_answer_after_the_deadline_is_loss_even_if_nobody_looked() {
    let entry = entry(upkeep(), held(30));
    entry.renewed(at(110), at(127), &Ok(held(30)));
    assert_eq!(entry.view(at(127)), View::Over(LossReason::Expired));
}

#[test]
fn answers_that_overtake_each_other_never_shorten() {
    let entry = entry(upkeep(), held(30));
    entry.renewed(at(112), at(113), &Ok(held(30)));
    entry.renewed(at(110), at(114), &Ok(held(30)));
    assert_eq!(deadline(&entry, 114), Some(at(139)));
}

#[test]
fn one_failed_renewal_is_not_loss() {
    let entry = entry(upkeep(), held(30));
    entry.renewed(at(110), at(111), &Err(Error::new(ErrorKind::Timeout, "slow")));
    assert_eq!(deadline(&entry, 111), Some(at(127)));
    assert!(entry.next_event().unwrap() <= at(112), "and it is tried again soon");
    assert!(entry.failure().is_some());
}

#[test]
fn a_definite_answer_is_loss_and_nothing_is_owed() {
    let entry = entry(upkeep(), held(30));
    entry.renewed(at(110), at(111), &Ok(Renewed::NotHeld));
    assert_eq!(entry.view(at(111)), View::Over(LossReason::NotHeld));
    assert!(entry.take_owed().is_none());
}

#[test]
fn a_push_moves_no_deadline_and_one_renewal_follows_it() {
    let entry = entry(upkeep(), waiting(10));
    assert_eq!(deadline(&entry, 104), Some(at(109)));
    assert!(!entry.pushed(FencingToken::new(8).unwrap(), at(101)), "another entry's push");
    assert!(entry.pushed(token(), at(101)));
    assert!(entry.receive(at(101)));
    assert_eq!(deadline(&entry, 104), Some(at(109)));
    let due = at(101) + SEC(10) / 24;
    assert_eq!(entry.next_event(), Some(due), "soon, but not for a hold that is over by then");
    assert!(entry.due_renewal(at(101)).is_some(), "with others that are due");
    entry.renewed(at(104), at(105), &Ok(held(30)));
    assert_eq!(deadline(&entry, 105), Some(at(131)));
}

#[test]
fn a_push_puts_no_renewal_off() {
    let entry = entry(upkeep(), waiting(10));
    let due = at(100) + SEC(10) / 3;
    assert_eq!(entry.next_event(), Some(due));
    assert!(entry.pushed(token(), at(103)));
    assert!(entry.receive(at(103)));
    assert_eq!(entry.next_event(), Some(due));
}

#[test]
fn a_push_after_the_deadline_is_discarded() {
    let entry = entry(upkeep(), waiting(10));
    assert!(!entry.pushed(token(), at(109)));
    assert_eq!(entry.view(at(109)), View::Over(LossReason::Expired));
    assert!(entry.take_owed().is_some());
}

#[test]
fn a_fixed_lease_is_not_renewed_except_after_a_push() {
    let fixed = Upkeep { auto_renew: false, ..upkeep() };
    let entry_held = entry(fixed, held(30));
    assert_eq!(entry_held.next_event(), Some(at(127)));
    assert!(entry_held.due_renewal(at(126)).is_none());
    let pushed = entry(fixed, waiting(10));
    assert!(pushed.due_renewal(at(104)).is_some(), "a waiter is renewed");
    assert!(pushed.pushed(token(), at(104)));
    assert!(pushed.receive(at(104)));
    assert!(pushed.due_renewal(at(104)).is_some());
    pushed.renewed(at(104), at(105), &Ok(held(30)));
    assert!(pushed.due_renewal(at(120)).is_none());
}

#[test]
fn the_longest_hold_ends_it_whatever_renewals_say() {
    let entry = entry(Upkeep { max_hold: Some(SEC(40)), ..upkeep() }, held(30));
    for sent in [110, 120, 130, 140] {
        entry.renewed(at(sent), at(sent), &Ok(held(30)));
    }
    assert_eq!(deadline(&entry, 142), Some(at(143)));
    assert_eq!(entry.view(at(143)), View::Over(LossReason::MaxHold));
}

#[test]
fn a_hung_renewal_is_overtaken() {
    let entry = entry(upkeep(), held(30));
    assert_eq!(entry.next_event(), Some(at(110)));
    assert!(entry.due_renewal(at(110)).is_some());
    assert_eq!(
        entry.next_event(),
        Some(at(120)),
        "the next attempt does not wait for the first one's answer"
    );
}

#[test]
fn a_holder_that_the_store_puts_back_in_the_line_is_lost() {
    let entry = entry(upkeep(), held(30));
    entry.renewed(at(110), at(111), &Ok(waiting(10)));
    assert_eq!(entry.view(at(111)), View::Over(LossReason::NotHeld));
    assert!(entry.take_owed().is_some());
}

#[test]
fn a_waiters_answer_that_the_push_overtook_is_no_loss() {
    let entry = entry(upkeep(), waiting(10));
    // Sent at 104, answered by the store before it promoted the entry, read only after the push.
    assert!(entry.pushed(token(), at(105)));
    assert!(entry.receive(at(105)));
    entry.renewed(at(104), at(106), &Ok(waiting(10)));
    assert_eq!(deadline(&entry, 106), Some(at(113)));
    assert!(matches!(entry.view(at(106)), View::Held { .. }));
    assert!(entry.due_renewal(at(106)).is_some(), "the renewal that follows a push is still owed");
    // What was sent after the push must know of the hold.
    entry.renewed(at(106), at(107), &Ok(waiting(10)));
    assert_eq!(entry.view(at(107)), View::Over(LossReason::NotHeld));
}

/// Takes what is owed as soon as it is notified of a change, as a renewal does that finds the entry over.
struct Rival(std::sync::Weak<Entry>, Mutex<Option<Ticket>>);

impl std::task::Wake for Rival {
    fn wake(self: std::sync::Arc<Self>) {
        let over = |entry: &Entry| matches!(entry.view(at(104)), View::Over(_));
        if let Some(entry) = self.0.upgrade().filter(|entry| over(entry)) {
            *self.1.lock().unwrap() = entry.take_owed();
        }
    }
}

#[test]
fn nobody_gives_back_what_a_release_is_about_to() {
    let entry = std::sync::Arc::new(entry(upkeep(), held(30)));
    let rival = std::sync::Arc::new(Rival(std::sync::Arc::downgrade(&entry), Mutex::default()));
    let mut notified = std::pin::pin!(entry.changed.notified());
    let waker = std::sync::Arc::clone(&rival).into();
    assert!(notified.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    let owed = entry.end_for_release(at(104), LossReason::Released).unwrap();
    assert_eq!(owed.map(|ticket| ticket.holder), Some(HolderId::from_u128(1)));
    assert!(rival.1.lock().unwrap().is_none(), "the release would have answered `lost`");
    assert_eq!(entry.view(at(104)), View::Over(LossReason::Released));
}

/// The server's own queue is the line.
fn unnumbered() -> Renewed {
    Renewed::Waiting(Place::new(None, SEC(10)))
}

#[test]
fn a_grant_brings_the_number_that_the_place_did_not_have() {
    let pushed = entry(upkeep(), unnumbered());
    assert!(pushed.token().is_none() && pushed.renewal(at(100)).ticket.token.is_none());
    assert!(pushed.pushed(token(), at(101)) && pushed.receive(at(101)));
    assert!(!pushed.pushed(FencingToken::new(8).unwrap(), at(102)), "it has its number");
    let renewed = entry(upkeep(), unnumbered());
    renewed.renewed(at(101), at(102), &Ok(held(30)));
    assert!(renewed.receive(at(102)));
    for entry in [pushed, renewed] {
        assert_eq!(entry.token(), Some(token()));
        assert_eq!(entry.renewal(at(102)).ticket.token, Some(token()));
        assert_eq!(
            entry.end_for_release(at(103), LossReason::Released).unwrap().unwrap().token,
            Some(token())
        );
    }
}

#[test]
fn a_number_of_another_epoch_is_no_grant() {
    let epoch = |n| TokenEpoch::new(n).unwrap();
    let request = request().epoch(epoch(2));
    let other = epoch(1).next(0).unwrap();
    let granted = Renewed::Held(Grant::new(other, SEC(30)));
    assert!(Entry::new(&request, upkeep(), at(100), at(103), granted).is_err());
    let entry = Entry::new(&request, upkeep(), at(100), at(103), unnumbered()).unwrap();
    assert!(!entry.pushed(other, at(104)));
    entry.renewed(at(104), at(105), &Ok(granted));
    assert!(!entry.receive(at(105)) && entry.failure().is_some());
    assert!(entry.pushed(epoch(2).next(0).unwrap(), at(106)));
}

/// An answer may come when a lock is over and the renewer has not looked at it yet.
#[test]
fn a_lost_lock_is_kept_whoever_sees_the_loss_first() {
    let (schedule, entry) = (Schedule::default(), std::sync::Arc::new(entry(upkeep(), held(30))));
    schedule.track(&entry);
    entry.renewed(at(110), at(140), &Ok(held(30)));
    assert_eq!(entry.view(at(140)), View::Over(LossReason::Expired));
    schedule.track(&entry);
    schedule.track(&entry);
    assert_eq!(schedule.all_and_lost().len(), 1);
}

/// A store that gives no time, against its contract, is not asked in a loop.
#[test]
fn a_lease_of_nothing_is_renewed_with_pauses() {
    let entry = entry(upkeep(), held(30));
    entry.renewed(at(110), at(111), &Ok(held(0)));
    assert!(entry.next_event().unwrap() > at(111), "after an answer");
    entry.renewal(at(111));
    assert!(entry.next_event().unwrap() > at(111), "while it is asked for");
}

/// As a drain does.
#[test]
fn who_waits_for_the_end_is_told_whoever_sees_it_first() {
    let looks: [fn(&Entry); 2] =
        [|entry| assert!(!entry.receive(at(127))), |entry| entry.take_back(at(127), |_| false)];
    for look in looks {
        let entry = entry(upkeep(), held(30));
        let mut changed = std::pin::pin!(entry.changed.notified());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(changed.as_mut().poll(&mut context).is_pending());
        look(&entry);
        assert!(changed.poll(&mut context).is_ready(), "it waits on");
    }
}

/// A store that restarts in between has forgotten the entry, and nobody has evicted it.
#[test]
fn an_answer_to_what_was_asked_before_a_failure_does_not_clear_it() {
    let entry = entry(upkeep(), waiting(30));
    entry.failed(at(106), Error::new(ErrorKind::Unavailable, "on purpose"));
    entry.renewed(at(105), at(107), &Ok(waiting(30)));
    assert!(entry.failure().is_some(), "the store has not answered since");
    entry.renewed(at(108), at(109), &Ok(waiting(30)));
    assert!(entry.failure().is_none());
}
