//! Token epochs: a client that knew a smaller one is refused by its next join.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use futures_util::join;
use onelock_conformance::ctx::{exclusive, held, leased, name, ticket, waiting};
use onelock_conformance::faults::{Act, Fault, Link, Proxy, Trigger};
use onelock_conformance::servers::free_port;
use onelock_conformance::servers::zookeeper::{Setup, ZkServer};
use onelock_conformance::verdict::{Stop, Verdict};
use onelock_conformance::{ensure, ensure_eq, expect};
use onelock_core::{
    Backend, Error, ErrorKind, Lock, LockName, Locks, Release, Request, Settings, Standing, TokenEpoch,
};
use tokio::io::copy;
use tokio::net::{TcpListener, TcpStream};

use crate::support::counter::Counter;
use crate::support::harness::open;
use crate::{backed_up, eventually, raw, restored, url};

fn of(epoch: u16, name: &LockName) -> Verdict<Request> {
    Ok((exclusive(name)?).epoch(TokenEpoch::new(epoch)?))
}

/// It has joined before, so it does not read the epoch again: the server compares it with the new node of a free name, and
/// it reads it behind its new node in a line. Either leaves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_knew_a_smaller_epoch_is_refused() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let (old, new) = (open(&url(&server)).await?, open(&url(&server)).await?);
    let (free, busy) = (name("free")?, name("busy")?);
    let other = open(&url(&server)).await?;
    for round in 0..4_u16 {
        // The holder's epoch is the one that the old client knows.
        let holder = of(round, &busy)?;
        let token = held(&other, &holder).await?.token;
        let knows = of(round, if round % 2 == 0 { &free } else { &busy })?;
        let joined = if round % 2 == 0 {
            Some(held(&old, &knows).await?.token)
        } else {
            waiting(&old, &knows).await?.token
        };
        ensure_eq!(old.release(&ticket(&knows, joined)).await?, Release::Released, "round {round}");
        let larger = of(round + 1, &name("raises")?)?;
        let raised = held(&new, &larger).await?.token;
        new.release(&ticket(&larger, raised)).await?;
        let late = of(round, if round % 2 == 0 { &free } else { &busy })?;
        let refused = old.acquire(&late).await;
        let error = expect!(refused, Err(error) => error, "round {round}");
        ensure_eq!(error.kind(), ErrorKind::InvalidConfig, "round {round}: {error}");
        let line = new.inspect(&late.name).await?;
        ensure_eq!(line.holders.len() + line.waiters.len(), usize::from(round % 2), "round {round}: entries");
        // What holds is not touched.
        ensure_eq!(other.release(&ticket(&holder, token)).await?, Release::Released, "round {round}");
    }
    Ok(())
}

/// The first two joins of a session both make the node of the epochs, or raise it, and one is late: that takes nothing from what
/// the other has learned, or it would leave the line that it stands in, and join again behind everybody.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_joins_keep_their_places() -> Verdict {
    const MULTI: i32 = 14;
    let server = ZkServer::start(Setup::default()).await?;
    let names = [name("one")?, name("two")?];
    for round in 0..30 {
        let counter = Counter::start(server.address(), &format!("/fresh-{round}"))?;
        let client = open(&format!("zk://{}/fresh-{round}?tick=200ms", counter.address())).await?;
        let requests = [of(round % 2, &names[0])?, of(round % 2, &names[1])?];
        let (one, two) = join!(held(&client, &requests[0]), held(&client, &requests[1]));
        one.and(two)?;
        ensure_eq!(counter.counts().by_code()[&MULTI], 2, "transactions of two joins in round {round}");
        client.close().await?;
    }
    Ok(())
}

/// Takes and releases a lock with epoch 1 by `old`, makes the server anew without its data, and does the same with epoch 2 by a new client.
async fn made_anew(server: &ZkServer, old: &Arc<dyn Backend>, name: &LockName) -> Verdict {
    let first = of(1, name)?;
    let token = held(old, &first).await?.token;
    old.release(&ticket(&first, token)).await?;
    server.process.kill()?;
    std::fs::remove_dir_all(server.data())?;
    server.launch()?;
    server.ready().await?;
    let new = open(&url(server)).await?;
    let second = of(2, name)?;
    let token = held(&new, &second).await?.token;
    new.release(&ticket(&second, token)).await?;
    Ok(())
}

/// Each time an ensemble is made anew the epoch is raised by one, so the node has the same version: a client that has outlived
/// that does not know which epoch it stands for.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_outlives_its_servers_is_refused() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let old = open(&url(&server)).await?;
    let name = name("rebuilt")?;
    made_anew(&server, &old, &name).await?;
    let admin = raw(&server).await?;
    let refused = eventually("an answer", async || {
        // The server lets in who has seen no more than it has.
        for _ in 0..100 {
            admin.set_data("/own", b"", None).await?;
        }
        let answer = old.acquire(&of(1, &name)?).await;
        Ok(Some(answer).filter(|answer| !answer.as_ref().is_err_and(Error::is_unclear)))
    });
    let error = expect!(refused.await?, Err(error) => error, "epoch 1 after 2");
    ensure_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    Ok(())
}

/// What a join has made whose answer was lost was not compared with the epoch: who asks again joins anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_join_whose_answer_was_lost_is_compared() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let link = Link::new();
    let proxy = Proxy::start(server.address(), &link).await?;
    let old = open(&format!("zk://{}/own?tick=200ms&request_timeout=2s", proxy.address())).await?;
    let new = open(&url(&server)).await?;
    let name = name("busy")?;
    held(&new, &of(0, &name)?).await?;
    let known = of(0, &name)?;
    let place = waiting(&old, &known).await?;
    old.release(&ticket(&known, place.token)).await?;
    held(&new, &of(1, &self::name("raises")?)?).await?;
    link.arm(Trigger { pattern: b"-lock-\0\0".to_vec(), nth: 1, act: Act::LoseReply });
    let late = of(0, &name)?;
    let error = expect!(old.acquire(&late).await, Err(error) => error, "a lost answer");
    ensure!(error.is_unclear(), "a lost answer: {error}");
    let error = expect!(asks(&old, &late).await?, Err(error) => error, "epoch 0 after 1");
    ensure_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    ensure!(new.inspect(&name).await?.waiters.is_empty(), "its entry is left");
    Ok(())
}

/// Asks until the answer is clear.
async fn asks(client: &Arc<dyn Backend>, request: &Request) -> Verdict<onelock_core::Result<Standing>> {
    eventually("an answer", async || {
        let answer = client.acquire(request).await;
        Ok(Some(answer).filter(|answer| !answer.as_ref().is_err_and(Error::is_unclear)))
    })
    .await
}

/// An entry that its join has made, but whose epoch was not compared, or was found too small while the entry could not be
/// deleted: who asks again joins anew.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_was_not_compared_is_not_handed_out() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let link = Link::new();
    let proxy = Proxy::start(server.address(), &link).await?;
    let old = open(&format!("zk://{}/own?tick=200ms&request_timeout=2s", proxy.address())).await?;
    let new = open(&url(&server)).await?;
    let busy = name("busy")?;
    held(&new, &of(0, &busy)?).await?;
    for epoch in 0..4 {
        let known = of(epoch, &busy)?;
        let knows = async || Ok(old.acquire(&known).await.ok());
        expect!(eventually("it knows the epoch", knows).await?, Standing::Waiting(_) => (), "a join");
        old.release(&known.ticket()).await?;
        held(&new, &of(epoch + 1, &name(&format!("raises-{epoch}"))?)?).await?;
        if epoch % 2 == 0 {
            // Behind the answer to the creation (157 bytes) and before the end of that to the read of the epoch (455).
            link.set(Fault::CutAfter(300));
        } else {
            // The deletion: it is the first to name the sequence.
            link.arm(Trigger { pattern: b"-lock-00000".to_vec(), nth: 1, act: Act::Reset });
        }
        let late = of(epoch, &busy)?;
        let error = expect!(old.acquire(&late).await, Err(error) => error, "round {epoch}: a lost answer");
        ensure!(error.is_unclear(), "round {epoch}: a lost answer: {error}");
        ensure_eq!(new.inspect(&busy).await?.waiters.len(), 1, "round {epoch}: what it has made");
        link.heal();
        let error = expect!(asks(&old, &late).await?, Err(error) => error, "round {epoch}: a smaller epoch");
        ensure_eq!(error.kind(), ErrorKind::InvalidConfig, "round {epoch}: {error}");
        ensure!(new.inspect(&busy).await?.waiters.is_empty(), "round {epoch}: its entry is left");
    }
    Ok(())
}

/// Forwards connections to `target`. When it ends one the client is not told.
async fn silent(target: SocketAddr) -> Verdict<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let Ok(server) = TcpStream::connect(target).await else { return };
                let ((mut requests, mut to_client), (mut replies, mut to_server)) =
                    (client.into_split(), server.into_split());
                let _ = join!(copy(&mut requests, &mut to_server), copy(&mut replies, &mut to_client));
                std::future::pending::<()>().await;
            });
        }
    });
    Ok(address)
}

/// What one session knows of the epoch says nothing to another: its connection may be one to servers that are gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_session_does_not_believe_a_silent_one() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let proxy = silent(server.address()).await?;
    let old = open(&format!("zk://{proxy}/own?tick=200ms&request_timeout=50s")).await?;
    let name = name("rebuilt")?;
    made_anew(&server, &old, &name).await?;
    // Of another class, and so in a session that is opened now.
    let request = of(1, &name)?;
    let late = leased(request.clone(), request.lease * 4);
    let error = expect!(old.acquire(&late).await, Err(error) => error, "epoch 1 after 2");
    ensure_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    Ok(())
}

/// A join that waits for its turn to be sent while the connection breaks is sent behind the reconnection, perhaps to servers that were
/// restored, and have another epoch under the same version.
#[tokio::test(flavor = "multi_thread")]
async fn a_join_that_outlives_its_connection_is_compared() -> Verdict {
    // On a busy machine all may have been sent before it breaks, or still wait for a sign of life.
    for _ in 0..4 {
        if sent_behind_a_reconnection().await? > 0 {
            return Ok(());
        }
    }
    Err(Stop::failed("none was sent behind the reconnection"))
}

/// How many joins were sent behind the reconnection; none of all may hold.
async fn sent_behind_a_reconnection() -> Verdict<usize> {
    let server = ZkServer::start(Setup::default()).await?;
    let link = Link::new();
    let proxy = Proxy::start(server.address(), &link).await?;
    let old = open(&format!("zk://{}/own?tick=200ms&request_timeout=20s", proxy.address())).await?;
    let raised = async |epoch| {
        let new = open(&url(&server)).await?;
        held(&new, &of(epoch, &name("raises")?)?).await?;
        Ok::<_, Stop>(new)
    };
    held(&old, &of(0, &name("first")?)?).await?;
    let backup = backed_up(&server).await?;
    raised(1).await?;
    // The first may have been sent while it connected again: the second read the epoch by this connection.
    for known in ["known", "known-again"] {
        let known = asks(&old, &of(1, &name(known)?)?).await?;
        expect!(known, Ok(Standing::Held(_)) => (), "it knows the epoch");
    }
    // Eight are sent by themselves, and at most 64 by each of two who send what gathers.
    link.arm(Trigger { pattern: b"/own/n".to_vec(), nth: 1, act: Act::HoldRequest });
    let mut joins = tokio::task::JoinSet::new();
    for i in 0..150 {
        let (old, request) = (Arc::clone(&old), of(1, &name(&format!("n{i}"))?)?);
        joins.spawn(async move { old.acquire(&request).await });
    }
    restored(&server, &backup).await?;
    let _new = raised(2).await?;
    link.let_go();
    let admin = raw(&server).await?;
    let mut refused = 0;
    while !joins.is_empty() {
        let answer = eventually("an answer", async || {
            // The server lets in who has seen no more than it has.
            admin.set_data("/own", b"", None).await?;
            Ok(joins.try_join_next())
        });
        let error = expect!(answer.await??, Err(error) => error, "epoch 1 after 2");
        refused += usize::from(error.kind() == ErrorKind::InvalidConfig);
    }
    Ok(refused)
}

/// After 65 536 elections the server's numbers reach the bits of a token epoch: without one they grow on, with one a lock is refused.
#[tokio::test(flavor = "multi_thread")]
async fn many_elections_turn_no_token_back() -> Verdict {
    let member = format!("server.1=127.0.0.1:{}:{}", free_port()?, free_port()?);
    let lines = [&*member, "standaloneEnabled=false", "initLimit=50", "syncLimit=100"].map(str::to_owned);
    let server = ZkServer::start(Setup { lines: lines.to_vec(), id: 1, ..Setup::default() }).await?;
    let url = |epoch| format!("zk://{}/own-{epoch}?tick=200ms", server.address());
    let lock = async |epoch: u16| -> Verdict<Lock> {
        let mut settings = Settings::default();
        settings.token_epoch = TokenEpoch::new(epoch)?;
        Ok(Locks::builder(open(&url(epoch)).await?).settings(settings).build()?.mutex("elected")?)
    };
    let mut before = Vec::new();
    for epoch in 0..3 {
        let guard = lock(epoch).await?.acquire().await?;
        before.push(guard.token()?);
        guard.release().await?;
    }
    server.process.kill()?;
    for file in ["currentEpoch", "acceptedEpoch"] {
        std::fs::write(server.data().join(file), "65535")?;
    }
    server.launch()?;
    server.ready().await?;
    for (epoch, before) in (0..3).zip(before) {
        match lock(epoch).await?.acquire().await {
            Ok(guard) => {
                let after = guard.token()?;
                ensure!(after > before, "epoch {epoch}: token {after} after {before}");
            }
            Err(error) => {
                ensure!(epoch > 0 && error.kind() == ErrorKind::Full, "epoch {epoch}: {error}");
                let line = open(&url(epoch)).await?.inspect(&name("elected")?).await?;
                ensure!(line.holders.is_empty(), "epoch {epoch}: it is held");
            }
        }
    }
    // What is refused cannot be deleted at once: who asks again is refused once more.
    let link = Link::new();
    let proxy = Proxy::start(server.address(), &link).await?;
    let cut = open(&format!("zk://{}/own-1?tick=200ms&request_timeout=2s", proxy.address())).await?;
    // It is named when it is created, when it is written and when it is deleted.
    link.arm(Trigger { pattern: b"-lock-0000000000".to_vec(), nth: 3, act: Act::Reset });
    let late = of(1, &name("elected")?)?;
    let error = expect!(cut.acquire(&late).await, Err(error) => error, "a lost answer");
    ensure!(error.is_unclear(), "a lost answer: {error}");
    let error = expect!(asks(&cut, &late).await?, Err(error) => error, "no number is left");
    ensure_eq!(error.kind(), ErrorKind::Full, "{error}");
    ensure!(cut.inspect(&late.name).await?.holders.is_empty(), "it is held");
    Ok(())
}
