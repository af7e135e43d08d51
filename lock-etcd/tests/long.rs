//! A long line: how few are notified, and that nobody who waits far behind is lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::server::{Admin as _, Member};
use crate::support::waits;
use onelock_conformance::Verdict;
use onelock_conformance::ctx::{PATIENCE, exclusive, held, leased, name, number, request, ticket, waiting};
use onelock_conformance::faults::{Fault, Link, Proxy};
use onelock_conformance::harness::open_by;
use onelock_conformance::rng::Rng;
use onelock_core::{Backend, LockName, Release, Result, Ticket, Wake};
use onelock_etcd::DRIVER;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How many are ahead of the waiter that is far behind.
const AHEAD: usize = 30;

async fn client(url: &str) -> Arc<dyn Backend> {
    open_by(&DRIVER, url).await.unwrap()
}

/// How many events the server has sent to all its watches.
async fn events(server: &Member) -> Verdict<f64> {
    let metrics = server.metrics().await?;
    let count = metrics.iter().find(|(name, _)| name == "etcd_debugging_mvcc_events_total");
    Ok(count.expect("it counts events").1)
}

async fn requests(server: &Member, method: &str) -> Verdict<u64> {
    Ok(server.received().await?.iter().find(|(name, _)| name == method).map_or(0, |(_, count)| *count))
}

/// Forty clients take one lock in turn, again and again: each hand-over notifies the next and nobody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_in_a_long_line_notifies_one() -> Verdict {
    const CLIENTS: usize = 40;
    let server = Member::single(None).await?;
    let name = name("long")?;
    let mut line = std::collections::VecDeque::new();
    for i in 0..CLIENTS {
        let (backend, request) = (client(&server.url()).await, exclusive(&name)?);
        let token = match i {
            0 => held(&backend, &request).await?.token,
            _ => number(waiting(&backend, &request).await?)?,
        };
        let ticket = ticket(&request, token);
        let wait = (i > 0).then(|| waits(&backend, &ticket));
        line.push_back((backend, ticket, wait));
    }
    let mut before = (0.0, 0, 0);
    let hand_overs = 4 * CLIENTS;
    for i in 0..CLIENTS + hand_overs {
        if i == CLIENTS {
            before =
                (events(&server).await?, requests(&server, "Txn").await?, requests(&server, "Watch").await?);
        }
        let (backend, done, _) = line.pop_front().unwrap();
        backend.release(&done).await?;
        let (_, next, wait) = line.front_mut().unwrap();
        assert_eq!(timeout(PATIENCE, wait.take().unwrap()).await???, Wake::Held(next.token.unwrap()));
        let again = exclusive(&name)?;
        let again = ticket(&again, waiting(&backend, &again).await?.token);
        let wait = Some(waits(&backend, &again));
        line.push_back((backend, again, wait));
    }
    let each = |count: f64| count / hand_overs as f64;
    let told = each(events(&server).await? - before.0);
    let reads = each((requests(&server, "Txn").await? - before.1) as f64);
    let watches = each((requests(&server, "Watch").await? - before.2) as f64);
    println!("{told} events, {reads} transactions and {watches} messages about watches for a hand-over");
    assert!(told < 1.1, "{told} events for a hand-over");
    // A join, and two readings; a watch that was opened while something was written is opened and read once more.
    assert!(reads < 3.2, "{reads} transactions");
    assert!(watches < 2.4, "{watches} messages about watches");
    Ok(())
}

/// A client that waits far behind.
struct Behind {
    server: Member,
    name: LockName,
    front: Arc<dyn Backend>,
    /// Those ahead.
    ahead: Vec<Ticket>,
    backend: Arc<dyn Backend>,
    ticket: Ticket,
    wait: JoinHandle<Result<Wake>>,
}

impl Behind {
    /// The last few of those ahead wait by a client of their own, on short leases.
    async fn new(link: &Arc<Link>, short: Option<Duration>) -> Verdict<(Self, Option<Arc<dyn Backend>>)> {
        let server = Member::single(None).await?;
        let proxy = Box::leak(Box::new(Proxy::start(server.address(), link).await?));
        let url = format!("etcd://{}?request_timeout=500ms&connect_timeout=500ms", proxy.address());
        let (front, backend, name) = (client(&server.url()).await, client(&url).await, name("behind")?);
        let other = if short.is_some() { Some(client(&server.url()).await) } else { None };
        let mut ahead = Vec::new();
        for i in 0..AHEAD {
            let request = exclusive(&name)?;
            let (by, request) = match (&other, short) {
                (Some(other), Some(lease)) if i >= AHEAD / 2 => (other, leased(request, lease)),
                _ => (&front, request),
            };
            let token = match i {
                0 => held(by, &request).await?.token,
                _ => number(waiting(by, &request).await?)?,
            };
            ahead.push(ticket(&request, token));
        }
        let request = exclusive(&name)?;
        let ticket = ticket(&request, waiting(&backend, &request).await?.token);
        let wait = waits(&backend, &ticket);
        let behind = Self { server, name, front, ahead, backend, ticket, wait };
        Ok((behind, other))
    }

    /// Ends when who comes and goes at the end of the line is no news to anybody.
    async fn is_far(&self) -> Verdict {
        let end = Instant::now() + PATIENCE;
        loop {
            let before = events(&self.server).await?;
            let request = exclusive(&self.name)?;
            let token = waiting(&self.front, &request).await?.token;
            self.front.release(&ticket(&request, token)).await?;
            if events(&self.server).await? == before {
                return Ok(());
            }
            assert!(Instant::now() < end, "it hears of the end of the line");
        }
    }

    /// Those ahead leave, from the front, who have not left before; then it holds.
    async fn comes_to_hold(self, left: &[usize]) -> Verdict {
        for (i, ticket) in self.ahead.iter().enumerate().filter(|(i, _)| !left.contains(i)) {
            assert!(!self.wait.is_finished(), "told with {} ahead", AHEAD - i);
            self.front.release(ticket).await?;
        }
        assert_eq!(timeout(PATIENCE, self.wait).await???, Wake::Held(self.ticket.token.unwrap()));
        Ok(())
    }
}

/// Every entry that may be the one that is watched is evicted, one after the other, or deleted past us, or leaves: none of
/// them held before it went.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_watched_may_leave_without_holding() -> Verdict {
    for way in 0..3 {
        let (behind, _) = Behind::new(&Link::new(), None).await?;
        behind.is_far().await?;
        let left: Vec<_> = (10..AHEAD).rev().collect();
        for (n, i) in left.iter().enumerate() {
            let ticket = &behind.ahead[*i];
            match way {
                0 => {
                    let evicted = behind.front.evict(&behind.name, ticket.token.unwrap()).await?;
                    assert_eq!(evicted, Release::Released);
                }
                1 => {
                    let key = format!("onelock/behind/{}", ticket.holder.to_hex());
                    behind.server.admin().await?.delete(key, None).await?;
                }
                _ => {
                    behind.front.release(ticket).await?;
                }
            }
            if n == 7 {
                behind.is_far().await?;
            }
        }
        behind.comes_to_hold(&left).await?;
    }
    Ok(())
}

/// The leases of half of those ahead end at once, the watched one among them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_watched_may_die() -> Verdict {
    let (behind, other) = Behind::new(&Link::new(), Some(Duration::from_secs(2))).await?;
    behind.is_far().await?;
    drop(other);
    let end = Instant::now() + PATIENCE;
    while behind.front.inspect(&behind.name).await?.waiters.len() > AHEAD / 2 {
        assert!(Instant::now() < end, "they never end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let left: Vec<_> = (AHEAD / 2..AHEAD).collect();
    behind.comes_to_hold(&left).await
}

/// The connection breaks while nothing but one entry is watched, and that one and all others go meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_connection_hides_no_departure() -> Verdict {
    for all in [false, true] {
        let link = Link::new();
        let (behind, _) = Behind::new(&link, None).await?;
        behind.is_far().await?;
        link.set(Fault::Reset);
        let left: Vec<_> = if all { (0..AHEAD).collect() } else { (AHEAD - 8..AHEAD).collect() };
        for i in &left {
            behind.front.release(&behind.ahead[*i]).await?;
        }
        link.heal();
        behind.comes_to_hold(&left).await?;
    }
    Ok(())
}

/// A waiter that is evicted itself learns it when the one ahead of it goes, and one of the same client further ahead is notified
/// when it holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn not_all_who_wait_are_behind_what_is_watched() -> Verdict {
    let server = Member::single(None).await?;
    let (front, backend, name) = (client(&server.url()).await, client(&server.url()).await, name("early")?);
    let mut line = Vec::new();
    let mut early = None;
    for i in 0..AHEAD {
        // One of those ahead belongs to the client behind, and nobody waits by it yet.
        let by = if i == 3 { &backend } else { &front };
        let request = exclusive(&name)?;
        let token = match i {
            0 => held(by, &request).await?.token,
            _ => number(waiting(by, &request).await?)?,
        };
        line.push((Arc::clone(by), ticket(&request, token)));
        if i == 3 {
            early = Some(ticket(&request, token));
        }
    }
    let own = request(&name, onelock_core::Mode::Exclusive)?;
    let own = ticket(&own, waiting(&backend, &own).await?.token);
    let wait = waits(&backend, &own);
    let behind = Behind {
        server,
        name,
        front,
        ahead: line.iter().map(|(_, ticket)| ticket.clone()).collect(),
        backend,
        ticket: own,
        wait,
    };
    behind.is_far().await?;
    let early = early.unwrap();
    let ahead = waits(&behind.backend, &early);
    behind.front.evict(&behind.name, behind.ticket.token.unwrap()).await?;
    for (by, ticket) in &line {
        if *ticket == early {
            assert_eq!(timeout(PATIENCE, ahead).await???, Wake::Held(early.token.unwrap()));
            break;
        }
        by.release(ticket).await?;
    }
    for (by, ticket) in &line[3..] {
        by.release(ticket).await?;
    }
    assert_eq!(timeout(PATIENCE, behind.wait).await???, Wake::Ask);
    Ok(())
}

/// Clients join in blocks of twenty and anybody leaves at any time, at full speed: each is told when it holds, and not before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_lost_whoever_leaves() -> Verdict {
    let server = Member::single(None).await?;
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let name = name(&format!("leaving-{seed}"))?;
        let mut line = Vec::new();
        for _ in 0..6 {
            let backend = client(&server.url()).await;
            for _ in 0..1 + rng.below(25) {
                let mode = if rng.below(12) == 0 && !line.is_empty() { "s" } else { "x" };
                let request = request(&name, mode.parse()?)?;
                let token = match line.len() {
                    0 => held(&backend, &request).await?.token,
                    _ => number(waiting(&backend, &request).await?)?,
                };
                let ticket = ticket(&request, token);
                let wait = waits(&backend, &ticket);
                line.push((Arc::clone(&backend), ticket, wait));
            }
        }
        while !line.is_empty() {
            let i = if rng.below(3) == 0 { rng.index(line.len()) } else { 0 };
            let (backend, ticket, wait) = line.remove(i);
            if i == 0 {
                // Nobody is ahead.
                let token = ticket.token.unwrap();
                assert_eq!(timeout(PATIENCE, wait).await???, Wake::Held(token), "seed {seed}");
            } else {
                wait.abort();
            }
            backend.release(&ticket).await?;
        }
    }
    Ok(())
}
