//! Lines, and the leases a server carries.

use std::time::Duration;

use onelock_conformance::ctx::{exclusive, held, leased, name, renew, renewal, request, ticket};
use onelock_conformance::servers::zookeeper::{Setup, ZkServer};
use onelock_conformance::verdict::Verdict;
use onelock_conformance::{ensure, ensure_eq, expect};
use onelock_core::line::Line;
use onelock_core::{ErrorKind, FencingToken, LockName, Mode, Release, Renewed, Request, Standing, Timestamp};

use crate::support::harness::open;
use crate::url;

/// Random requests of several clients, and the specification of a line beside it.
#[tokio::test(flavor = "multi_thread")]
async fn lines_follow_the_specification() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let clients = [open(&url(&server)).await?, open(&url(&server)).await?, open(&url(&server)).await?];
    let mut rng = onelock_conformance::rng::Rng::new(0x5eed);
    let modes =
        [Mode::Exclusive, Mode::Shared, Mode::Shared, Mode::permit(2)?, Mode::permit(2)?, Mode::permit(3)?];
    let now = Timestamp::from_origin(Duration::from_secs(1));
    for round in 0..8 {
        let name = name(&format!("spec-{round}"))?;
        let (mut line, mut entries) = (Line::default(), Vec::<(usize, Request, FencingToken)>::new());
        let mut last = 0;
        for step in 0..60 {
            let what = format!("round {round}, step {step}");
            let by = rng.index(clients.len());
            if entries.is_empty() || rng.below(5) < 3 {
                let mut request = request(&name, modes[rng.index(modes.len())])?;
                request.queue = rng.below(3) > 0;
                let answer = clients[by].acquire(&request).await?;
                let token = match answer {
                    Standing::Held(grant) => Some(grant.token),
                    Standing::Waiting(place) => place.token,
                    Standing::Busy(_) => None,
                };
                ensure!(token.is_none_or(|token| token.get() > last), "{what}: {token:?} after {last}");
                last = token.map_or(last, FencingToken::get);
                let wanted =
                    line.acquire(now, &request, || token.unwrap_or(FencingToken::new(i64::MAX).unwrap()));
                let same = matches!(
                    (answer, wanted),
                    (Standing::Held(_), Standing::Held(_))
                        | (Standing::Waiting(_), Standing::Waiting(_))
                        | (Standing::Busy(_), Standing::Busy(_))
                );
                ensure!(same, "{what}: {answer:?}, specified {wanted:?}");
                entries.extend(token.map(|token| (by, request, token)));
            } else {
                let (own, request, token) = entries.remove(rng.index(entries.len()));
                let left = match rng.below(3) {
                    0 => clients[by].evict(&name, token).await?,
                    // By another client, without the number.
                    1 => clients[by].release(&request.ticket()).await?,
                    _ => clients[own].release(&ticket(&request, token)).await?,
                };
                ensure_eq!(left, Release::Released, "{what}");
                ensure!(line.remove(request.holder), "{what}: the specification");
            }
            line.settle(now, &mut Vec::new());
            let seen = clients[by].inspect(&name).await?;
            let (holders, waiters) = line.view(now);
            let tokens = |views: &[onelock_core::EntryView]| {
                views.iter().map(|v| (v.token, v.mode)).collect::<Vec<_>>()
            };
            ensure_eq!(tokens(&seen.holders), tokens(&holders), "{what}: holders");
            ensure_eq!(tokens(&seen.waiters), tokens(&waiters), "{what}: waiters");
            for (own, request, token) in &entries {
                let held = holders.iter().any(|view| view.token == *token);
                let answer = renew(&clients[*own], renewal(request, *token)).await?;
                ensure_eq!(matches!(answer, Renewed::Held(_)), held, "{what}: {answer:?} for {token}");
            }
        }
    }
    Ok(())
}

/// A lease that no session of the server carries is refused by name before anything is created.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_beyond_the_server_is_refused() -> Verdict {
    let lines = vec!["maxSessionTimeout=10000".to_owned()];
    let server = ZkServer::start(Setup { lines, ..Setup::default() }).await?;
    let client = open(&url(&server)).await?;
    let longest = client.capabilities().max_lease;
    ensure_eq!(longest, Duration::from_millis(8_600), "nine tenths of the longest session, less two ticks");
    let mut request = leased(exclusive(&name("long")?)?, longest);
    held(&client, &request).await?;
    client.release(&request.ticket()).await?;
    request.delay = Duration::from_millis(1);
    let error = expect!(client.acquire(&request).await, Err(error) => error, "too long with its delay");
    ensure_eq!(error.kind(), ErrorKind::InvalidLease, "too long with its delay");
    ensure!(client.inspect(&LockName::new("long")?).await?.holders.is_empty(), "something was created");
    Ok(())
}

/// Who asks again for what it holds, with a lease that its session does not carry, is refused, and goes on holding.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_refused_what_it_holds_goes_on_holding() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let client = open(&url(&server)).await?;
    let request = leased(exclusive(&name("twice")?)?, Duration::from_secs(30));
    let token = held(&client, &request).await?.token;
    let longer = leased(request.clone(), Duration::from_secs(600));
    let error = expect!(client.acquire(&longer).await, Err(error) => error, "beyond its session");
    ensure_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let kept = renew(&client, renewal(&request, token)).await?;
    ensure!(matches!(kept, Renewed::Held(_)), "what it holds: {kept:?}");
    Ok(())
}
