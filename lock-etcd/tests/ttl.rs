//! Locks of different lengths on one client.

use std::time::{Duration, Instant};

use crate::support::server::{Admin as _, Member};
use etcd_client::GetOptions;
use onelock_conformance::Verdict;
use onelock_conformance::ctx::PATIENCE;
use onelock_conformance::faults::{Fault, Link, Proxy};
use onelock_conformance::harness::open_by;
use onelock_conformance::servers::Place;
use onelock_core::{Guard, Locks};
use onelock_etcd::DRIVER;

async fn client(url: &str) -> Verdict<Locks> {
    Ok(Locks::builder(open_by(&DRIVER, url).await?).build()?)
}

/// What the server gave to the lease that the guard's entry is on.
async fn granted(server: &Member, guard: &Guard) -> Verdict<Duration> {
    let mut admin = server.admin().await?;
    let line = GetOptions::new().with_prefix();
    let entry = admin.get(format!("onelock/{}/", guard.name()), Some(line)).await?;
    let lease = admin.lease_client().time_to_live(entry.kvs()[0].lease(), None).await?;
    Ok(Duration::from_secs(u64::try_from(lease.granted_ttl())?))
}

/// A lease for each length, none shorter than what was asked for, and the guard says what it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lengths_share_leases() -> Verdict {
    let server = Member::single(None).await?;
    let locks = client(&server.url()).await?;
    let mut guards = Vec::new();
    for (i, (asked, given)) in
        [(2_000, 2), (2_001, 3), (2_500, 3), (10_000, 10), (10_000, 10), (60_000, 60)].into_iter().enumerate()
    {
        let asked = Duration::from_millis(asked);
        let guard = locks.mutex(format!("ttl-{i}"))?.ttl(asked)?.acquire().await?;
        assert_eq!(guard.ttl(), Duration::from_secs(given), "asked for {asked:?}");
        assert!(granted(&server, &guard).await? >= guard.ttl(), "asked for {asked:?}");
        guards.push(guard);
    }
    let leases = server.admin().await?.lease_client().leases().await?.leases().len();
    assert_eq!(leases, 4, "leases for six locks of four lengths");
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}

/// A server that gives longer leases than it is asked for: the guard says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_longer_lease_is_told() -> Verdict {
    let slow = ["--heartbeat-interval=500", "--election-timeout=5000"].map(str::to_owned);
    let server = Member::with(Place::Memory, None, &slow).await?;
    let locks = client(&server.url()).await?;
    let guard = locks.mutex("slow")?.ttl(Duration::from_secs(2))?.acquire().await?;
    // One and a half times the election timeout, rounded up, less the second that clocks may differ by.
    let given = granted(&server, &guard).await?;
    assert_eq!(given, Duration::from_secs(8));
    assert_eq!(guard.ttl(), given - Duration::from_secs(1));
    guard.release().await?;
    Ok(())
}

/// A client that is cut off: each of its locks is kept for its own length at least, and the short one does not wait for
/// the long one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_lock_ends_by_its_own_length() -> Verdict {
    let server = Member::single(None).await?;
    let link = Link::new();
    let proxy = Proxy::start(server.address(), &link).await?;
    let locks = client(&format!("etcd://{}?request_timeout=1s", proxy.address())).await?;
    let other = client(&server.url()).await?;
    let (two, hour) = (Duration::from_secs(2), Duration::from_secs(3_600));
    let short = locks.mutex("short")?.ttl(two)?.acquire().await?;
    let long = locks.mutex("long")?.ttl(hour)?.acquire().await?;
    assert_eq!((short.ttl(), long.ttl()), (two, hour));
    short.renewed(short.deadline()).await.expect("held before the cut");
    link.set(Fault::Stall);
    let began = Instant::now();
    while !other.inspect("short").await?.holders.is_empty() {
        assert!(began.elapsed() < PATIENCE, "the short one does not end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The deadline is nine tenths of the length, less a little, after the last renewal was sent.
    assert!(other.clock().now() >= short.deadline() + two / 10, "the short one ended before its time");
    assert!(!short.is_held() && long.is_held());
    assert_eq!(other.inspect("long").await?.holders.len(), 1, "the long one in the store");
    link.heal();
    long.release().await?;
    Ok(())
}
