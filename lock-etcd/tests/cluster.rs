//! Three members, and what happens to one: killed, frozen; and one server's restarts, compactions, sessions, certificates.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::server::{Admin as _, Member, cluster, three};
use crate::support::waits;
use etcd_client::PutOptions;
use onelock_conformance::Verdict;
use onelock_conformance::churn::{Churn, over_a_lost_majority};
use onelock_conformance::ctx::{PATIENCE, exclusive, held, leased, name, number, renewal, ticket, waiting};
use onelock_conformance::faults::{Fault, Link, Proxy};
use onelock_conformance::harness::open_by;
use onelock_conformance::servers::hosts::{Hosts, is_inside};
use onelock_conformance::servers::{Place, data_folder, free_port, tls};
use onelock_core::{Backend, ErrorKind, Locks, Release, Renewed, Request, Settings, Wake};
use onelock_etcd::DRIVER;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tokio::task::JoinSet;
use tokio::time::timeout;

async fn client(url: &str) -> Arc<dyn Backend> {
    open_by(&DRIVER, url).await.unwrap()
}

fn url_of(members: &[Member]) -> String {
    let hosts: Vec<_> = members.iter().map(|member| member.address().to_string()).collect();
    format!("etcd://{}?request_timeout=3s&connect_timeout=1s", hosts.join(","))
}

pub(crate) async fn leader(members: &[Member]) -> Verdict<usize> {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        for (i, member) in members.iter().enumerate() {
            let status = member.admin().await?.maintenance_client().status().await?;
            let own = status.header().map_or(0, etcd_client::ResponseHeader::member_id);
            if status.leader() == own {
                return Ok(i);
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("nobody leads");
}

fn with_ttl(backend: Arc<dyn Backend>, ttl: Duration) -> Verdict<Locks> {
    let mut settings = Settings::default();
    (settings.ttl, settings.waiter_lease) = (ttl, ttl);
    Ok(Locks::builder(backend).settings(settings).build()?)
}

/// Three clients that take locks again and again, and keep some.
pub(crate) async fn churn(members: &[Member], names: &str, seed: u64) -> Verdict<Churn> {
    let url = url_of(members);
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(with_ttl(client(&url).await, Duration::from_secs(30))?);
    }
    Churn::start(clients, names, seed).await
}

/// Clients take locks again and again while the leader is killed and comes back, and then a follower: nobody holds
/// beside another, no guard is lost, and every client goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_churn_over_every_failover() -> Verdict {
    let members = three().await?;
    let churn = churn(&members, "churn", 7).await?;
    churn.goes_on(30, PATIENCE).await?;
    for round in 0..2 {
        let dead = leader(&members).await?;
        members[dead].process.kill()?;
        churn.goes_on(30, PATIENCE * 2).await?;
        members[dead].restart().await?;
        churn.goes_on(30, PATIENCE).await?;
        let follower = (leader(&members).await? + 1 + round) % 3;
        members[follower].restart().await?;
        churn.goes_on(30, PATIENCE).await?;
    }
    let report = churn.stop().await?;
    report.check()?;
    println!("{} holds, {} lost, errors {:?}", report.holds.len(), report.lost, report.errors);
    assert_eq!((report.kept, report.kept_lost), (3, 0), "guards kept over two elections");
    Ok(())
}

/// A leader that the others do not hear any more, while clients still reach it: nobody gets anything from it, and all go on
/// at the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_isolated_leader_gives_nothing() -> Verdict {
    if !is_inside("an_isolated_leader_gives_nothing")? {
        return Ok(());
    }
    let hosts = Hosts::lay_out(3)?;
    let peer = free_port()?;
    let places: Vec<_> = (0..3).map(|i| (hosts.name(i), hosts.address(i), peer)).collect();
    let members = cluster(&places).await?;
    let url = url_of(&members);
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(with_ttl(client(&url).await, Duration::from_secs(30))?);
    }
    let churn = Churn::start(clients, "isolated", 11).await?;
    churn.goes_on(30, PATIENCE).await?;
    for _ in 0..2 {
        let cut = leader(&members).await?;
        hosts.isolate(u8::try_from(cut)?, true)?;
        churn.goes_on(30, PATIENCE * 2).await?;
        let rest: Vec<_> =
            members.iter().enumerate().filter(|(i, _)| *i != cut).map(|(_, member)| member).collect();
        assert!(one_leads(&rest).await?, "the others have not elected: the cut did nothing");
        hosts.isolate(u8::try_from(cut)?, false)?;
        churn.goes_on(30, PATIENCE).await?;
    }
    let report = churn.stop().await?;
    report.check()?;
    println!("{} holds, {} lost, errors {:?}", report.holds.len(), report.lost, report.errors);
    assert_eq!((report.kept, report.kept_lost), (3, 0), "guards kept over two elections");
    Ok(())
}

/// Whether one of these members believes that it leads.
async fn one_leads(members: &[&Member]) -> Verdict<bool> {
    for member in members {
        let status = member.admin().await?.maintenance_client().status().await?;
        if status.header().is_some_and(|header| header.member_id() == status.leader()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Two of three members are gone for longer than a lease, and come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_nobody_holds() -> Verdict {
    let members = three().await?;
    let url = url_of(&members);
    let ttl = Duration::from_secs(4);
    let (holder, other) = (with_ttl(client(&url).await, ttl)?, with_ttl(client(&url).await, PATIENCE)?);
    let gone = [leader(&members).await?, (leader(&members).await? + 1) % 3];
    let lose = async || gone.iter().try_for_each(|member| members[*member].process.kill());
    // A member is ready when it has a majority: both are started before either is waited for.
    let regain = async || {
        let back = gone.map(|member| members[member].restart());
        futures_util::future::try_join_all(back).await.map(|_| ())
    };
    over_a_lost_majority((&holder, &other), lose, regain).await
}

/// A member that has stopped answering is left: held locks are renewed elsewhere, waiters are woken elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_member_is_left() -> Verdict {
    let members = three().await?;
    let url = url_of(&members);
    for (i, member) in members.iter().enumerate() {
        // Begins at the member that will freeze.
        let locks = with_ttl(client(&url).await, Duration::from_secs(9))?;
        let other = with_ttl(client(&url).await, Duration::from_secs(9))?;
        let name = format!("frozen-{i}");
        let held = locks.mutex(&name)?.acquire().await?;
        let waiter = tokio::spawn({
            let lock = other.mutex(&name)?;
            async move { lock.acquire().await }
        });
        until_waiting(&locks, &name).await?;
        member.process.pause(true)?;
        let mut deadline = held.deadline();
        for _ in 0..2 {
            let moved =
                timeout(PATIENCE, held.renewed(deadline)).await?.expect("held over the frozen member");
            assert!(moved > deadline);
            deadline = moved;
        }
        held.release().await?;
        let guard = timeout(PATIENCE, waiter).await???;
        assert!(guard.is_held());
        guard.release().await?;
        member.process.pause(false)?;
    }
    Ok(())
}

async fn until_waiting(locks: &Locks, name: &str) -> Verdict {
    let end = Instant::now() + PATIENCE;
    while locks.inspect(name).await?.waiters.is_empty() {
        assert!(Instant::now() < end, "nobody waits");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// A waiter is woken after the server came back, and after the revision it joined at was compacted.
#[tokio::test]
async fn waiters_survive_restarts_and_compactions() -> Verdict {
    let server = Member::single(None).await?;
    let (a, b) = (client(&server.url()).await, client(&server.url()).await);
    for restart in [false, true] {
        let name = name(&format!("survives-{restart}"))?;
        let first = exclusive(&name)?;
        let token = held(&a, &first).await?.token;
        let second = exclusive(&name)?;
        let place = waiting(&b, &second).await?;
        let (waiter, wanted) = (Arc::clone(&b), ticket(&second, place.token));
        let woken = tokio::spawn(async move {
            loop {
                match waiter.wait(&wanted).await {
                    Ok(Wake::Held(token)) => return Ok(token),
                    Ok(Wake::Ask) => {}
                    Err(error) if error.is_retryable() => {}
                    Err(error) => return Err(error),
                }
                // As the client above does.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let mut admin = server.admin().await?;
        for i in 0..20 {
            admin.put("noise", i.to_string(), None).await?;
        }
        let revision = admin.get("noise", None).await?.header().map_or(0, |header| header.revision());
        admin.compact(revision, None).await?;
        if restart {
            server.restart().await?;
        }
        let end = Instant::now() + PATIENCE;
        while a.release(&ticket(&first, token)).await.is_err() {
            assert!(Instant::now() < end, "the server does not come back");
        }
        assert_eq!(timeout(PATIENCE, woken).await???, place.token.unwrap());
    }
    Ok(())
}

/// A session of the server's that ended is renewed behind every verb, waiting included.
#[tokio::test]
async fn an_expired_session_is_renewed() -> Verdict {
    let server = Member::with(Place::Memory, None, &["--auth-token-ttl=1".to_owned()]).await?;
    server.with_a_user("apps-never-printed").await?;
    let url = format!("etcd://app:apps-never-printed@{}", server.address());
    let (a, b) = (client(&url).await, client(&url).await);
    let name = name("session")?;
    let first = exclusive(&name)?;
    let token = held(&a, &first).await?.token;
    // Long enough for the server to forget both.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let second = exclusive(&name)?;
    let place = waiting(&b, &second).await?;
    assert!(matches!(a.renew(&[renewal(&first, token)]).await.remove(0)?, Renewed::Held(_)));
    let woken = waits(&b, &ticket(&second, place.token));
    tokio::time::sleep(Duration::from_secs(4)).await;
    a.release(&ticket(&first, token)).await?;
    assert_eq!(timeout(PATIENCE, woken).await???, Wake::Held(place.token.unwrap()));
    // A watch that has to be opened again by a client whose session is over: nobody used the first for a while.
    let third = exclusive(&name)?;
    let next = waiting(&a, &third).await?;
    tokio::time::sleep(Duration::from_secs(17)).await;
    let woken = waits(&a, &ticket(&third, next.token));
    b.release(&ticket(&second, place.token)).await?;
    assert_eq!(timeout(PATIENCE, woken).await???, Wake::Held(number(next)?));
    Ok(())
}

/// A server that asks for a client's certificate gets it, and refuses who has none.
#[tokio::test]
async fn client_certificates_are_shown() -> Verdict {
    let folder = data_folder()?;
    let files = tls::authority(folder.path(), "server", "localhost")?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let authority = params.self_signed(&key)?;
    let issuer = Issuer::new(params, key);
    let client_key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&client_key, &issuer)?;
    let file = |name: &str| folder.path().join(name);
    std::fs::write(file("clients.pem"), authority.pem())?;
    std::fs::write(file("cert.pem"), certificate.pem())?;
    std::fs::write(file("key.pem"), client_key.serialize_pem())?;
    let trusted = format!("--trusted-ca-file={}", file("clients.pem").display());
    let asks = ["--client-cert-auth".to_owned(), trusted];
    let server = Member::with(Place::Memory, Some(&files), &asks).await?;
    let url = format!("etcds://localhost:{}?tls_ca={}", server.port(), files.authority.display());
    let (cert, key) = (file("cert.pem"), file("key.pem"));
    let backend = client(&format!("{url}&tls_cert={}&tls_key={}", cert.display(), key.display())).await;
    held(&backend, &exclusive(&name("certified")?)?).await?;
    let without = format!("{url}&connect_timeout=1s&request_timeout=1s");
    let error = open_by(&DRIVER, &without).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error}");
    let missing =
        open_by(&DRIVER, &format!("{without}&tls_cert=/no/such&tls_key=/no/such")).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::InvalidConfig, "{missing}");
    Ok(())
}

/// What a join that was given up still makes is taken out, though its lease is kept alive by others; nobody joins that lease any
/// more, and it ends after the last entry on it.
#[tokio::test]
async fn an_unclear_join_closes_its_lease() -> Verdict {
    let server = Member::single(None).await?;
    let link = Link::new();
    let proxy = Proxy::start(server.address(), &link).await?;
    let backend = client(&format!("etcd://{}?request_timeout=400ms", proxy.address())).await;
    let asked = |text: &str| -> Verdict<_> { Ok(leased(exclusive(&name(text)?)?, Duration::from_secs(10))) };
    let request = asked("living")?;
    let token = held(&backend, &request).await?.token;
    let key = |request: &Request| format!("onelock/{}/{}", request.name, request.holder.to_hex());
    let mut admin = server.admin().await?;
    let before = admin.get(key(&request), None).await?.kvs()[0].lease();

    link.set(Fault::StallRequests);
    let late = asked("late")?;
    let error = backend.acquire(&late).await.unwrap_err();
    assert!(error.is_unclear(), "{error}");
    link.heal();

    let end = Instant::now() + PATIENCE;
    while !matches!(backend.renew(&[renewal(&request, token)]).await.remove(0), Ok(Renewed::Held(_))) {
        assert!(Instant::now() < end, "the link does not heal");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let kv = admin.get(key(&request), None).await?.kvs()[0].clone();
    assert_eq!((kv.lease(), kv.create_revision()), (before, token.get()), "it has moved");
    let next = asked("next")?;
    held(&backend, &next).await?;
    assert_ne!(
        admin.get(key(&next), None).await?.kvs()[0].lease(),
        before,
        "a new entry joins the closed lease"
    );
    // An entry of the late one may come at any time.
    admin.put(key(&late), "", Some(PutOptions::new().with_lease(before))).await?;
    while admin.get(key(&late), None).await?.count() > 0 {
        assert!(Instant::now() < end, "what came late stays");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    backend.release(&ticket(&request, token)).await?;
    while admin.lease_client().time_to_live(before, None).await?.ttl() >= 0 {
        assert!(Instant::now() < end, "the lease stays");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// The lead is handed from member to member, as when they are restarted one after the other: no request fails by it in a way that
/// a retry would not mend.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lead_that_is_handed_on_refuses_nobody() -> Verdict {
    let members = three().await?;
    let (stop, mut work, mut ids) = (Arc::new(AtomicBool::new(false)), JoinSet::new(), Vec::new());
    let done = Arc::new(AtomicUsize::new(0));
    for (at, member) in members.iter().enumerate() {
        let status = member.admin().await?.maintenance_client().status().await?;
        ids.push(status.header().map_or(0, etcd_client::ResponseHeader::member_id));
        let backend = client(&format!("{}?request_timeout=3s", member.url())).await;
        for task in 0..16 {
            let (backend, stop, done) = (Arc::clone(&backend), Arc::clone(&stop), Arc::clone(&done));
            let name = name(&format!("{at}-{task}"))?;
            work.spawn(async move {
                let mut errors = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let asked = exclusive(&name)?;
                    errors.extend(backend.acquire(&asked).await.err());
                    match backend.release(&asked.ticket()).await {
                        Ok(Release::Released) => drop(done.fetch_add(1, Ordering::Relaxed)),
                        other => errors.extend(other.err()),
                    }
                }
                Verdict::Ok(errors)
            });
        }
    }
    for _ in 0..30 {
        let leads = leader(&members).await?;
        let next = ids[(leads + 1) % members.len()];
        members[leads].admin().await?.maintenance_client().move_leader(next).await?;
    }
    let (before, end) = (done.load(Ordering::Relaxed), Instant::now() + PATIENCE);
    while done.load(Ordering::Relaxed) < before + 1000 {
        assert!(Instant::now() < end, "the work does not go on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut errors = Vec::new();
    while let Some(ended) = work.join_next().await {
        errors.extend(ended??);
    }
    let hopeless: Vec<_> =
        errors.iter().filter(|error| !error.is_retryable()).map(ToString::to_string).collect();
    assert!(hopeless.is_empty(), "{} of {}: {}", hopeless.len(), errors.len(), hopeless[0]);
    Ok(())
}
