//! What a join, a try and a release find in the line.

use onelock_core::mode::holders;
use onelock_core::{Backend as _, Busy, HolderId, Mode, Release, Renewal, Renewed, Standing, Wake};

use crate::mysql_server::{Admin as _, MariaDb};
use crate::support::{LONG, connect, counted, held, request, ticket, waiting};

/// Behind whatever is ahead, an entry that joins stands as the line says.
#[tokio::test]
async fn a_join_stands_where_the_line_says() {
    let server = MariaDb::start(&[]).await.unwrap();
    let (x, s, p2, p3) = (Mode::Exclusive, Mode::Shared, Mode::permit(2).unwrap(), Mode::permit(3).unwrap());
    let lines: [&[Mode]; 9] = [&[], &[x], &[s], &[s, s], &[p2], &[p2, p2], &[p3, p3], &[p3, p3, p3], &[s, x]];
    for options in ["", "?blocks=false"] {
        let store = connect(&format!("{}{options}", server.url())).await;
        let other = connect(&server.url()).await;
        for (i, ahead) in lines.iter().enumerate() {
            for mode in [x, s, p2, p3] {
                let on = format!("{i}-{mode}{}", options.len());
                for &mode in *ahead {
                    other.acquire(&request(&on, mode)).await.unwrap();
                }
                let answer = store.acquire(&request(&on, mode)).await.unwrap();
                let holders = holders(ahead.iter().copied().chain([mode]));
                let first = holders == ahead.len();
                match answer {
                    Standing::Held(_) => assert!(holders > ahead.len(), "{mode} behind {ahead:?}"),
                    Standing::Waiting(place) => {
                        assert!(holders <= ahead.len(), "{mode} behind {ahead:?}");
                        assert_eq!(place.retry_after.is_some(), first, "{mode} behind {ahead:?}");
                    }
                    Standing::Busy(_) => panic!("it queues"),
                }
            }
        }
    }
}

/// A holder that asks again, one that has expired, one that is somebody else: each as the line says.
#[tokio::test]
async fn what_is_unusual_is_answered_by_the_line() {
    let server = MariaDb::start(&[]).await.unwrap();
    for options in ["", "?blocks=false"] {
        let store = connect(&format!("{}{options}", server.url())).await;
        let other = connect(&server.url()).await;
        let on = format!("unusual{}", options.len());
        // The same holder has one entry.
        let entry = request(&on, Mode::Exclusive);
        let token = held(&store, &entry).await.token;
        for _ in 0..2 {
            let behind = request(&on, Mode::Exclusive);
            let place = waiting(&other, &behind).await;
            assert_eq!(held(&store, &entry).await.token, token);
            assert_eq!(
                other.release(&ticket(&behind, place.token.unwrap())).await.unwrap(),
                Release::Released
            );
        }
        let behind = request(&on, Mode::Exclusive);
        let behind = ticket(&behind, waiting(&store, &behind).await.token.unwrap());
        let mut wait = std::pin::pin!(store.wait(&behind));
        assert!(futures_util::poll!(&mut wait).is_pending());
        // Expired: nothing to give back, and who waits behind it is told to ask.
        let expire = format!("UPDATE locks.onelock_line SET ends = joined WHERE number = {token}");
        server.run(&expire).await.unwrap();
        assert_eq!(store.release(&ticket(&entry, token)).await.unwrap(), Release::NotHeld);
        let wake = tokio::time::timeout(LONG, wait).await.unwrap().unwrap();
        assert_eq!(wake, Wake::Ask);
        // Somebody else's.
        let mut forged = behind.clone();
        forged.holder = HolderId::random().unwrap();
        assert_eq!(store.release(&forged).await.unwrap(), Release::NotHeld);
        assert_eq!(store.release(&behind).await.unwrap(), Release::Released);
        // Who joins behind one that has expired holds, and the other is gone for good.
        held(&other, &request(&on, Mode::Exclusive)).await;
        server.run("UPDATE locks.onelock_line SET ends = joined").await.unwrap();
        let next = request(&on, Mode::Exclusive);
        let token = held(&store, &next).await.token;
        assert_eq!(server.count("SELECT COUNT(*) FROM locks.onelock_line").await.unwrap(), 1);
        assert_eq!(store.release(&ticket(&next, token)).await.unwrap(), Release::Released);
    }
}

/// An entry that comes twice in one request is renewed for the longer lease.
#[tokio::test]
async fn an_entry_is_renewed_twice_at_once() {
    let server = MariaDb::start(&[]).await.unwrap();
    for options in ["", "?blocks=false"] {
        let store = connect(&format!("{}{options}", server.url())).await;
        for leases in [[LONG, LONG * 2], [LONG * 2, LONG]] {
            let entry = request(&format!("twice{}", options.len()), Mode::Exclusive);
            held(&store, &entry).await;
            let due = leases.map(|lease| Renewal::new(entry.ticket(), lease, lease));
            for (answer, lease) in store.renew(&due).await.into_iter().zip(leases) {
                assert!(matches!(answer, Ok(Renewed::Held(grant)) if grant.lease == lease), "{leases:?}");
            }
            let left = store.inspect(&entry.name).await.unwrap().holders[0].expires_in.unwrap();
            assert!(left > LONG * 3 / 2, "{left:?} of {leases:?}");
            assert_eq!(store.release(&entry.ticket()).await.unwrap(), Release::Released);
        }
    }
}

/// Entries take the lowest free slot, so the rows of a name, deleted ones included, are as many as its longest line.
#[tokio::test]
async fn slots_are_used_again() {
    let server = MariaDb::start(&[]).await.unwrap();
    let store = connect(&server.url()).await;
    let slots = "SELECT CAST(slot AS CHAR) FROM locks.onelock_line ORDER BY number";
    let mut line = Vec::new();
    for _ in 0..5 {
        let entry = request("slots", Mode::Exclusive);
        store.acquire(&entry).await.unwrap();
        line.push(entry);
    }
    assert_eq!(server.texts(slots).await.unwrap(), ["0", "1", "2", "3", "4"]);
    for gone in [2, 0] {
        store.release(&line.remove(gone).ticket()).await.unwrap();
    }
    for _ in 0..3 {
        store.acquire(&request("slots", Mode::Exclusive)).await.unwrap();
    }
    assert_eq!(server.texts(slots).await.unwrap(), ["1", "3", "4", "0", "2", "5"]);
}

/// Each try is one request, whatever the line is, and a refusal says when the first lease of those that hold ends.
#[tokio::test]
async fn a_try_is_one_request() {
    let server = MariaDb::start(&[]).await.unwrap();
    for options in ["", "&blocks=false"] {
        let (counter, store) = counted(&server, options).await;
        let other = connect(&server.url()).await;
        let on = format!("tried{}", options.len());
        let with = |mode| request(&on, mode).queue(false);
        let busy = async |mode| match store.acquire(&with(mode)).await.unwrap() {
            Standing::Busy(Busy { retry_after, .. }) => retry_after.unwrap(),
            other => panic!("must be refused: {other:?}"),
        };
        let (exclusive, shared) = (Mode::Exclusive, Mode::Shared);
        let entry = request(&on, exclusive);
        let token = held(&other, &entry).await.token;
        busy(exclusive).await;
        for _ in 0..5 {
            let asked = counter.verbs();
            let left = busy(exclusive).await;
            assert!(left <= LONG && left > LONG / 2, "{left:?}");
            assert_eq!(counter.verbs() - asked, 1);
        }
        let asked = counter.verbs();
        busy(shared).await;
        assert_eq!(counter.verbs() - asked, 1);
        // Who queues is never refused.
        let queues = request(&on, exclusive);
        let token_behind = waiting(&store, &queues).await.token.unwrap();
        assert_eq!(store.release(&ticket(&queues, token_behind)).await.unwrap(), Release::Released);
        // Who stands in the line itself has its place, behind others or not.
        let own = request(&on, exclusive).waiter_lease(LONG / 4);
        let place = waiting(&other, &own).await;
        let again = store.acquire(&own.clone().queue(false)).await.unwrap();
        assert!(matches!(&again, Standing::Waiting(same) if same.token == place.token), "{again:?}");
        busy(exclusive).await;
        let left = busy(exclusive).await;
        assert!(left <= LONG && left > LONG / 2, "{left:?}, which is the waiter's");
        assert_eq!(other.release(&ticket(&entry, token)).await.unwrap(), Release::Released);
        let again = store.acquire(&own.clone().queue(false)).await.unwrap();
        assert!(matches!(&again, Standing::Held(same) if same.token == place.token.unwrap()), "{again:?}");
        busy(exclusive).await;
        // One that has expired keeps nobody out.
        server.run("UPDATE locks.onelock_line SET ends = joined").await.unwrap();
        let entry = with(shared);
        let token = held(&store, &entry).await.token;
        // Who may hold beside it does.
        busy(exclusive).await;
        let beside = with(shared);
        let second = held(&store, &beside).await.token;
        busy(exclusive).await;
        for (entry, token) in [(&entry, token), (&beside, second)] {
            busy(exclusive).await;
            assert_eq!(store.release(&ticket(entry, token)).await.unwrap(), Release::Released);
        }
        let entry = with(exclusive);
        let token = held(&store, &entry).await.token;
        assert_eq!(store.release(&ticket(&entry, token)).await.unwrap(), Release::Released);
        // The last permit.
        let two = Mode::permit(2).unwrap();
        let first = request(&on, two);
        let token = held(&other, &first).await.token;
        busy(exclusive).await;
        let beside = with(two);
        let second = held(&store, &beside).await.token;
        busy(two).await;
        busy(two).await;
        assert_eq!(other.release(&ticket(&first, token)).await.unwrap(), Release::Released);
        let third = with(two);
        let last = held(&store, &third).await.token;
        for (entry, token) in [(&beside, second), (&third, last)] {
            assert_eq!(store.release(&ticket(entry, token)).await.unwrap(), Release::Released);
        }
        store.close().await.unwrap();
    }
}
