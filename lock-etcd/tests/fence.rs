//! Fenced transactions.

use std::time::Duration;

use crate::support::server::{Admin as _, Member};
use etcd_client::{Client, TxnOp};
use onelock_conformance::Verdict;
use onelock_conformance::harness::open_by;
use onelock_core::{ErrorKind, Locks, Settings};
use onelock_etcd::DRIVER;
use onelock_etcd::fence::Entry;

const PREFIX: &str = "onelock/";

async fn locks(server: &Member, epoch: u16) -> Verdict<Locks> {
    let mut settings = Settings::default();
    settings.token_epoch = onelock_core::TokenEpoch::new(epoch)?;
    Ok(Locks::builder(open_by(&DRIVER, &server.url()).await?).settings(settings).build()?)
}

async fn write(data: &mut Client, entry: &Entry, value: &str) -> onelock_core::Result<()> {
    let answer = data.txn(entry.txn([TxnOp::put("data", value, None)])).await.unwrap();
    entry.admitted(&answer)
}

async fn value(data: &mut Client) -> Verdict<String> {
    Ok(data.get("data", None).await?.kvs()[0].value_str()?.to_owned())
}

#[tokio::test]
async fn a_late_writer_is_stopped_and_its_unfenced_twin_does_harm() -> Verdict {
    let server = Member::single(None).await?;
    let mut data = server.admin().await?;
    // Tokens with an epoch in their high bits, too.
    for epoch in [0, 3] {
        let locks = locks(&server, epoch).await?;
        let lock = locks.mutex("n")?.ttl(Duration::from_secs(2))?;
        let late = lock.clone().auto_renew(false).acquire().await?;
        let (entry, token) = (Entry::of(&late, PREFIX)?, late.token()?);
        write(&mut data, &entry, "first").await?;
        // Until the lease of the first has ended.
        let next = lock.acquire().await?;
        write(&mut data, &Entry::of(&next, PREFIX)?, "later").await?;
        let error = write(&mut data, &entry, "late").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Stale, "{error}");
        let stale = error.stale().unwrap();
        assert_eq!((stale.token, stale.newest), (token, next.token()?));
        assert_eq!(value(&mut data).await?, "later");
        data.put("data", "late", None).await?;
        assert_eq!(value(&mut data).await?, "late");
        // The holder that knows of it is told by its guard.
        assert_eq!(Entry::of(&late, PREFIX).unwrap_err().kind(), ErrorKind::Lost);
        next.release().await?;
        let error = write(&mut data, &entry, "late").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "nobody is there: {error}");
    }
    Ok(())
}

#[tokio::test]
async fn those_that_share_pass_each_other_and_permits_are_refused() -> Verdict {
    let server = Member::single(None).await?;
    let mut data = server.admin().await?;
    let locks = locks(&server, 0).await?;
    let both = locks.rwlock("a/b")?;
    let (first, second) = (both.read().acquire().await?, both.read().acquire().await?);
    let [entry, other] = [&first, &second].map(|guard| Entry::of(guard, PREFIX).unwrap());
    write(&mut data, &other, "second").await?;
    write(&mut data, &entry, "first").await?;
    let wrong = Entry::of(&first, "others/")?;
    assert_eq!(write(&mut data, &wrong, "wrong").await.unwrap_err().kind(), ErrorKind::Lost);
    second.release().await?;
    // Of those that are there an earlier one is not named.
    let third = both.read().acquire().await?;
    let error = write(&mut data, &other, "late").await.unwrap_err();
    assert_eq!(error.stale().map(|stale| stale.newest), Some(third.token()?), "{error}");
    first.release().await?;
    third.release().await?;
    let writer = both.write().acquire().await?;
    let error = write(&mut data, &entry, "late").await.unwrap_err();
    assert_eq!(error.stale().map(|stale| stale.newest), Some(writer.token()?), "{error}");
    assert_eq!(value(&mut data).await?, "first");
    let permit = locks.semaphore("p", 2)?.acquire().await?;
    assert_eq!(Entry::of(&permit, PREFIX).unwrap_err().kind(), ErrorKind::Unsupported);
    Ok(())
}
