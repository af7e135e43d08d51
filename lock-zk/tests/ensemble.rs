//! Three servers: the leader dies, a follower stalls.

use std::sync::Arc;
use std::time::Duration;

use onelock_conformance::churn::{Churn, over_a_lost_majority};
use onelock_conformance::ctx::{PATIENCE, exclusive, held, name, renewal, ticket};
use onelock_conformance::servers::hosts::{Hosts, is_inside};
use onelock_conformance::servers::zookeeper::ZkServer;
use onelock_conformance::verdict::{Context as _, Stop, Verdict};
use onelock_conformance::{ensure, ensure_eq};
use onelock_core::{Backend, Guard, Locks, Page, Release, Settings};
use onelock_zk::fence;
use zookeeper_client as zk;

use crate::raw;
use crate::support::harness::open;
use crate::support::servers::{ensemble, ensemble_across};

fn url(servers: &[ZkServer]) -> String {
    within("2s", servers)
}

fn within(request_timeout: &str, servers: &[ZkServer]) -> String {
    let hosts: Vec<_> = servers.iter().map(|server| server.address().to_string()).collect();
    format!("zk://{}/own?tick=200ms&request_timeout={request_timeout}", hosts.join(","))
}

fn client(backend: Arc<dyn Backend>, lease: Duration) -> Verdict<Locks> {
    let mut settings = Settings::default();
    (settings.ttl, settings.waiter_lease) = (lease, lease);
    Ok(Locks::builder(backend).settings(settings).build()?)
}

async fn leader(servers: &[ZkServer]) -> Verdict<usize> {
    for _ in 0..1_000 {
        for (i, server) in servers.iter().enumerate() {
            if server.mode().await.as_deref() == Some("leader") {
                return Ok(i);
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Err(Stop::failed("no leader"))
}

/// The leader is killed while a lock is held, waited for and churned: the holder keeps it, the waiter its place, nobody
/// holds twice, and numbers go on growing.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_loses_nothing() -> Verdict {
    let servers = ensemble().await?;
    let lease = Duration::from_secs(30);
    let (a, b) = (client(open(&url(&servers)).await?, lease)?, client(open(&url(&servers)).await?, lease)?);
    let guard = a.mutex("kept")?.acquire().await?;
    let before = guard.token()?;
    let waiter = tokio::spawn({
        let lock = b.mutex("kept")?.retry(onelock_core::Retry::default().errors(u32::MAX));
        async move { lock.acquire().await }
    });
    let churn = tokio::spawn({
        let lock = b.mutex("churned")?.retry(onelock_core::Retry::default().errors(u32::MAX));
        async move {
            let mut tokens = Vec::new();
            for _ in 0..400 {
                let guard = lock.acquire().await?;
                tokens.push(guard.token()?);
                // The connection may break just then: the lease or the background frees it.
                drop(guard.release().await);
            }
            onelock_core::Result::<_, onelock_core::Error>::Ok(tokens)
        }
    });
    for round in 0..2 {
        let dead = leader(&servers).await?;
        let seen = guard.deadline();
        servers[dead].process.kill()?;
        let moved = tokio::time::timeout(Duration::from_secs(60), guard.renewed(seen)).await?;
        ensure!(moved.context("the holder lost its lock")? > seen, "round {round}: nothing was renewed");
        ensure!(guard.is_held() && !waiter.is_finished(), "round {round}: two hold");
        servers[dead].launch()?;
        servers[dead].ready().await?;
    }
    ensure_eq!(guard.token()?, before, "the holder's token");
    guard.release().await?;
    let next = tokio::time::timeout(Duration::from_secs(60), waiter).await???;
    ensure!(next.token()? > before, "token {} after {before}", next.token()?);
    let tokens = tokio::time::timeout(Duration::from_secs(120), churn).await???;
    ensure!(tokens.windows(2).all(|two| two[0] < two[1]), "tokens do not grow: {tokens:?}");
    Ok(())
}

/// The leader is cut off from the others, both ways and without a word, while clients still reach all three: what it
/// goes on to answer gives nobody anything, nobody loses a lock, and it is replaced.
#[tokio::test(flavor = "multi_thread")]
async fn an_isolated_leader_gives_nothing() -> Verdict {
    // Its servers take twenty seconds now and then to agree that one of them does not answer, and then serve nobody.
    const ELECTION: Duration = Duration::from_secs(150);
    const LEASE: Duration = Duration::from_secs(330);
    if !is_inside("an_isolated_leader_gives_nothing")? {
        return Ok(());
    }
    let hosts = Hosts::lay_out(3)?;
    let servers = ensemble_across(&hosts).await?;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(client(open(&url(&servers)).await?, LEASE)?);
    }
    let churn = Churn::start(clients, "isolated", 11).await?;
    churn.goes_on(30, PATIENCE).await?;
    let cut = leader(&servers).await?;
    hosts.isolate(u8::try_from(cut)?, true)?;
    churn.goes_on(30, ELECTION).await.map_err(|e| e.during("cut off"))?;
    let mut modes = Vec::new();
    for (_, server) in servers.iter().enumerate().filter(|(i, _)| *i != cut) {
        modes.push(server.mode().await.unwrap_or_default());
    }
    ensure!(modes.iter().any(|mode| mode == "leader"), "the others are {modes:?}: the cut did nothing");
    hosts.isolate(u8::try_from(cut)?, false)?;
    churn.goes_on(30, ELECTION).await.map_err(|e| e.during("healed"))?;
    let report = churn.stop().await?;
    report.check()?;
    println!("{} holds, {} lost, errors {:?}", report.holds.len(), report.lost, report.errors);
    ensure_eq!((report.kept, report.kept_lost), (3, 0), "guards kept over the election");
    Ok(())
}

/// Two of three servers are gone for longer than a lease, and come back.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_nobody_holds() -> Verdict {
    let servers = ensemble().await?;
    let holder = client(open(&url(&servers)).await?, Duration::from_secs(3))?;
    let other = client(open(&url(&servers)).await?, Duration::from_secs(30))?;
    let gone = [leader(&servers).await?, (leader(&servers).await? + 1) % 3];
    let lose = async || gone.iter().try_for_each(|server| servers[*server].process.kill());
    let regain = async || {
        gone.iter().try_for_each(|server| servers[*server].launch())?;
        for server in gone {
            servers[server].ready().await?;
        }
        Ok(())
    };
    over_a_lost_majority((&holder, &other), lose, regain).await
}

/// What one server has answered another one knows, however far behind it is: a try after a release is not busy. Here the
/// leader is behind: it commits one write after the other and lets all reads that have come go first, and they take long.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_lags_is_not_asked_alone() -> Verdict {
    let servers = ensemble().await?;
    let mut clients = Vec::new();
    for server in &servers {
        // As long as the load that is made here may take.
        clients.push(open(&within("30s", std::slice::from_ref(server))).await?);
    }
    let mut others = tokio::task::JoinSet::new();
    let at = leader(&servers).await?;
    let (busy, quick) = (raw(&servers[at]).await?, raw(&servers[(at + 1) % 3]).await?);
    let persistent = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    busy.create("/large", b"", &persistent).await?;
    for thousand in 0..10 {
        let mut children = busy.new_multi_writer();
        for child in 0..1_000 {
            children.add_create(&format!("/large/{thousand}-{child}"), b"", &persistent)?;
        }
        children.commit().await?;
    }
    for _ in 0..2 {
        let busy = busy.clone();
        others.spawn(async move { while busy.list_children("/large").await.is_ok() {} });
    }
    for _ in 0..128 {
        let quick = quick.clone();
        others.spawn(async move { while quick.set_data("/large", b"", None).await.is_ok() {} });
    }
    let name = name("seen")?;
    let locks = client(Arc::clone(&clients[(at + 2) % 3]), Duration::from_secs(30))?;
    let application = raw(&servers[at]).await?;
    for round in 0..100 {
        let (first, second) = (&clients[(at + 2) % 3], &clients[at]);
        let request = exclusive(&name)?;
        let grant = held(first, &request).await?;
        // Another client cannot renew it, and does not take it for lost.
        let other = second.renew(&[renewal(&request, grant.token)]).await.pop().context("an answer")?;
        ensure!(other.is_err(), "round {round}: {other:?}");
        let listed = second.list("seen", &Page::first(1)?).await?;
        ensure_eq!(listed.names.len(), 1, "round {round}: what is listed");
        let line = second.inspect(&name).await?;
        ensure_eq!(
            line.holders.first().map(|view| view.token),
            Some(grant.token),
            "round {round}: who holds"
        );
        ensure_eq!(first.release(&ticket(&request, grant.token)).await?, Release::Released, "round {round}");
        let attempt = onelock_conformance::ctx::trying(exclusive(&name)?);
        let grant = held(second, &attempt).await?;
        ensure_eq!(second.evict(&name, grant.token).await?, Release::Released, "round {round}");
        // The application's own client, too.
        for _ in 0..5 {
            let guard = locks.mutex("fenced")?.acquire().await?;
            fence::Entry::of(&guard, "/own", &application)
                .await
                .map_err(|error| error.during("a held lock"))?;
            guard.release().await?;
        }
    }
    Ok(())
}

/// Clients take locks again and again while the leader is killed and comes back, and then a follower: nobody holds
/// beside another, no guard is lost, and every client goes on.
#[tokio::test(flavor = "multi_thread")]
async fn locks_churn_over_every_failover() -> Verdict {
    let servers = ensemble().await?;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(client(open(&url(&servers)).await?, Duration::from_secs(30))?);
    }
    let churn = Churn::start(clients, "churn", 7).await?;
    churn.goes_on(30, PATIENCE).await?;
    for round in 0..2 {
        let dead = leader(&servers).await?;
        servers[dead].process.kill()?;
        churn.goes_on(30, PATIENCE * 2).await?;
        servers[dead].launch()?;
        servers[dead].ready().await?;
        churn.goes_on(30, PATIENCE).await?;
        let follower = (leader(&servers).await? + 1 + round) % 3;
        servers[follower].restart().await?;
        churn.goes_on(30, PATIENCE).await?;
    }
    let report = churn.stop().await?;
    report.check()?;
    println!("{} holds, {} lost, errors {:?}", report.holds.len(), report.lost, report.errors);
    ensure_eq!(
        (report.kept, report.kept_lost),
        (3, 0),
        "guards kept over two elections: {:?}",
        report.errors
    );
    Ok(())
}

/// A server that does not answer keeps nobody from opening a session at another one, whichever the driver tries first.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stalls_keeps_nobody_out() -> Verdict {
    let servers = ensemble().await?;
    let follower = (leader(&servers).await? + 1) % 3;
    servers[follower].process.pause(true)?;
    let hosts: Vec<_> = servers.iter().map(|server| server.address().to_string()).collect();
    // As long each as by default, compared with the other.
    let url = format!("zk://{}/own?tick=200ms&request_timeout=12s&connect_timeout=12s", hosts.join(","));
    for round in 0..12 {
        open(&url).await.map_err(|error| Stop::failed(format!("round {round}: {error}")))?.close().await?;
    }
    Ok(())
}

/// Thirty clients of these servers, with a lock each.
async fn thirty(servers: &[ZkServer], options: &str, lease: Duration) -> Verdict<Vec<(Guard, Locks)>> {
    let hosts: Vec<_> = servers.iter().map(|server| server.address().to_string()).collect();
    let url = format!("zk://{}/own?tick=200ms{options}", hosts.join(","));
    let mut held = Vec::new();
    for i in 0..30 {
        let locks = client(open(&url).await?, lease)?;
        held.push((locks.mutex(format!("still-{i}"))?.acquire().await?, locks));
    }
    Ok(held)
}

/// Ends when each has been renewed from now on.
async fn stay(held: Vec<(Guard, Locks)>) -> Verdict {
    let mut all = tokio::task::JoinSet::new();
    for (guard, locks) in held {
        all.spawn(async move {
            // The first may have been sent before.
            for _ in 0..2 {
                let lost = || Stop::failed(format!("{}: {:?}", guard.name(), guard.loss()));
                guard.renewed(guard.deadline()).await.ok_or_else(lost)?;
            }
            drop((guard, locks));
            Verdict::Ok(())
        });
    }
    while let Some(kept) = all.join_next().await {
        kept??;
    }
    Ok(())
}

/// Who is on a server that stalls goes on at another one in time, though the driver comes upon the same again.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stalls_costs_no_lock() -> Verdict {
    let servers = ensemble().await?;
    let held = thirty(&servers, "&request_timeout=60s", Duration::from_secs(60)).await?;
    servers[(leader(&servers).await? + 1) % 3].process.pause(true)?;
    stay(held).await
}

/// Connections are replaced that say nothing for a while, as all do while the leader stalls: that costs no lock either.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_stalls_for_a_moment_costs_no_lock() -> Verdict {
    let servers = ensemble().await?;
    let held = thirty(&servers, "", Duration::from_secs(30)).await?;
    let leads = leader(&servers).await?;
    servers[leads].process.pause(true)?;
    tokio::time::sleep(Duration::from_secs(9)).await;
    servers[leads].process.pause(false)?;
    stay(held).await
}
