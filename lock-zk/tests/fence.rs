//! Fenced multis.

use std::time::Duration;

use onelock_conformance::servers::zookeeper::{Setup, ZkServer};
use onelock_conformance::verdict::Verdict;
use onelock_conformance::{ensure_eq, expect};
use onelock_core::{Error, ErrorKind, Locks, Settings, TokenEpoch};
use onelock_zk::fence::Entry;
use zookeeper_client::{Acls, Client, CreateMode};

use crate::support::harness::open;
use crate::{raw, url};

async fn locks(server: &ZkServer, epoch: u16) -> Verdict<Locks> {
    let mut settings = Settings::default();
    settings.token_epoch = TokenEpoch::new(epoch)?;
    Ok(Locks::builder(open(&url(server)).await?).settings(settings).build()?)
}

async fn data(server: &ZkServer) -> Verdict<Client> {
    let data = raw(server).await?;
    data.create("/data", b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
    Ok(data)
}

async fn write(data: &Client, entry: &Entry, value: &str) -> Result<(), Error> {
    let mut multi = entry.multi(data)?;
    // A path and no version: the client refuses neither.
    let _ = multi.add_set_data("/data", value.as_bytes(), None);
    match multi.commit().await {
        Ok(_) => Ok(()),
        Err(error) => Err(entry.refused(data, error).await),
    }
}

async fn value(data: &Client) -> Verdict<String> {
    Ok(String::from_utf8_lossy(&data.get_data("/data").await?.0).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_writer_is_stopped_and_its_unfenced_twin_does_harm() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let data = data(&server).await?;
    // Tokens with an epoch in their high bits, too.
    for epoch in [0, 3] {
        let locks = locks(&server, epoch).await?;
        let lock = locks.mutex("a/b")?.ttl(Duration::from_secs(2))?;
        let late = lock.clone().auto_renew(false).acquire().await?;
        let (entry, token) = (Entry::of(&late, "/own", &data).await?, late.token()?);
        write(&data, &entry, "first").await?;
        // Until the lease of the first has ended.
        let next = lock.acquire().await?;
        write(&data, &Entry::of(&next, "/own/", &data).await?, "later").await?;
        let error = expect!(write(&data, &entry, "late").await, Err(error) => error, "refused");
        ensure_eq!(error.kind(), ErrorKind::Stale, "{error}");
        let newest = error.stale().map(|stale| (stale.token, stale.newest));
        ensure_eq!(newest, Some((token, next.token()?)), "{error}");
        ensure_eq!(value(&data).await?, "later", "fenced");
        data.set_data("/data", b"late", None).await?;
        ensure_eq!(value(&data).await?, "late", "its twin");
        // The holder that knows of it is told by its guard.
        let error = expect!(Entry::of(&late, "/own", &data).await, Err(error) => error, "refused");
        ensure_eq!(error.kind(), ErrorKind::Lost, "{error}");
        next.release().await?;
        let error = expect!(write(&data, &entry, "late").await, Err(error) => error, "refused");
        ensure_eq!(error.kind(), ErrorKind::Lost, "nobody is there: {error}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn those_that_share_pass_each_other_and_permits_are_refused() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let data = data(&server).await?;
    let locks = locks(&server, 0).await?;
    let both = locks.rwlock("n")?;
    let (first, second) = (both.read().acquire().await?, both.read().acquire().await?);
    let (entry, other) = (Entry::of(&first, "/own", &data).await?, Entry::of(&second, "/own", &data).await?);
    write(&data, &other, "second").await?;
    write(&data, &entry, "first").await?;
    for (base, kind) in [("/others", ErrorKind::Lost), ("own", ErrorKind::InvalidConfig)] {
        let error = expect!(Entry::of(&first, base, &data).await, Err(error) => error, "{base}");
        ensure_eq!(error.kind(), kind, "{base}: {error}");
    }
    second.release().await?;
    // Of those that are there an earlier one is not named.
    let third = both.read().acquire().await?;
    let error = expect!(write(&data, &other, "late").await, Err(error) => error, "refused");
    let newest = error.stale().map(|stale| stale.newest);
    ensure_eq!(newest, Some(third.token()?), "{error}");
    first.release().await?;
    third.release().await?;
    // The node of the name was gone in between: its sequence begins anew.
    let writer = both.write().acquire().await?;
    let error = expect!(write(&data, &entry, "late").await, Err(error) => error, "refused");
    let newest = error.stale().map(|stale| stale.newest);
    ensure_eq!(newest, Some(writer.token()?), "{error}");
    ensure_eq!(value(&data).await?, "first", "fenced");
    // An error of the caller's own operation.
    let alive = Entry::of(&writer, "/own", &data).await?;
    let mut multi = alive.multi(&data)?;
    multi.add_set_data("/missing", b"", None)?;
    let error = expect!(multi.commit().await, Err(error) => error, "refused");
    let error = alive.refused(&data, error).await;
    ensure_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    let permit = locks.semaphore("p", 2)?.acquire().await?;
    let error = expect!(Entry::of(&permit, "/own", &data).await, Err(error) => error, "refused");
    ensure_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    Ok(())
}
