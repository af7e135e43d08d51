//! What servers limit: the length of a record, connections, watches.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use onelock_conformance::ctx::{exclusive, held, leased, name, renew, renewal, request, ticket, waiting};
use onelock_conformance::faults::{Fault, Link, Proxy};
use onelock_conformance::servers::zookeeper::{Setup, ZkServer};
use onelock_conformance::verdict::{Context as _, Verdict};
use onelock_conformance::{ensure, ensure_eq, expect};
use onelock_core::{Backend, ErrorKind, LockName, Mode, Renewed, Request, Standing, Ticket, Wake};

use crate::support::counter::Counter;
use crate::support::harness::open;
use crate::{eventually, quiet, url};

const LEASE: Duration = Duration::from_secs(600);

/// Takes all of these names, a few hundred at a time.
async fn take(client: &Arc<dyn Backend>, names: &[LockName]) -> Verdict<Vec<Ticket>> {
    let mut tickets = Vec::new();
    for names in names.chunks(512) {
        let requests: Vec<Request> =
            names.iter().map(|name| Ok(leased(exclusive(name)?, LEASE))).collect::<Verdict<_>>()?;
        let standings = join_all(requests.iter().map(|request| client.acquire(request))).await;
        for (request, standing) in requests.iter().zip(standings) {
            let grant = expect!(standing?, Standing::Held(grant) => grant, "a free lock");
            tickets.push(ticket(request, grant.token));
        }
    }
    Ok(tickets)
}

/// How many bytes the paths of each session's nodes have.
async fn path_bytes(server: &ZkServer) -> Verdict<Vec<usize>> {
    let (mut sessions, mut ephemerals) = (Vec::new(), false);
    for line in server.word("dump").await?.lines() {
        if line.starts_with("Sessions with Ephemerals") {
            ephemerals = true;
        } else if ephemerals && line.starts_with("0x") {
            sessions.push(0);
        } else if ephemerals && line.trim_start().starts_with('/') {
            *sessions.last_mut().context("a session")? += line.trim().len();
        }
    }
    Ok(sessions)
}

/// The end of a session is one record of the server with the path of every node in it, and a server does not read back a
/// record of two megabytes: it never starts again. A client with more than that keeps its locks in several sessions.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_outlives_the_end_of_a_client_with_thousands_of_long_names() -> Verdict {
    const LOCKS: usize = 8_000;
    let server = ZkServer::start(Setup::default()).await?;
    let client = open(&url(&server)).await?;
    let names: Vec<_> = (0..LOCKS).map(|i| name(&format!("{i:0>250}"))).collect::<Verdict<_>>()?;
    let tickets = take(&client, &names).await?;
    let bytes = path_bytes(&server).await?;
    println!("bytes of paths by session: {bytes:?}");
    ensure!(bytes.iter().sum::<usize>() > 2 << 20, "too few to end a server: {bytes:?}");
    // What is given back makes room.
    for ticket in &tickets[..200] {
        client.release(ticket).await?;
    }
    let before = path_bytes(&server).await?.len();
    take(&client, &names[..200]).await?;
    ensure_eq!(path_bytes(&server).await?.len(), before, "sessions after two hundred others");
    client.close().await?;
    eventually("the client's end", async || Ok(path_bytes(&server).await?.is_empty().then_some(()))).await?;
    server.restart().await.map_err(|error| error.during("the server starts again"))?;
    let client = open(&url(&server)).await?;
    take(&client, &names[..1]).await?;
    ensure!(bytes.iter().all(|bytes| *bytes <= 400_000), "{bytes:?}");
    Ok(())
}

/// A server takes so many connections of an address: who needs one more session is told, and the locks of the others stay.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_connection_costs_no_lock() -> Verdict {
    let lines = vec!["maxClientCnxns=2".to_owned()];
    let server = ZkServer::start(Setup { lines, ..Setup::default() }).await?;
    let client = open(&format!("{}&connect_timeout=2s", url(&server))).await?;
    let first = leased(exclusive(&name("first")?)?, Duration::from_secs(60));
    let token = held(&client, &first).await?.token;
    // Of another class, and so in another session.
    let second = leased(exclusive(&name("second")?)?, LEASE);
    let error = expect!(client.acquire(&second).await, Err(error) => error, "a third connection");
    ensure_eq!(error.kind(), ErrorKind::Unavailable, "a third connection: {error}");
    let kept = renew(&client, renewal(&first, token)).await?;
    expect!(kept, Renewed::Held(_) => (), "the lock that is held");
    client.release(&ticket(&first, token)).await?;
    Ok(())
}

/// A server that takes only short requests is sent short ones: what is held is renewed.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_buffer_of_the_server_loses_no_lock() -> Verdict {
    let defines = vec!["jute.maxbuffer=65536".to_owned()];
    let server = ZkServer::start(Setup { defines, ..Setup::default() }).await?;
    let client = open(&url(&server)).await?;
    let names: Vec<_> = (0..600).map(|i| name(&format!("{i:0>250}"))).collect::<Verdict<_>>()?;
    let tickets = take(&client, &names).await?;
    let due: Vec<_> =
        tickets.into_iter().map(|ticket| onelock_core::Renewal::new(ticket, LEASE, LEASE)).collect();
    for answer in client.renew(&due).await {
        expect!(answer?, Renewed::Held(_) => (), "a lock that is held");
    }
    Ok(())
}

/// Servers with the other manager of watches, which has no persistent ones, serve lines in every mode.
#[tokio::test(flavor = "multi_thread")]
async fn the_optimized_watch_manager_serves_lines() -> Verdict {
    let manager = "org.apache.zookeeper.server.watch.WatchManagerOptimized";
    let defines = vec![format!("zookeeper.watchManagerName={manager}")];
    let server = ZkServer::start(Setup { defines, ..Setup::default() }).await?;
    let clients = [open(&url(&server)).await?, open(&url(&server)).await?];
    for mode in [Mode::Exclusive, Mode::Shared, Mode::permit(1)?] {
        let name = name(&format!("watched-{mode}"))?;
        let first = exclusive(&name)?;
        let mut holds = ticket(&first, held(&clients[0], &first).await?.token);
        let mut line = VecDeque::new();
        for i in 0..24 {
            let client = &clients[i % 2];
            // A writer between two others.
            let request = request(&name, if i % 3 == 2 { Mode::Exclusive } else { mode })?;
            let next = ticket(&request, waiting(client, &request).await?.token);
            let (client, ticket) = (Arc::clone(client), next.clone());
            line.push_back((next, tokio::spawn(async move { client.wait(&ticket).await })));
        }
        while let Some((next, wait)) = line.pop_front() {
            clients[line.len() % 2].release(&holds).await?;
            let wake = tokio::time::timeout(Duration::from_secs(30), wait).await???;
            ensure_eq!(Some(wake), next.token.map(Wake::Held), "mode {mode}, {} behind", line.len());
            holds = next;
        }
        clients[0].release(&holds).await?;
    }
    Ok(())
}

/// A connection that breaks is made again, however much its client waits for: watches that do not fit into one request of the driver
/// end it each time.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_many_watches_comes_back() -> Verdict {
    const WAITERS: usize = 450;
    let server = ZkServer::start(Setup::default()).await?;
    let link = Link::new();
    let counter = Counter::start(server.address(), "/own")?;
    let proxy = Proxy::start(counter.address(), &link).await?;
    let client = open(&format!("zk://{}/own?tick=200ms&request_timeout=2s", proxy.address())).await?;
    let other = open(&url(&server)).await?;
    let name = name(&format!("{:0>250}", "watched"))?;
    held(&other, &leased(exclusive(&name)?, LEASE)).await?;
    let (mut due, mut waits) = (Vec::new(), tokio::task::JoinSet::new());
    for _ in 0..WAITERS {
        let request = leased(exclusive(&name)?, LEASE);
        let ticket = ticket(&request, waiting(&client, &request).await?.token);
        due.push(onelock_core::Renewal::new(ticket.clone(), LEASE, LEASE));
        let client = Arc::clone(&client);
        waits.spawn(async move { client.wait(&ticket).await });
    }
    quiet(&counter).await?;
    link.set(Fault::Reset);
    eventually("it is cut off", async || Ok((counter.counts().connections() == 0).then_some(()))).await?;
    link.heal();
    let renewed = async || {
        let answers = client.renew(&due).await;
        Ok(answers.iter().all(|answer| matches!(answer, Ok(Renewed::Waiting(_)))).then_some(()))
    };
    eventually("all wait on", renewed).await?;
    ensure!(waits.try_join_next().is_none(), "nobody is told");
    Ok(())
}
