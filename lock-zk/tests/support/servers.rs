//! Three servers together.

use std::net::Ipv4Addr;
use std::sync::Arc;

use onelock_conformance::faults::{Link, Proxy};
use onelock_conformance::servers::free_port;
use onelock_conformance::servers::hosts::Hosts;
use onelock_conformance::servers::zookeeper::{Setup, ZkServer};
use onelock_conformance::verdict::{Stop, Verdict};

/// Where a member finds the others: their addresses, and their ports of the quorum and of the elections.
type View = Vec<(Ipv4Addr, u16, u16)>;

fn view() -> Verdict<View> {
    (0..3).map(|_| Ok((Ipv4Addr::LOCALHOST, free_port()?, free_port()?))).collect()
}

/// A member that is not ready yet. It is left when it lags by so many ticks.
fn member(id: u32, lag: u32, view: &View, setup: Setup) -> Verdict<ZkServer> {
    let all = ["initLimit=50".to_owned(), format!("syncLimit={lag}"), "standaloneEnabled=false".to_owned()];
    let server = |(i, (host, quorum, election)): (usize, &(Ipv4Addr, u16, u16))| {
        format!("server.{}={host}:{quorum}:{election}", i + 1)
    };
    let lines = all.into_iter().chain(view.iter().enumerate().map(server)).collect();
    ZkServer::begin(Setup { lines, id, ..setup })
}

/// A member on this host that may lag for twenty seconds.
fn patient(id: u32, view: &View) -> Verdict<ZkServer> {
    member(id, 100, view, Setup::default())
}

async fn all_ready(servers: Vec<ZkServer>) -> Verdict<Vec<ZkServer>> {
    for server in &servers {
        server.ready().await?;
    }
    Ok(servers)
}

/// An ensemble of three.
///
/// # Errors
/// When it is not installed, or does not come up.
pub(crate) async fn ensemble() -> Verdict<Vec<ZkServer>> {
    let view = view()?;
    all_ready(vec![patient(1, &view)?, patient(2, &view)?, patient(3, &view)?]).await
}

/// An ensemble of three on hosts of their own. A leader that hears nothing from the others for three seconds steps down,
/// and they elect another as soon.
///
/// # Errors
/// When it is not installed, or does not come up.
pub(crate) async fn ensemble_across(hosts: &Hosts) -> Verdict<Vec<ZkServer>> {
    let (quorum, election) = (free_port()?, free_port()?);
    let view = (0..3).map(|i| (hosts.address(i), quorum, election)).collect();
    let on = |i: u8| {
        // Who is cut off answers nothing: the default waits five seconds for it in the middle of an election.
        let defines = vec!["zookeeper.cnxTimeout=500".to_owned()];
        let host = Some((hosts.name(i), hosts.address(i)));
        member(u32::from(i) + 1, 15, &view, Setup { defines, host, ..Setup::default() })
    };
    all_ready(vec![on(0)?, on(1)?, on(2)?]).await
}

/// An ensemble of three whose last member is a follower that reaches its leader by `link` only.
///
/// # Errors
/// When it is not installed, or does not come up.
pub(crate) async fn ensemble_on(link: &Arc<Link>) -> Verdict<(Vec<ZkServer>, Vec<Proxy>)> {
    let view = view()?;
    // These two elect one of them before the third comes.
    let mut servers = all_ready(vec![patient(1, &view)?, patient(2, &view)?]).await?;
    let (mut proxies, mut far) = (Vec::new(), view.clone());
    for (host, quorum, _) in &mut far[..2] {
        let proxy = Proxy::start((*host, *quorum).into(), link).await?;
        *quorum = proxy.address().port();
        proxies.push(proxy);
    }
    servers.push(patient(3, &far)?);
    servers[2].ready().await?;
    if servers[2].mode().await.as_deref() != Some("follower") {
        return Err(Stop::failed("the last member is no follower"));
    }
    Ok((servers, proxies))
}
