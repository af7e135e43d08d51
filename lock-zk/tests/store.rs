//! What is this store's own, on real ZooKeeper servers.

mod support;

use std::sync::Arc;
use std::time::Duration;

use lock_conformance::ctx::{
    exclusive, held, leased, name, renew, renewal, request, ticket, trying, waiting,
};
use lock_conformance::faults::{Fault, Link, Proxy};
use lock_conformance::verdict::{Context as _, Stop, Verdict};
use lock_conformance::{ensure, ensure_eq, expect};
use lock_core::line::Line;
use lock_core::{
    Backend, ErrorKind, FencingToken, LockName, Mode, Release, Renewed, Request, Standing, Timestamp, Wake,
};
use zookeeper_client as zk;

use lock_conformance::servers::zookeeper::{Setup, ZkServer};
use support::counter::Counter;
use support::harness::open;

type Client = Arc<dyn Backend>;

/// A server, and a counter before it.
async fn counted() -> Verdict<(ZkServer, Counter, String)> {
    let server = ZkServer::start(Setup::default()).await?;
    let counter = Counter::start(server.address(), "/own")?;
    let url = format!("zk://{}/own?tick=200ms", counter.address());
    Ok((server, counter, url))
}

fn url(server: &ZkServer) -> String {
    format!("zk://{}/own?tick=200ms", server.address())
}

async fn raw(server: &ZkServer) -> Verdict<zk::Client> {
    let connector = zk::Client::connector().with_session_timeout(Duration::from_secs(20));
    Ok(connector.connect(&server.address().to_string()).await?)
}

/// Polls until `probe` gives something.
async fn eventually<T>(what: &str, mut probe: impl AsyncFnMut() -> Verdict<Option<T>>) -> Verdict<T> {
    let polling = async {
        loop {
            if let Some(found) = probe().await? {
                return Ok(found);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), polling).await.context(what)?
}

/// A cycle on a free lock is one request each way, by a queued acquire and by a try, and nothing stays behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_free_lock_costs_two_requests() -> Verdict {
    const MULTI: i32 = 14;
    let (server, counter, url) = counted().await?;
    let client: Client = open(&url).await?;
    let name = name("free")?;
    let admin = raw(&server).await?;
    for round in 0..41 {
        let before = counter.counts().by_code();
        let mut request = exclusive(&name)?;
        request.queue = round % 2 == 0;
        let grant = held(&client, &request).await?;
        client.release(&ticket(&request, grant.token)).await?;
        ensure!(admin.check_stat("/own/free").await?.is_none(), "the node of the name is left");
        if round > 0 {
            let mut expected = before;
            *expected.entry(MULTI).or_default() += 2;
            ensure_eq!(counter.counts().by_code(), expected, "requests by code");
        }
    }
    Ok(())
}

/// A hundred releases with two hundred waiters on two clients: each wakes the one it promotes, with the grant, and nobody
/// else; the others send nothing.
#[tokio::test(flavor = "multi_thread")]
async fn releases_wake_only_the_promoted() -> Verdict {
    let (_server, counter, url) = counted().await?;
    let clients = [open(&url).await?, open(&url).await?];
    for mode in [Mode::Exclusive, Mode::permit(2)?] {
        let name = name(&format!("herd-{mode}"))?;
        let mut line = Vec::new();
        let mut tasks = tokio::task::JoinSet::new();
        let (told, mut woken) = tokio::sync::mpsc::unbounded_channel();
        let holders = if mode == Mode::Exclusive { 1 } else { 2 };
        for i in 0..200 + holders {
            let (client, request) = (Arc::clone(&clients[i % 2]), request(&name, mode)?);
            if i < holders {
                let token = held(&client, &request).await?.token;
                line.push((client, ticket(&request, token)));
                continue;
            }
            let ticket = ticket(&request, waiting(&client, &request).await?.token);
            line.push((Arc::clone(&client), ticket.clone()));
            let told = told.clone();
            tasks.spawn(async move { told.send((i, client.wait(&ticket).await)).is_ok() });
        }
        // Every waiter sets its watch: then it is quiet.
        let settled = async || {
            let before = counter.counts().requests();
            tokio::time::sleep(Duration::from_millis(300)).await;
            Ok((counter.counts().requests() == before).then_some(before))
        };
        let before = eventually("quiet", settled).await?;
        for i in 0..100 {
            let (client, ticket) = &line[i];
            client.release(ticket).await?;
            let next = tokio::time::timeout(Duration::from_secs(30), woken.recv()).await?;
            let (who, wake) = next.context("a waiter")?;
            let promoted = i + holders;
            ensure_eq!(who, promoted, "who is woken by release {i}");
            ensure_eq!(wake?, Wake::Held(line[promoted].1.token.context("a token")?), "release {i}");
        }
        let cost = eventually("quiet", settled).await? - before;
        ensure!(woken.try_recv().is_err(), "somebody else was woken in mode {mode}");
        // The release, the look of the one that is told, and one more where the line moves faster than watches are set.
        // For permits also its mark, and the look and the watch of the one behind it, which is the first now.
        let most = if mode == Mode::Exclusive { 3 } else { 8 } * 100;
        println!("{cost} requests for 100 releases in mode {mode}");
        ensure!(cost <= most, "{cost} requests for 100 releases in mode {mode}");
        tasks.abort_all();
    }
    Ok(())
}

/// Nothing has been asked for a while.
async fn quiet(counter: &Counter) -> Verdict<u64> {
    let settled = async || {
        let before = counter.counts().requests();
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok((counter.counts().requests() == before).then_some(before))
    };
    eventually("quiet", settled).await
}

/// A lock that is always waited for costs three requests for each owner: create and list, and delete. What a waiter has to
/// know it is told.
#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_costs_three_requests() -> Verdict {
    const DELETE: i32 = 2;
    const CHILDREN: i32 = 12;
    const CREATE: i32 = 15;
    const ROUNDS: usize = 40;
    let (_server, counter, url) = counted().await?;
    let clients = [open(&url).await?, open(&url).await?, open(&url).await?];
    for mode in [Mode::Exclusive, Mode::Shared] {
        let name = name(&format!("hot-{mode}"))?;
        // Readers are waited for by writers, and so the other way round.
        let modes = [Mode::Exclusive, mode, Mode::Exclusive];
        let mut line = std::collections::VecDeque::new();
        for (client, mode) in clients.iter().zip(modes) {
            let request = request(&name, mode)?;
            let answer = client.acquire(&request).await?;
            let token = match answer {
                Standing::Held(grant) => grant.token,
                Standing::Waiting(place) => place.token,
                Standing::Busy(_) => return Err(Stop::failed("busy")),
            };
            line.push_back((client, mode, ticket(&request, token)));
        }
        let mut before = counter.counts().by_code();
        for round in 0..ROUNDS + 9 {
            if round == 9 {
                // By now each client follows the line.
                before = counter.counts().by_code();
            }
            let (client, mode, first) = line.pop_front().context("the first")?;
            client.release(&first).await?;
            let (next, _, second) = line.front().context("the second")?;
            let wake = tokio::time::timeout(Duration::from_secs(30), next.wait(second)).await??;
            ensure_eq!(Some(wake), second.token.map(Wake::Held), "round {round} in mode {mode}");
            let request = request(&name, mode)?;
            let token = waiting(client, &request).await?.token;
            line.push_back((client, mode, ticket(&request, token)));
        }
        let mut cost = counter.counts().by_code();
        cost.iter_mut().for_each(|(code, count)| *count -= before.get(code).copied().unwrap_or_default());
        cost.retain(|_, count| *count > 0);
        let each = u64::try_from(ROUNDS).unwrap();
        let wanted = [(DELETE, each), (CHILDREN, each), (CREATE, each)];
        ensure_eq!(cost, wanted.into(), "requests by code for {ROUNDS} owners in mode {mode}");
        for (client, _, ticket) in line {
            client.release(&ticket).await?;
        }
    }
    Ok(())
}

/// A waiter that follows the line is not told when one ahead leaves who never held, nor looks then; it is told by the
/// departure that leaves nobody ahead.
#[tokio::test(flavor = "multi_thread")]
async fn who_gives_up_waiting_promotes_nobody() -> Verdict {
    let (_server, counter, url) = counted().await?;
    let (first, last) = (open(&url).await?, open(&url).await?);
    let name = name("given-up")?;
    let mut ahead = Vec::new();
    for _ in 0..4 {
        let request = exclusive(&name)?;
        first.acquire(&request).await?;
        ahead.push(request.ticket());
    }
    let request = exclusive(&name)?;
    let own = ticket(&request, waiting(&last, &request).await?.token);
    let mut told = tokio::spawn({
        let (last, own) = (Arc::clone(&last), own.clone());
        async move { last.wait(&own).await }
    });
    let mut asked = quiet(&counter).await?;
    for at in [3, 1, 2] {
        first.release(&ahead[at]).await?;
        let now = quiet(&counter).await?;
        ensure_eq!(now - asked, 1, "requests when number {at} gave up");
        ensure!(!told.is_finished(), "told when number {at} gave up");
        asked = now;
    }
    first.release(&ahead[0]).await?;
    let wake = tokio::time::timeout(Duration::from_secs(30), &mut told).await???;
    ensure_eq!(Some(wake), own.token.map(Wake::Held), "the last departure");
    Ok(())
}

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

/// Random requests of several clients, and the specification of a line beside it.
#[tokio::test(flavor = "multi_thread")]
async fn lines_follow_the_specification() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let clients = [open(&url(&server)).await?, open(&url(&server)).await?, open(&url(&server)).await?];
    let mut rng = lock_conformance::rng::Rng::new(0x5eed);
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
                    Standing::Waiting(place) => Some(place.token),
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
            let tokens =
                |views: &[lock_core::EntryView]| views.iter().map(|v| (v.token, v.mode)).collect::<Vec<_>>();
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

/// Curator's `InterProcessMutex`, as its sources do it: who is the first by what follows the last `lock-` holds.
struct Curator {
    client: zk::Client,
    parent: String,
}

impl Curator {
    async fn acquire(&self, id: u32) -> Verdict<String> {
        let prefix = format!("{}/_c_{id:08x}-1111-2222-3333-444444444444-lock-", self.parent);
        let node = loop {
            let sequential = zk::CreateMode::EphemeralSequential.with_acls(zk::Acls::anyone_all());
            match self.client.create(&prefix, b"10.0.0.1", &sequential).await {
                Ok((_, sequence)) => break format!("{prefix}{sequence}"),
                Err(zk::Error::NoNode) => {
                    let container = zk::CreateMode::Container.with_acls(zk::Acls::anyone_all());
                    self.client.mkdir(&self.parent, &container).await?;
                }
                Err(error) => return Err(error.into()),
            }
        };
        loop {
            let mut children = self.client.list_children(&self.parent).await?;
            let key =
                |child: &str| child.rfind("lock-").map_or(child.to_owned(), |at| child[at + 5..].to_owned());
            children.sort_by_key(|child| key(child));
            let own = node.rsplit('/').next().context("a name")?;
            let at = children.iter().position(|child| child == own).context("the own node")?;
            if at == 0 {
                return Ok(node);
            }
            let before = format!("{}/{}", self.parent, children[at - 1]);
            match self.client.get_and_watch_data(&before).await {
                Ok((.., watcher)) => drop(watcher.changed().await),
                Err(zk::Error::NoNode) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Nobody else is inside.
async fn work(inside: &std::sync::atomic::AtomicU32) -> Verdict {
    use std::sync::atomic::Ordering::SeqCst;
    ensure_eq!(inside.fetch_add(1, SeqCst), 0, "others inside");
    tokio::task::yield_now().await;
    inside.fetch_sub(1, SeqCst);
    Ok(())
}

/// A Java service with Curator's mutex and this store exclude each other on a plain name, and both get their turns.
#[tokio::test(flavor = "multi_thread")]
async fn curator_and_we_exclude_each_other() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let inside = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let mut tasks = tokio::task::JoinSet::<Verdict<u32>>::new();
    for task in 0..3_u32 {
        let (client, shared) = (raw(&server).await?, Arc::clone(&inside));
        let curator = Curator { client, parent: "/own/both".into() };
        tasks.spawn(async move {
            for round in 0..40 {
                let node = curator.acquire(task * 1000 + round).await?;
                work(&shared).await?;
                curator.client.delete(&node, None).await?;
            }
            Ok(40)
        });
        let (locks, inside) =
            (lock_core::Locks::builder(open(&url(&server)).await?).build()?, Arc::clone(&inside));
        tasks.spawn(async move {
            for round in 0..40 {
                let lock = locks.mutex("both")?;
                let guard = if round % 4 == 3 {
                    let Some(guard) = lock.try_acquire().await? else { continue };
                    guard
                } else {
                    lock.acquire().await?
                };
                work(&inside).await?;
                guard.release().await?;
            }
            Ok(0)
        });
    }
    let mut served = 0;
    while let Some(done) = tasks.join_next().await {
        served += done??;
    }
    ensure_eq!(served, 120, "turns of the others");
    // A reader of ours waits for theirs as well.
    let curator = Curator { client: raw(&server).await?, parent: "/own/both".into() };
    let theirs = curator.acquire(9_999).await?;
    let client = open(&url(&server)).await?;
    let reader = request(&name("both")?, Mode::Shared)?;
    let place = waiting(&client, &reader).await?;
    let line = client.inspect(&name("both")?).await?;
    ensure_eq!(line.holders[0].note.as_str(), "10.0.0.1", "their note");
    curator.client.delete(&theirs, None).await?;
    let wake = client.wait(&ticket(&reader, place.token)).await?;
    ensure_eq!(wake, Wake::Held(place.token), "the reader's turn");
    Ok(())
}

/// With a password everything is made for one user, and another is told which path it may not touch.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_belong_to_their_user() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let at = |user: &str, path: &str| format!("zk://{user}@{}/{path}?tick=200ms", server.address());
    let owner = open(&at("me:secret-of-mine", "vault")).await?;
    let lock = name("gold")?;
    let request = exclusive(&lock)?;
    let grant = held(&owner, &request).await?;
    let stranger = raw(&server).await?;
    for path in ["/vault", "/vault/gold"] {
        let error = expect!(stranger.list_children(path).await, Err(error) => error, "a stranger");
        ensure_eq!(error, zk::Error::NoAuth, "a stranger at {path}");
    }
    let error = expect!(open(&at("me:other-secret", "vault")).await, Err(error) => error, "a wrong password");
    ensure_eq!(error.kind(), ErrorKind::Denied, "a wrong password");
    ensure!(error.to_string().contains("/vault"), "which path: {error}");
    // Below a node that others may read but not write.
    let read_only = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_read());
    stranger.create("/shown", b"", &read_only).await?;
    let guest = open(&at("me:secret-of-mine", "shown")).await?;
    let error = expect!(guest.acquire(&exclusive(&lock)?).await, Err(error) => error, "no right to create");
    ensure_eq!(error.kind(), ErrorKind::Denied, "no right to create");
    ensure!(error.to_string().contains("/shown/gold"), "which path: {error}");
    let error =
        expect!(guest.acquire(&trying(exclusive(&lock)?)).await, Err(error) => error, "no right to create");
    ensure_eq!(error.kind(), ErrorKind::Denied, "a try without the right");
    ensure_eq!(owner.release(&ticket(&request, grant.token)).await?, Release::Released, "the owner");
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
    let client = open(&format!("zk://{}/own?tick=200ms&request_timeout=300ms", proxy.address())).await?;
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
