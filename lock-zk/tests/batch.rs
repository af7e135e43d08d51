//! Writes of many tasks that share requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, join_all};
use futures_util::poll;
use onelock_conformance::ctx::{PATIENCE, exclusive, held, leased, name, ticket, waiting};
use onelock_conformance::faults::{Act, Link, Proxy, Trigger};
use onelock_conformance::servers::zookeeper::{Setup, ZkServer};
use onelock_conformance::verdict::{Context as _, Stop, Verdict};
use onelock_conformance::{ensure, ensure_eq};
use onelock_core::{Backend, Request, Standing, Ticket, Wake};

use crate::support::counter::Counter;
use crate::support::harness::{EPOCH, open};
use crate::{counted, eventually, raw, url};

const MULTI: i32 = 14;

/// All are in one session, and outlast a busy machine without a renewal.
const LEASE: Duration = Duration::from_secs(600);

fn requests(count: usize) -> Verdict<Vec<Request>> {
    (0..count).map(|i| Ok(leased(exclusive(&name(&format!("n{i}"))?)?, LEASE))).collect()
}

/// Acquires all at once, as tasks that run before anything is answered. Where the answer is lost it asks again.
async fn acquire_all(client: &Arc<dyn Backend>, requests: &[Request]) -> Vec<onelock_core::Result<Standing>> {
    let end = Instant::now() + PATIENCE;
    let acquire = async |request: &Request| loop {
        match client.acquire(request).await {
            Err(error) if error.is_unclear() && Instant::now() < end => {}
            answer => return answer,
        }
    };
    join_all(requests.iter().map(acquire)).await
}

fn tickets(
    requests: &[Request],
    standings: Vec<onelock_core::Result<Standing>>,
) -> Verdict<Vec<(bool, Ticket)>> {
    let standings = requests.iter().zip(standings);
    standings
        .map(|(request, standing)| match standing? {
            Standing::Held(grant) => Ok((true, ticket(request, grant.token))),
            Standing::Waiting(place) => Ok((false, ticket(request, place.token))),
            Standing::Busy(_) => Err(Stop::failed("busy")),
        })
        .collect()
}

/// A server, a client that has its session, and so many requests.
async fn with_a_session(count: usize) -> Verdict<(ZkServer, Arc<dyn Backend>, Vec<Request>)> {
    let server = ZkServer::start(Setup::default()).await?;
    let client = open(&url(&server)).await?;
    held(&client, &leased(exclusive(&name("first")?)?, LEASE)).await?;
    Ok((server, client, requests(count)?))
}

/// The joins of these requests, the first `polled` of which were asked once.
async fn begun<'a>(
    client: &'a Arc<dyn Backend>,
    requests: &'a [Request],
    polled: usize,
) -> Verdict<Vec<BoxFuture<'a, onelock_core::Result<Standing>>>> {
    let mut joins: Vec<_> = requests.iter().map(|request| client.acquire(request)).collect();
    for join in &mut joins[..polled] {
        ensure!(poll!(join).is_pending(), "nothing is answered yet");
    }
    Ok(joins)
}

fn multis(counter: &Counter) -> u64 {
    counter.counts().by_code().get(&MULTI).copied().unwrap_or_default()
}

/// The names that have a node.
async fn nodes(server: &ZkServer) -> Verdict<Vec<String>> {
    let mut nodes = raw(server).await?.list_children("/own").await?;
    nodes.retain(|node| node != EPOCH);
    Ok(nodes)
}

/// Two hundred names that are taken at once, and given back at once: eight requests go by themselves each way, and the
/// others carry 32 writes. Each gets its own answer.
#[tokio::test]
async fn many_names_share_requests() -> Verdict {
    let (server, counter, url) = counted().await?;
    let client = open(&url).await?;
    let first = leased(exclusive(&name("first")?)?, LEASE);
    let token = held(&client, &first).await?.token;
    client.release(&ticket(&first, token)).await?;
    let requests = requests(200)?;
    let before = multis(&counter);
    let tickets = tickets(&requests, acquire_all(&client, &requests).await)?;
    ensure!(tickets.iter().all(|(held, _)| *held), "all are free");
    let joins = multis(&counter) - before;
    ensure!(joins <= 20, "{joins} requests that join");
    let admin = raw(&server).await?;
    for (_, ticket) in &tickets {
        let path = format!("/own/{}", ticket.name.encoded());
        let children = admin.list_children(&path).await?;
        let [node] = &children[..] else { return Err(Stop::failed(format!("{path} has {children:?}"))) };
        let (data, stat) = admin.get_data(&format!("{path}/{node}")).await?;
        ensure_eq!(Some(stat.czxid), ticket.token.map(|token| token.get()), "the token of {path}");
        ensure!(data.starts_with(b"onelock/1 x"), "the data of {path}");
    }
    for (_, again) in &tickets {
        let twin = exclusive(&again.name)?;
        let place = waiting(&client, &twin).await?;
        ensure!(place.token > again.token, "the token of who comes next in {}", again.name);
        client.release(&ticket(&twin, place.token)).await?;
    }
    let before = multis(&counter);
    for released in join_all(tickets.iter().map(|(_, ticket)| client.release(ticket))).await {
        ensure_eq!(released?, onelock_core::Release::Released, "a release");
    }
    let leaves = multis(&counter) - before;
    ensure!(leaves <= 20, "{leaves} requests that leave");
    ensure_eq!(nodes(&server).await?, Vec::<String>::new(), "what is left");
    Ok(())
}

/// Some names are taken, and some are waited for: joins and releases that cannot be done as they were sent do not keep
/// the others of their request, and get what is theirs.
#[tokio::test]
async fn what_cannot_be_done_stops_nobody_else() -> Verdict {
    let (server, counter, counted) = counted().await?;
    let (client, other) = (open(&counted).await?, open(&url(&server)).await?);
    let requests = requests(150)?;
    for round in 0..3 {
        let mut theirs = Vec::new();
        for request in requests.iter().skip(20).step_by(40) {
            let request = leased(exclusive(&request.name)?, LEASE);
            theirs.push(ticket(&request, held(&other, &request).await?.token));
        }
        let tickets = tickets(&requests, acquire_all(&client, &requests).await)?;
        for (i, (held, ticket)) in tickets.iter().enumerate() {
            ensure_eq!(*held, i % 40 != 20, "round {round}: {}", ticket.name);
        }
        for ticket in &theirs {
            other.release(ticket).await?;
        }
        for (_, ticket) in tickets.iter().filter(|(held, _)| !held) {
            let wake = tokio::time::timeout(Duration::from_secs(30), client.wait(ticket)).await??;
            ensure_eq!(Some(wake), ticket.token.map(Wake::Held), "round {round}: {}", ticket.name);
        }
        let mut next = Vec::new();
        for (_, ours) in tickets.iter().skip(30).step_by(30) {
            let request = exclusive(&ours.name)?;
            next.push(ticket(&request, waiting(&other, &request).await?.token));
        }
        for released in join_all(tickets.iter().map(|(_, ticket)| client.release(ticket))).await {
            ensure_eq!(released?, onelock_core::Release::Released, "round {round}: a release");
        }
        for ticket in &next {
            let wake = tokio::time::timeout(Duration::from_secs(30), other.wait(ticket)).await??;
            ensure_eq!(Some(wake), ticket.token.map(Wake::Held), "round {round}: {}", ticket.name);
            other.release(ticket).await?;
        }
        eventually("nothing is left", async || Ok(nodes(&server).await?.is_empty().then_some(()))).await?;
    }
    // Where nothing can be done as it was sent each goes by itself, and later ones go together again.
    let theirs = tickets(&requests, acquire_all(&other, &requests).await)?;
    let ours = requests.iter().map(|request| Ok(leased(exclusive(&request.name)?, LEASE)));
    let ours = ours.collect::<Verdict<Vec<_>>>()?;
    let ours = tickets(&ours, acquire_all(&client, &ours).await)?;
    for (client, tickets) in [(&other, theirs), (&client, ours)] {
        for released in join_all(tickets.iter().map(|(_, ticket)| client.release(ticket))).await {
            released?;
        }
    }
    eventually("nothing is left", async || Ok(nodes(&server).await?.is_empty().then_some(()))).await?;
    let mut cost = 0;
    for _ in 0..3 {
        let before = multis(&counter);
        let tickets = tickets(&requests, acquire_all(&client, &requests).await)?;
        for released in join_all(tickets.iter().map(|(_, ticket)| client.release(ticket))).await {
            ensure_eq!(released?, onelock_core::Release::Released, "a release");
        }
        cost = multis(&counter) - before;
    }
    ensure!(cost <= 40, "{cost} requests for 150 joins and releases");
    Ok(())
}

/// Joins that are dropped after they were sent, and while they wait to be sent, leave nothing when their leases are over,
/// and keep nobody else.
#[tokio::test]
async fn joins_that_nobody_waits_for_leave_nothing() -> Verdict {
    const SHORT: Duration = Duration::from_secs(1);
    let (server, client, mut requests) = with_a_session(150).await?;
    held(&client, &leased(exclusive(&name("second")?)?, SHORT)).await?;
    for request in &mut requests[..140] {
        *request = leased(request.clone(), SHORT);
    }
    let mut joins = begun(&client, &requests, requests.len()).await?;
    let mut kept = joins.split_off(140);
    drop(joins);
    // They do not depend on those that are gone.
    for join in kept.drain(..) {
        let standing =
            tokio::time::timeout(Duration::from_secs(30), join).await.context("a join that is left")?;
        ensure!(matches!(standing?, Standing::Held(_)), "a join that is left");
    }
    let left = async || {
        let nodes = nodes(&server).await?;
        Ok((nodes.len() == 11).then_some(()))
    };
    eventually("only those that were waited for are left", left).await
}

/// A join that is sent and then left alone, neither dropped nor asked again, keeps nobody from going on.
#[tokio::test]
async fn joins_that_stall_hold_nobody_up() -> Verdict {
    let (_server, client, requests) = with_a_session(150).await?;
    let mut joins = begun(&client, &requests, 20).await?;
    let moving = joins.split_off(20);
    let standings =
        tokio::time::timeout(Duration::from_secs(30), join_all(moving)).await.context("the others")?;
    ensure_eq!(tickets(&requests[20..], standings)?.len(), 130, "the others");
    Ok(())
}

/// A connection that breaks under a request that many share, before the server has it or before its answer is back: each
/// finds out for itself what became of its own write.
#[tokio::test]
async fn a_lost_answer_is_resolved_by_each() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let link = Link::new();
    let proxy = Proxy::start(server.address(), &link).await?;
    let client = open(&format!("zk://{}/own?tick=200ms&request_timeout=5s", proxy.address())).await?;
    held(&client, &leased(exclusive(&name("first")?)?, LEASE)).await?;
    let requests = requests(100)?;
    for act in [Act::LoseReply, Act::Reset] {
        // The fiftieth name is one that many share a request with.
        let trap = |nth| link.arm(Trigger { pattern: b"/own/n50/".to_vec(), nth, act });
        trap(1);
        let tickets = tickets(&requests, acquire_all(&client, &requests).await)?;
        link.struck().await;
        ensure!(tickets.iter().all(|(held, _)| *held), "{act:?}: all are free");
        for (_, ticket) in &tickets {
            let path = format!("/own/{}", ticket.name.encoded());
            ensure_eq!(
                raw(&server).await?.list_children(&path).await?.len(),
                1,
                "{act:?}: entries in {path}"
            );
        }
        trap(1);
        let released = join_all(tickets.iter().map(|(_, ticket)| client.release(ticket))).await;
        link.struck().await;
        for ((_, ticket), released) in tickets.iter().zip(released) {
            match released {
                Ok(_) => {}
                Err(error) if error.is_unclear() => {
                    client.release(ticket).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        // The server removes the node of a name whose holder did not learn that it had made it.
        let left = async || Ok((nodes(&server).await? == ["first"]).then_some(()));
        eventually("only what is held is left", left).await?;
    }
    Ok(())
}
