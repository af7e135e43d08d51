//! A server whose database has reached its quota: it takes no more until an operator has made room.

use onelock_conformance::Verdict;
use onelock_conformance::ctx::{PATIENCE, exclusive, held, leased, name, renewal, ticket, waiting};
use onelock_conformance::servers::Place;
use onelock_core::{ErrorKind, Release, Renewed, Wake};
use std::time::Duration;
use tokio::time::timeout;

use crate::leases::client;
use crate::support::server::{Admin as _, Member};
use crate::support::waits;

/// What is held is renewed, given back, evicted and passed on; what is new is refused, and the error says why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_database_costs_no_lock() -> Verdict {
    let server = Member::with(Place::Memory, None, &["--quota-backend-bytes=4194304".to_owned()]).await?;
    let (a, b) = (client(&server.url()).await?, client(&server.url()).await?);
    let asked = || Verdict::Ok(leased(exclusive(&name("full")?)?, Duration::from_secs(20)));
    let (first, second, third) = (asked()?, asked()?, asked()?);
    let token = held(&a, &first).await?.token;
    let (next, last) = (waiting(&b, &second).await?, waiting(&b, &third).await?);
    let mut admin = server.admin().await?;
    for key in 0..64 {
        if admin.put(key.to_string(), vec![7; 512 << 10], None).await.is_err() {
            break;
        }
    }
    let full = admin.put("one more", "", None).await.unwrap_err().to_string();
    assert!(full.contains("space exceeded"), "{full}");

    assert!(matches!(a.renew(&[renewal(&first, token)]).await.remove(0)?, Renewed::Held(_)));
    assert!(matches!(b.renew(&[renewal(&second, next.token)]).await.remove(0)?, Renewed::Waiting(_)));
    let error = a.acquire(&exclusive(&name("new")?)?).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Full && !error.is_unclear(), "{error}");
    assert_eq!(a.inspect(&first.name).await?.waiters.len(), 2);
    assert_eq!(a.evict(&third.name, last.token.unwrap()).await?, Release::Released);
    let woken = waits(&b, &ticket(&second, next.token));
    assert_eq!(a.release(&ticket(&first, token)).await?, Release::Released);
    assert_eq!(timeout(PATIENCE, woken).await???, Wake::Held(next.token.unwrap()));
    assert!(matches!(b.renew(&[renewal(&second, next.token)]).await.remove(0)?, Renewed::Held(_)));
    Ok(())
}
