//! What is asked most is short, and where anything is unusual the whole is asked.

use std::sync::atomic::Ordering;

use onelock_conformance::servers::mariadb::mysqld;
use onelock_core::mode::holders;
use onelock_core::{Backend, Busy, HolderId, Mode, Release, Request, Standing, Ticket, Wake};
use sqlx::Row as _;

use crate::mysql_server::{Admin as _, MariaDb};
use crate::support::{LONG, connect, counted, held, request, ticket, waiting};

/// The statements that the server has carried out, those in blocks too, but for those of `SHOW`.
async fn statements(server: &MariaDb) -> u64 {
    let rows = server.run("SHOW GLOBAL STATUS LIKE 'Com\\_%'").await.unwrap();
    let counted = ["begin", "commit", "delete", "insert", "insert_select", "select", "set_option", "update"];
    let count = |row: &sqlx::mysql::MySqlRow| {
        let name: Vec<u8> = row.get_unchecked(0);
        let value: Vec<u8> = row.get_unchecked(1);
        let ours = counted.iter().any(|verb| name == format!("Com_{verb}").as_bytes());
        if ours { String::from_utf8(value).unwrap().parse().unwrap() } else { 0_u64 }
    };
    rows.iter().map(count).sum()
}

/// A name that is known: joined in six statements with the beginning and the end, left in one.
#[tokio::test]
async fn a_known_name_takes_few_statements() {
    let server = MariaDb::start(&[]).await.unwrap();
    for options in ["", "&blocks=false"] {
        let (counter, store) = counted(&server, options).await;
        let on = format!("known{}", options.len());
        let entry = request(&on, Mode::Exclusive);
        let grant = held(&store, &entry).await;
        assert_eq!(store.release(&ticket(&entry, grant.token)).await.unwrap(), Release::Released);
        // House-keeping in the background may come between, and only adds.
        let mut least = (u64::MAX, u64::MAX);
        let mut looking = u64::MAX;
        for _ in 0..5 {
            let before = statements(&server).await;
            looking = looking.min(statements(&server).await - before);
        }
        for _ in 0..20 {
            let (before, asked) = (statements(&server).await, counter.verbs());
            let entry = request(&on, Mode::Exclusive);
            let grant = held(&store, &entry).await;
            let between = statements(&server).await;
            assert_eq!(store.release(&ticket(&entry, grant.token)).await.unwrap(), Release::Released);
            let after = statements(&server).await;
            assert_eq!(counter.verbs() - asked, 2);
            least = (least.0.min(between - before - looking), least.1.min(after - between - looking));
        }
        assert_eq!(least, (6, 1), "statements to join and to leave{options}");
        // Told once how to join and how to leave, and asked for both twenty times.
        let prepared = if options.is_empty() && mysqld().is_none() { 2 } else { 0 };
        assert_eq!(counter.counts().prepared.load(Ordering::SeqCst), prepared, "prepared{options}");
        store.close().await.unwrap();
    }
}

/// Who was refused looks first when it tries again; where that does not decide, the line does.
#[tokio::test]
async fn a_try_again_is_a_look() {
    let server = MariaDb::start(&[]).await.unwrap();
    for options in ["", "&blocks=false"] {
        let (counter, store) = counted(&server, options).await;
        let other = connect(&server.url()).await;
        let on = format!("tried{}", options.len());
        let with = |mode| Request { queue: false, ..request(&on, mode) };
        let busy = async |mode| match store.acquire(&with(mode)).await.unwrap() {
            Standing::Busy(Busy { retry_after }) => retry_after.unwrap(),
            other => panic!("must be refused: {other:?}"),
        };
        let (exclusive, shared) = (Mode::Exclusive, Mode::Shared);
        let entry = request(&on, exclusive);
        let token = held(&other, &entry).await.token;
        busy(exclusive).await;
        let mut least = u64::MAX;
        let mut looking = u64::MAX;
        for _ in 0..20 {
            let (before, asked) = (statements(&server).await, counter.verbs());
            looking = looking.min(statements(&server).await - before);
            let before = statements(&server).await;
            let left = busy(exclusive).await;
            assert!(left <= LONG && left > LONG / 2, "{left:?}");
            least = least.min(statements(&server).await - before - looking);
            assert_eq!(counter.verbs() - asked, 1);
        }
        assert_eq!(least, 1, "statements of a try{options}");
        let asked = counter.verbs();
        busy(shared).await;
        assert_eq!(counter.verbs() - asked, 1);
        // Who queues is never refused.
        let queues = request(&on, exclusive);
        let token_behind = waiting(&store, &queues).await.token;
        assert_eq!(store.release(&ticket(&queues, token_behind)).await.unwrap(), Release::Released);
        // Who stands in the line itself has its place, behind others or not.
        let own = Request { waiter_lease: LONG / 4, ..request(&on, exclusive) };
        let place = waiting(&other, &own).await;
        let again = store.acquire(&Request { queue: false, ..own.clone() }).await.unwrap();
        assert!(matches!(&again, Standing::Waiting(same) if same.token == place.token), "{again:?}");
        busy(exclusive).await;
        let left = busy(exclusive).await;
        assert!(left <= LONG && left > LONG / 2, "{left:?}, which is the waiter's");
        assert_eq!(other.release(&ticket(&entry, token)).await.unwrap(), Release::Released);
        let again = store.acquire(&Request { queue: false, ..own.clone() }).await.unwrap();
        assert!(matches!(&again, Standing::Held(same) if same.token == place.token), "{again:?}");
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

/// A holder that asks again, an entry that has expired, a row that is gone, another number: each as if nothing were short.
#[tokio::test]
async fn what_is_unusual_is_asked_in_full() {
    let server = MariaDb::start(&[]).await.unwrap();
    for options in ["", "?blocks=false"] {
        let store = connect(&format!("{}{options}", server.url())).await;
        let other = connect(&server.url()).await;
        let on = format!("unusual{}", options.len());
        let mut last = 0;
        // A name is known after a release.
        let mut known = async || {
            let entry = request(&on, Mode::Exclusive);
            let grant = held(&store, &entry).await;
            assert!(grant.token.get() > last, "{} after {last}", grant.token);
            last = grant.token.get();
            assert_eq!(store.release(&ticket(&entry, grant.token)).await.unwrap(), Release::Released);
            grant.token
        };
        // The same holder has one entry.
        known().await;
        let entry = request(&on, Mode::Exclusive);
        let grant = held(&store, &entry).await;
        let beside = request("beside", Mode::Exclusive);
        for _ in 0..2 {
            known_again(&store, &other, &on, &entry, grant.token).await;
        }
        // Another number than its own, and one that has expired.
        let wrong = ticket(&entry, onelock_core::FencingToken::new(grant.token.get() + 1).unwrap());
        assert_eq!(store.release(&wrong).await.unwrap(), Release::Released, "{on}");
        let expired = request(&on, Mode::Exclusive);
        let token = held(&store, &expired).await.token;
        server.run("UPDATE locks.onelock_line SET ends = joined").await.unwrap();
        assert_eq!(store.release(&ticket(&expired, token)).await.unwrap(), Release::NotHeld);
        // The same beside somebody who waits here: what tells it is another request.
        let expired = request(&on, Mode::Exclusive);
        let token = held(&store, &expired).await.token;
        let behind = request(&on, Mode::Exclusive);
        let behind = ticket(&behind, waiting(&store, &behind).await.token);
        let mut wait = std::pin::pin!(store.wait(&behind));
        assert!(futures_util::poll!(&mut wait).is_pending());
        server
            .run(&format!("UPDATE locks.onelock_line SET ends = joined WHERE number = {token}"))
            .await
            .unwrap();
        assert_eq!(store.release(&ticket(&expired, token)).await.unwrap(), Release::NotHeld);
        assert_eq!(
            tokio::time::timeout(LONG, wait).await.unwrap().unwrap(),
            Wake::Held(behind.token.unwrap())
        );
        // Somebody else's.
        let forged = Ticket { holder: HolderId::random().unwrap(), ..behind.clone() };
        assert_eq!(store.release(&forged).await.unwrap(), Release::NotHeld);
        assert_eq!(store.release(&behind).await.unwrap(), Release::Released);
        // Who joins behind one that has expired holds, and the other is gone for good.
        known().await;
        held(&other, &request(&on, Mode::Exclusive)).await;
        server.run("UPDATE locks.onelock_line SET ends = joined").await.unwrap();
        let next = request(&on, Mode::Exclusive);
        let token = held(&store, &next).await.token;
        assert_eq!(server.count("SELECT COUNT(*) FROM locks.onelock_line").await.unwrap(), 1);
        assert_eq!(store.release(&ticket(&next, token)).await.unwrap(), Release::Released);
        // Its row was retired by somebody else, after the floor was raised.
        let floor = known().await.get() + 1000;
        held(&other, &beside).await;
        server.run(&format!("UPDATE locks.onelock_floor SET number = {floor}")).await.unwrap();
        server.run(&format!("DELETE FROM locks.onelock_name WHERE name = '{on}'")).await.unwrap();
        assert!(known().await.get() > floor);
        // A row without a number is as good as none.
        server.run(&format!("UPDATE locks.onelock_floor SET number = {}", floor + 1000)).await.unwrap();
        server.run(&format!("UPDATE locks.onelock_name SET number = 0 WHERE name = '{on}'")).await.unwrap();
        assert!(known().await.get() > floor + 1000);
        other.release(&beside.ticket()).await.unwrap();
    }
}

/// Behind whatever is ahead, an entry that joins a known name stands as the line says.
#[tokio::test]
async fn a_short_join_stands_where_the_line_says() {
    let server = MariaDb::start(&[]).await.unwrap();
    let (x, s, p2, p3) = (Mode::Exclusive, Mode::Shared, Mode::permit(2).unwrap(), Mode::permit(3).unwrap());
    let lines: [&[Mode]; 9] = [&[], &[x], &[s], &[s, s], &[p2], &[p2, p2], &[p3, p3], &[p3, p3, p3], &[s, x]];
    for options in ["", "?blocks=false"] {
        let store = connect(&format!("{}{options}", server.url())).await;
        let other = connect(&server.url()).await;
        for (i, ahead) in lines.iter().enumerate() {
            for mode in [x, s, p2, p3] {
                let on = format!("{i}-{mode}{}", options.len());
                let first = request(&on, x);
                let token = held(&store, &first).await.token;
                store.release(&ticket(&first, token)).await.unwrap();
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

/// `entry`, which holds, is asked for again after its name has become known once more.
async fn known_again(
    store: &dyn Backend,
    other: &dyn Backend,
    on: &str,
    entry: &onelock_core::Request,
    token: onelock_core::FencingToken,
) {
    let behind = request(on, Mode::Exclusive);
    let place = waiting(store, &behind).await;
    assert_eq!(store.release(&ticket(&behind, place.token)).await.unwrap(), Release::Released);
    let again = store.acquire(entry).await.unwrap();
    assert!(matches!(again, Standing::Held(grant) if grant.token == token), "{again:?}");
    let waits = request(on, Mode::Exclusive);
    let place = waiting(other, &waits).await;
    other.release(&ticket(&waits, place.token)).await.unwrap();
}
