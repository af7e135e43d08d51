//! What a client keeps of an entry says nothing of the next one of its holder, and a hand-over is used once, whatever is lost, late
//! or repeated.

use std::time::Duration;

use etcd_client::{GetOptions, RoleRevokePermissionOptions};
use onelock_conformance::Verdict;
use onelock_conformance::ctx::{PATIENCE, exclusive, held, name, renewal, ticket, waiting, within};
use onelock_conformance::faults::{Act, Fault, Link, Proxy, Trigger};
use onelock_core::{FencingToken, Renewed, Request, Ticket};

use crate::leases::{behind, client, locks};
use crate::support::server::{Admin as _, Member};

/// Joins again after an eviction, with the answers of both joins lost: what was known of the first entry hides no second one.
#[tokio::test]
async fn an_evicted_waiter_can_join_again_over_a_lost_answer() -> Verdict {
    let server = Member::single(None).await?;
    let (front, link) = (client(&server.url()).await?, Link::new());
    let (_first, url) = behind(&server, &link).await?;
    let second = Proxy::start(server.address(), &link).await?;
    let backend = client(&url.replace('?', &format!(",{}?", second.address()))).await?;
    let evicted = exclusive(&name("evicted")?)?;
    held(&front, &exclusive(&evicted.name)?).await?;
    for _ in 0..3 {
        let pattern = evicted.holder.to_hex().into_bytes();
        link.arm(Trigger { pattern, nth: 1, act: Act::LoseReply });
        let place = waiting(&backend, &evicted).await?;
        link.struck().await;
        front.evict(&evicted.name, place.token.unwrap()).await?;
        let answer = backend.renew(&[renewal(&evicted, place.token)]).await.remove(0)?;
        assert_eq!(answer, Renewed::NotHeld);
    }
    Ok(())
}

/// The answer to a join is lost, and the request is refused when it is sent again: what the first made is given back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_of_the_second_try_says_nothing_of_the_first() -> Verdict {
    let server = Member::single(None).await?;
    server.with_a_user("apps-never-printed").await?;
    let links = [Link::new(), Link::new()];
    let way = async |link| Proxy::start(server.address(), link).await;
    let ways = [way(&links[0]).await?, way(&links[1]).await?];
    let [one, two] = ways.each_ref().map(Proxy::address);
    let url = format!("etcd://app:apps-never-printed@{one},{two}?request_timeout=30s");
    let (backend, admin) = (client(&url).await?, server.admin().await?);
    let (mut entries, mut auth) = (admin.kv_client(), admin.auth_client());
    let refused = exclusive(&name("refused")?)?;
    for link in &links {
        let pattern = refused.holder.to_hex().into_bytes();
        link.arm(Trigger { pattern, nth: 1, act: Act::HoldReply });
    }
    let revoked = async {
        let first = tokio::select! { () = links[0].struck() => 0, () = links[1].struck() => 1 };
        links[1 - first].let_go();
        let all = || GetOptions::new().with_prefix();
        while entries.get("onelock/refused/", Some(all())).await?.count() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let all = RoleRevokePermissionOptions::new().with_prefix();
        auth.role_revoke_permission("app", "onelock/", Some(all)).await?;
        links[first].set(Fault::Reset);
        Verdict::Ok(())
    };
    let (error, revoked) =
        tokio::join!(backend.acquire(&refused), within(PATIENCE, "the first try", revoked));
    revoked??;
    let error = error.unwrap_err();
    assert!(error.is_unclear(), "nobody gives it back: {error}");
    Ok(())
}

/// A verb of an entry that was evicted stalls, wherever, while its holder joins again behind another one: what it read of the
/// entry before makes no holder of the one that waits.
#[tokio::test]
async fn a_verb_that_stalls_makes_no_holder_of_the_next_entry() -> Verdict {
    let server = Member::single(None).await?;
    let (front, backend) = (client(&server.url()).await?, client(&server.url()).await?);
    let mut wrong = Vec::new();
    for verb in ["wait", "renew"] {
        for polls in 1..8_usize {
            let twice = exclusive(&name(&format!("{verb}-{polls}"))?)?;
            let (first, second) = (exclusive(&twice.name)?, exclusive(&twice.name)?);
            let token = held(&front, &first).await?.token;
            let place = waiting(&backend, &twice).await?;
            let before = ticket_of(&twice, place.token);
            let due = [renewal(&twice, place.token)];
            let mut standing: futures_util::future::BoxFuture<'_, ()> = match verb {
                "wait" => Box::pin(async { drop(backend.wait(&before).await) }),
                _ => Box::pin(async { drop(backend.renew(&due).await) }),
            };
            if verb == "wait" {
                // It watches the one ahead.
                assert!(tokio::time::timeout(Duration::from_millis(400), &mut standing).await.is_err());
            }
            front.release(&ticket(&first, token)).await?;
            // It goes so far, and stalls.
            for _ in 0..polls {
                tokio::time::sleep(Duration::from_millis(60)).await;
                if futures_util::poll!(&mut standing).is_ready() {
                    standing = Box::pin(async {});
                    break;
                }
            }
            tokio::time::sleep(Duration::from_millis(60)).await;
            let behind = waiting(&front, &second).await?;
            front.evict(&twice.name, place.token.unwrap()).await?;
            let again = waiting(&backend, &twice).await?;
            assert_ne!(again.token, place.token);
            // Now it goes on.
            standing.await;
            for _ in 0..2 {
                let answer = backend.renew(&[renewal(&twice, again.token)]).await.remove(0)?;
                if !matches!(answer, Renewed::Waiting(_)) {
                    wrong.push(format!("{verb}, {polls} polls: {answer:?}"));
                }
            }
            let there = front.renew(&[renewal(&second, behind.token)]).await.remove(0)?;
            assert!(matches!(there, Renewed::Held(_)), "{there:?}");
        }
    }
    assert!(wrong.is_empty(), "two hold: {wrong:#?}");
    Ok(())
}

fn ticket_of(request: &Request, token: Option<FencingToken>) -> Ticket {
    ticket(request, token.unwrap())
}

/// A lock goes to another client and comes back. Meanwhile the time has passed that the first client knew of, and it could not see
/// that the entry is not its own any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_comes_back_to_who_handed_it_over() -> Verdict {
    let server = Member::single(None).await?;
    let link = Link::new();
    let (_proxy, url) = behind(&server, &link).await?;
    let ttl = Duration::from_secs(2);
    let (first, other) = (locks(client(&url).await?, ttl)?, locks(client(&server.url()).await?, ttl)?);
    for round in 0..3 {
        let guard = first.mutex(format!("back-{round}"))?.acquire().await?;
        let guard = other.resume(guard.hand_over().await?).await?;
        link.set(Fault::Reset);
        tokio::time::sleep(2 * ttl).await;
        let hand_over = guard.hand_over().await?;
        link.heal();
        let guard = first.resume(hand_over).await?;
        assert!(guard.is_held());
        guard.release().await?;
    }
    Ok(())
}

/// The same for one whose join was answered at the second try, while another lock keeps the lease alive that it joined on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_comes_back_that_was_joined_over_a_lost_answer() -> Verdict {
    let server = Member::single(None).await?;
    let link = Link::new();
    let (_first, url) = behind(&server, &link).await?;
    let second = Proxy::start(server.address(), &link).await?;
    let url = url.replace('?', &format!(",{}?", second.address()));
    let ttl = Duration::from_secs(2);
    let (first, other) = (locks(client(&url).await?, ttl)?, locks(client(&server.url()).await?, ttl)?);
    let anchor = first.mutex("anchor")?.acquire().await?;
    link.arm(Trigger { pattern: b"/back/".to_vec(), nth: 1, act: Act::LoseReply });
    let guard = first.mutex("back")?.acquire().await?;
    link.struck().await;
    let guard = other.resume(guard.hand_over().await?).await?;
    tokio::time::sleep(4 * ttl).await;
    let guard = first.resume(guard.hand_over().await?).await?;
    assert!(guard.is_held() && anchor.is_held());
    guard.release().await?;
    Ok(())
}

/// A hand-over that arrives twice is resumed once, also where the giver's request for its claim went out twice and one comes late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_is_used_once_whatever_comes_late() -> Verdict {
    let server = Member::single(None).await?;
    let other = locks(client(&server.url()).await?, Duration::from_secs(20))?;
    let mut handed = 0;
    for round in 0..30 {
        let link = Link::new();
        let (_first, url) = behind(&server, &link).await?;
        let second = Proxy::start(server.address(), &link).await?;
        let url = url.replace('?', &format!(",{}?", second.address()));
        let giver = locks(client(&url).await?, Duration::from_secs(20))?;
        let guard = giver.mutex(format!("given-{round}"))?.acquire().await?;
        link.arm(Trigger { pattern: b"onelock.handover".to_vec(), nth: 1, act: Act::HoldRequest });
        // On a busy machine the second try may come too late to be answered in time.
        let Ok(hand_over) = guard.hand_over().await else { continue };
        let text = String::from(hand_over);
        link.struck().await;
        let one = other.resume(text.parse()?).await?;
        link.let_go();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let two = other.resume(text.parse()?).await;
        assert!(two.is_err() && one.is_held(), "round {round}: two have it");
        one.release().await?;
        handed += 1;
    }
    assert!(handed > 10, "{handed} of 30 are handed over");
    Ok(())
}

/// A hand-over that arrives twice is resumed once, also where the second one's request is lost and sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_is_used_once_over_a_lost_request() -> Verdict {
    let server = Member::single(None).await?;
    let ttl = Duration::from_secs(20);
    for act in [Act::Reset, Act::LoseReply] {
        let link = Link::new();
        let (_proxy, url) = behind(&server, &link).await?;
        let (giver, late) = (locks(client(&server.url()).await?, ttl)?, locks(client(&url).await?, ttl)?);
        let guard = giver.mutex(format!("given-{act:?}"))?.acquire().await?;
        let text = String::from(guard.hand_over().await?);
        let one = giver.resume(text.parse()?).await?;
        link.arm(Trigger { pattern: b"onelock.handover".to_vec(), nth: 1, act });
        let two = late.resume(text.parse()?).await;
        link.struck().await;
        assert!(two.is_err() && one.is_held(), "{act:?}: two have it");
        one.release().await?;
    }
    Ok(())
}
