//! Connections that break and sessions that end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::join;
use onelock_conformance::ctx::{
    exclusive, held, leased, name, renew, renewal, request, ticket, trying, waiting,
};
use onelock_conformance::faults::{Act, Fault, Link, Proxy, Trigger};
use onelock_conformance::servers::zookeeper::{Setup, ZkServer};
use onelock_conformance::verdict::{Context as _, Stop, Verdict};
use onelock_conformance::{ensure, ensure_eq, expect};
use onelock_core::{BootClock, Clock as _, ErrorKind, Locks, Mode, Release, Renewed, Standing, Wake};
use zookeeper_client as zk;

use crate::support::counter::Counter;
use crate::support::harness::open;
use crate::{counted, eventually, quiet, raw, url};

/// What happens in a line that is followed while the connection is broken is found when it stands again.
#[tokio::test(flavor = "multi_thread")]
async fn a_departure_while_the_connection_was_broken_is_found() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let link = Link::new();
    let counter = Counter::start(server.address(), "/own")?;
    let proxy = Proxy::start(counter.address(), &link).await?;
    let cut = open(&format!("zk://{}/own?tick=200ms&request_timeout=1s", proxy.address())).await?;
    let other = open(&url(&server)).await?;
    let name = name("unheard")?;
    for round in 0..3 {
        let mut ahead = Vec::new();
        for _ in 0..2 {
            let request = exclusive(&name)?;
            other.acquire(&request).await?;
            ahead.push(request.ticket());
        }
        let request = leased(exclusive(&name)?, Duration::from_secs(60));
        let own = ticket(&request, waiting(&cut, &request).await?.token);
        let told = tokio::spawn({
            let (cut, own) = (Arc::clone(&cut), own.clone());
            async move {
                loop {
                    match cut.wait(&own).await {
                        Err(error) if error.is_retryable() => {
                            tokio::time::sleep(Duration::from_millis(10)).await;
                        }
                        wake => return wake,
                    }
                }
            }
        });
        quiet(&counter).await?;
        link.set(Fault::Reset);
        for ticket in &ahead {
            ensure_eq!(other.release(ticket).await?, Release::Released, "round {round}");
        }
        link.heal();
        let wake = tokio::time::timeout(Duration::from_secs(50), told).await???;
        ensure_eq!(Some(wake), own.token.map(Wake::Held), "round {round}");
        cut.release(&own).await?;
    }
    Ok(())
}

/// A client that is dropped with something held leaves it to the end of the lease, and not longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_client_ends_no_lease_early() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let other = open(&url(&server)).await?;
    let client = open(&url(&server)).await?;
    let lock = name("left")?;
    let request = leased(exclusive(&lock)?, Duration::from_secs(2));
    let began = std::time::Instant::now();
    held(&client, &request).await?;
    drop(client);
    eventually("the lock is free", async || {
        let answer = other.acquire(&trying(exclusive(&lock)?)).await?;
        Ok(matches!(answer, Standing::Held(_)).then_some(()))
    })
    .await?;
    ensure!(began.elapsed() >= Duration::from_secs(2), "free after {:?}", began.elapsed());
    Ok(())
}

/// When the session has ended on the server its entries are gone, the client says so, and goes on with a new one.
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_session_is_loss_and_not_the_end() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let link = Link::new();
    let proxy = Proxy::start(server.address(), &link).await?;
    let client = open(&format!("zk://{}/own?tick=200ms&request_timeout=2s", proxy.address())).await?;
    let other = open(&url(&server)).await?;
    let lock = name("cut-off")?;
    let request = leased(exclusive(&lock)?, Duration::from_secs(60));
    let short = leased(exclusive(&name("short")?)?, Duration::from_secs(1));
    let (long, brief) = (held(&client, &request).await?, held(&client, &short).await?);
    link.set(Fault::Reset);
    let error =
        expect!(renew(&client, renewal(&short, brief.token)).await, Err(error) => error, "a cut link");
    ensure!(!matches!(error, Stop::NotApplicable(_)), "{error}");
    // The short session ends on the server; the client cannot know.
    eventually("the short lease ends", async || {
        Ok(other.inspect(&short.name).await?.holders.is_empty().then_some(()))
    })
    .await?;
    link.heal();
    let gone = eventually("an answer", async || {
        Ok(client.renew(&[renewal(&short, brief.token)]).await.pop().and_then(Result::ok))
    })
    .await?;
    ensure_eq!(gone, Renewed::NotHeld, "the entry of a session that has ended");
    let kept = eventually("an answer", async || {
        Ok(client.renew(&[renewal(&request, long.token)]).await.pop().and_then(Result::ok))
    })
    .await?;
    expect!(kept, Renewed::Held(_) => (), "the entry of the session that lives");
    let again = eventually("a new session", async || {
        Ok(client.acquire(&leased(exclusive(&short.name)?, Duration::from_secs(1))).await.ok())
    })
    .await?;
    let grant = expect!(again, Standing::Held(grant) => grant, "a new entry");
    ensure!(grant.token > brief.token, "token {} after {}", grant.token, brief.token);
    Ok(())
}

/// A join whose answer was lost, in a line where somebody has made a node that is no entry: refused, and nothing is left.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_join_beside_a_foreign_node_leaves_nothing() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let link = Link::new();
    let proxy = Proxy::start(server.address(), &link).await?;
    let cut = open(&format!("zk://{}/own?tick=200ms&request_timeout=1s", proxy.address())).await?;
    let other = open(&url(&server)).await?;
    let admin = raw(&server).await?;
    let mode = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    let warm = exclusive(&name("warm")?)?;
    held(&cut, &warm).await?;
    for asks_again in [true, false] {
        let first = exclusive(&name(&format!("foreign-{asks_again}"))?)?;
        let token = held(&other, &first).await?.token;
        let path = format!("/own/{}", first.name.encoded());
        admin.create(&format!("{path}/readme"), b"", &mode).await?;
        let request = leased(exclusive(&first.name)?, Duration::from_secs(1));
        link.arm(Trigger { pattern: b"-lock-\0\0".to_vec(), nth: 1, act: Act::LoseReply });
        let error = expect!(cut.acquire(&request).await, Err(error) => error, "a lost answer");
        ensure!(error.is_unclear(), "a lost answer: {error}");
        ensure_eq!(admin.list_children(&path).await?.len(), 3, "the lost join is in the line");
        if asks_again {
            let error = expect!(cut.acquire(&request).await, Err(error) => error, "a foreign node");
            ensure_eq!(error.kind(), ErrorKind::Foreign, "{error}");
            ensure_eq!(admin.list_children(&path).await?.len(), 2, "what is left when it is refused");
        }
        // Nobody asks again: it ends with its lease.
        let gone = async || Ok((admin.list_children(&path).await?.len() == 2).then_some(()));
        eventually("the lost join is gone", gone).await?;
        other.release(&ticket(&first, token)).await?;
    }
    Ok(())
}

/// An entry that has lapsed is taken out again and again until that is answered: not the next one of its holder, whose node may
/// have the same path.
#[tokio::test(flavor = "multi_thread")]
async fn what_lapsed_takes_nothing_from_the_next_entry() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let link = Link::new();
    let proxy = Proxy::start(server.address(), &link).await?;
    let client = open(&format!("zk://{}/own?tick=200ms&request_timeout=1s", proxy.address())).await?;
    let other = open(&url(&server)).await?;
    let (name, long) = (name("twice")?, Duration::from_secs(60));
    // Sessions for both lengths.
    for lease in [Duration::from_secs(2), long] {
        let warm = leased(exclusive(&name)?, lease);
        client.release(&ticket(&warm, held(&client, &warm).await?.token)).await?;
    }
    let brief = leased(exclusive(&name)?, Duration::from_secs(2));
    let first = held(&client, &brief).await?;
    // Nobody renews it. The answer to its removal, of it and the node of the name, is late.
    link.arm(Trigger { pattern: b"-lock-0000000000".to_vec(), nth: 1, act: Act::HoldReply });
    link.struck().await;
    eventually("the lock is free", async || Ok(other.inspect(&name).await?.holders.is_empty().then_some(())))
        .await?;
    let again = leased(brief.clone(), long);
    let second = eventually("it joins again", async || Ok(held(&client, &again).await.ok())).await?;
    ensure!(second.token > first.token, "another entry");
    // The removal is sent again within this time.
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        ensure_eq!(other.inspect(&name).await?.holders.len(), 1, "who holds it for a minute");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    link.let_go();
    let answer = other.acquire(&trying(exclusive(&name)?)).await?;
    ensure!(matches!(answer, Standing::Busy(_)), "two hold: {answer:?}");
    Ok(())
}

/// Who comes while a session is opened waits for it, and who comes as it stands takes it: a class never has two of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_who_come_at_once_share_a_session() -> Verdict {
    const CALLERS: u32 = 64;
    let (_server, counter, url) = counted().await?;
    let client = open(&url).await?;
    let (name, mut taken) = (name("shared")?, 1);
    for round in 0..40_u32 {
        // Each of a class of its own.
        let request =
            leased(exclusive(&name)?, Duration::from_secs(1).mul_f64(1.2_f64.powi(round.try_into()?)));
        let mut callers = tokio::task::JoinSet::new();
        for caller in 0..CALLERS {
            let (client, request) = (Arc::clone(&client), leased(trying(exclusive(&name)?), request.lease));
            callers.spawn(async move {
                // They come one after the other, the last of them when it stands.
                for _ in 0..caller * 20 {
                    tokio::task::yield_now().await;
                }
                let answer = client.acquire(&request).await;
                client.release(&request.ticket()).await.and(answer)
            });
        }
        for answer in callers.join_all().await {
            answer?;
        }
        taken += 1;
        ensure_eq!(counter.counts().connections(), taken, "sessions after round {round}");
    }
    Ok(())
}

/// Who asks again under the id of an entry that has lapsed, and is not taken out yet, joins after that is gone.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_has_lapsed_is_not_forgotten() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    // What has lapsed is looked for every quarter of a second.
    let client = open(&format!("zk://{}/own?tick=2s", server.address())).await?;
    let clock = BootClock;
    for round in 0..3 {
        let request = leased(exclusive(&name(&format!("lapsed-{round}"))?)?, Duration::from_secs(4));
        held(&client, &request).await?;
        let ends = clock.now() + request.lease;
        eventually("its end", async || Ok((clock.now() > ends).then_some(()))).await?;
        let again = eventually("an answer", async || Ok(client.acquire(&request).await.ok())).await?;
        ensure!(matches!(again, Standing::Held(_)), "round {round}: it waits behind itself: {again:?}");
    }
    Ok(())
}

/// A server that stalls while a try reads the line, for less than a session lives: the try holds, and for its whole lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_try_outlives_a_moment_without_an_answer() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let client = open(&url(&server)).await?;
    let name = name("shared")?;
    let shared = || Ok::<_, Stop>(leased(request(&name, Mode::Shared)?, Duration::from_secs(10)));
    let holder = shared()?;
    held(&client, &holder).await?;
    // By now it knows that there is a line.
    let before = shared()?;
    held(&client, &before).await?;
    let mut request = shared()?;
    request.queue = false;
    server.process.pause(true)?;
    let (tried, resumed) = join!(client.acquire(&request), async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        server.process.pause(false)
    });
    resumed?;
    let grant = expect!(tried, Ok(Standing::Held(grant)) => grant, "a try");
    ensure!(grant.lease >= request.lease, "{:?} of {:?}", grant.lease, request.lease);
    Ok(())
}

/// Servers that are away for a while, and come back long before the lease is over: the driver, which pauses twice as long after each
/// round of tries, is back in time.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_that_is_shorter_than_the_lease_costs_no_lock() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let link = Link::new();
    let proxy = Proxy::start(server.address(), &link).await?;
    let locks = Locks::builder(open(&format!("zk://{}/own?tick=200ms", proxy.address())).await?).build()?;
    let guard = locks.mutex("kept")?.ttl(Duration::from_secs(60))?.acquire().await?;
    link.set(Fault::Reset);
    // Of the 54 s until its deadline.
    tokio::time::sleep(Duration::from_secs(45)).await;
    link.heal();
    guard.renewed(guard.deadline()).await.context("a lock is lost")?;
    Ok(())
}

/// What was asked for without a connection, and given up, is not sent when there is one again: otherwise servers are asked for the more
/// the longer they were away, and joins that nobody waits for take locks.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_given_up_is_not_sent_later() -> Verdict {
    const ROUNDS: u64 = 8;
    let server = ZkServer::start(Setup::default()).await?;
    let link = Link::new();
    let counter = Counter::start(server.address(), "/own")?;
    let proxy = Proxy::start(counter.address(), &link).await?;
    let client = open(&format!("zk://{}/own?tick=200ms&request_timeout=500ms", proxy.address())).await?;
    let lease = Duration::from_secs(600);
    let kept = leased(exclusive(&name("kept")?)?, lease);
    let token = held(&client, &kept).await?.token;
    link.set(Fault::Reset);
    eventually("it is cut off", async || Ok((counter.counts().connections() == 0).then_some(()))).await?;
    for _ in 0..ROUNDS {
        let tried = client.acquire(&leased(trying(exclusive(&name("tried")?)?), lease)).await;
        expect!(tried, Err(_) => (), "a join");
        let renewed = client.renew(&[renewal(&kept, token)]).await;
        ensure!(renewed.iter().all(Result::is_err), "a renewal: {renewed:?}");
    }
    let before = counter.counts().requests();
    link.heal();
    let renewed = async || Ok(client.renew(&[renewal(&kept, token)]).await.pop().and_then(Result::ok));
    expect!(eventually("a renewal", renewed).await?, Renewed::Held(_) => (), "what is held");
    let sent = quiet(&counter).await? - before;
    ensure!(sent < ROUNDS, "{sent} requests when the connection was back");
    let line = raw(&server).await?.list_children("/own/tried").await;
    ensure!(line.as_ref().map_or(true, Vec::is_empty), "who holds what nobody waits for: {line:?}");
    Ok(())
}
