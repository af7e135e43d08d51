//! What waiting costs, in requests and bytes, as the line grows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::server::Member;
use onelock_conformance::ctx::{PATIENCE, exclusive, held, leased, name, renewal, request, ticket, waiting};
use onelock_conformance::faults::{Fault, Link, Proxy};
use onelock_conformance::harness::open_by;
use onelock_conformance::{Verdict, ensure};
use onelock_core::{Backend, Mode, Renewed, Wake};
use onelock_etcd::DRIVER;

/// What the server has received from clients and sent to them: messages in, bytes both ways.
async fn traffic(server: &Member) -> Verdict<(f64, f64)> {
    let messages: u64 = server.received().await?.into_iter().map(|(_, count)| count).sum();
    let bytes =
        ["etcd_network_client_grpc_received_bytes_total", "etcd_network_client_grpc_sent_bytes_total"];
    let metrics = server.metrics().await?;
    let counted = metrics.iter().filter(|(name, _)| bytes.contains(&&name[..])).map(|(_, count)| count);
    #[allow(clippy::cast_precision_loss, reason = "a small count")]
    Ok((messages as f64, counted.sum()))
}

/// A waiter's renewal, each by itself as if each had a client of its own, costs the same in a line of 50, 200 and 800.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiters_renewal_costs_the_same_in_any_line() -> Verdict {
    const CLIENTS: usize = 8;
    let server = Member::single(None).await?;
    let mut clients: Vec<Arc<dyn Backend>> = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(open_by(&DRIVER, &server.url()).await?);
    }
    for (mode, sizes) in [("x", &[50_u32, 200, 800][..]), ("s", &[50, 200]), ("p2", &[50, 200])] {
        let mode: Mode = mode.parse()?;
        let mut costs = Vec::new();
        for size in sizes {
            let name = name(&format!("line-{mode}-{size}"))?;
            // Permits wait for permits, the others for whoever is exclusive.
            let first = if matches!(mode, Mode::Permit { .. }) { mode } else { Mode::Exclusive };
            for _ in 0..if first == mode && first != Mode::Exclusive { 2 } else { 1 } {
                held(&clients[0], &request(&name, first)?).await?;
            }
            let mut due = Vec::new();
            for i in 0..*size {
                let (client, asked) = (&clients[i as usize % CLIENTS], request(&name, mode)?);
                due.push((client, renewal(&asked, waiting(client, &asked).await?.token)));
            }
            let mut cost = (f64::INFINITY, f64::INFINITY);
            // From the second round on each knows whom it waits for. Now and then a client also looks for entries on its leases
            // that it does not know, which belongs to no renewal: the cheapest round has none of that.
            for round in 0..4 {
                let before = traffic(&server).await?;
                for (client, renewal) in &due {
                    let answer = client.renew(std::slice::from_ref(renewal)).await.remove(0)?;
                    assert!(matches!(answer, Renewed::Waiting(_)), "{answer:?}");
                }
                let after = traffic(&server).await?;
                let each = |count: f64| count / f64::from(*size);
                if round > 0 {
                    cost = (cost.0.min(each(after.0 - before.0)), cost.1.min(each(after.1 - before.1)));
                }
            }
            println!("{mode}, a line of {size}: {:.2} requests, {:.0} bytes each", cost.0, cost.1);
            costs.push(cost);
        }
        let (least, most) = (costs.first().unwrap(), costs.last().unwrap());
        assert!(most.0 <= 2.5, "{mode}: {} requests each", most.0);
        assert!(most.1 <= least.1 * 1.25, "{mode}: {} bytes each, {} in the shortest line", most.1, least.1);
    }
    Ok(())
}

/// Three hundred readers are told at once that their writer is gone: their client asks for a part of them at a time, so that a
/// slow server answers those in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_is_told_at_once_reads_in_turn() -> Verdict {
    const CROWD: usize = 300;
    let server = Member::single(None).await?;
    let (direct, link) = (open_by(&DRIVER, &server.url()).await?, Link::new());
    let proxy = Proxy::start(server.address(), &link).await?;
    let client = open_by(&DRIVER, &format!("etcd://{}?request_timeout=60s", proxy.address())).await?;
    let name = name("told")?;
    let lease = Duration::from_secs(60);
    let writer = leased(exclusive(&name)?, lease);
    let token = held(&direct, &writer).await?.token;
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..CROWD {
        let asked = leased(request(&name, Mode::Shared)?, lease);
        let place = waiting(&client, &asked).await?;
        let (client, own) = (Arc::clone(&client), ticket(&asked, place.token));
        readers.spawn(async move { client.wait(&own).await });
    }
    let before = quiet(&server).await?;
    // Late enough that what has been asked when the first answer is due was asked at once.
    link.set(Fault::DelayReplies(Duration::from_secs(3)));
    direct.release(&ticket(&writer, token)).await?;
    let end = Instant::now() + PATIENCE;
    // The release is not a transaction.
    while transactions(&server).await? == before {
        ensure!(Instant::now() < end, "nobody was told");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    link.set(Fault::StallReplies);
    let at_once = quiet(&server).await? - before;
    println!("{at_once} readings at once");
    ensure!((64..=128).contains(&at_once), "{at_once} readings at once");
    link.heal();
    for woken in readers.join_all().await {
        ensure!(matches!(woken?, Wake::Held(_)), "a reader does not hold");
    }
    let all = transactions(&server).await? - before;
    ensure!(all <= 2 * CROWD as u64, "{all} readings");
    Ok(())
}

async fn transactions(server: &Member) -> Verdict<u64> {
    let received = server.received().await?.into_iter();
    Ok(received.filter(|(method, _)| method == "Txn").map(|(_, count)| count).sum())
}

/// How many transactions the server has received when no more come.
pub(crate) async fn quiet(server: &Member) -> Verdict<u64> {
    let (mut count, mut same) = (transactions(server).await?, 0);
    while same < 10 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = transactions(server).await?;
        same = if now == count { same + 1 } else { 0 };
        count = now;
    }
    Ok(count)
}
