//! Users with no more rights than they need, and with less.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cost::quiet;
use crate::support::server::{Admin as _, Member};
use crate::support::waits;
use etcd_client::{Client, ConnectOptions, GetOptions, Permission, RoleRevokePermissionOptions};
use onelock_conformance::Verdict;
use onelock_conformance::ctx::{
    PATIENCE, exclusive, held, leased, name, number, renewal, request, ticket, waiting,
};
use onelock_conformance::harness::open_by;
use onelock_core::{Backend, Error, ErrorKind, LockName, Mode, Page, Renewed, Wake};
use onelock_etcd::{DRIVER, EtcdBackend, EtcdConfig};
use tokio::time::timeout;

fn denied(what: &str, error: &Error, keys: &str) {
    assert_eq!(error.kind(), ErrorKind::Denied, "{what}: {error}");
    let text = error.to_string();
    assert!(text.contains("`readwrite`") && text.contains(keys), "{what} does not name the right: {text}");
    assert!(!text.contains("apps-never-printed") && !error.is_unclear(), "{what}: {text}");
}

/// A right that is missing is named, with the keys it is missing on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_right_is_named() -> Verdict {
    let server = Member::single(None).await?;
    let users = [
        ("app", Some(Permission::read_write("onelock/").with_prefix())),
        ("reader", Some(Permission::read("onelock/").with_prefix())),
        ("writer", Some(Permission::write("onelock/").with_prefix())),
        ("line", Some(Permission::read_write("gold/").with_prefix())),
        ("nobody", None),
    ];
    server.with_users("apps-never-printed", &users).await?;
    let url = |user: &str, more: &str| format!("etcd://{user}:apps-never-printed@{}{more}", server.address());
    let lock = name("gold")?;

    // Whoever may not read is told when it connects.
    for (user, more, keys) in [
        ("writer", "", "onelock/"),
        ("nobody", "", "onelock/"),
        ("app", "?prefix=other/", "other/"),
        ("line", "", "onelock/"),
    ] {
        let error = open_by(&DRIVER, &url(user, more)).await.unwrap_err();
        denied(&format!("connecting as {user}{more}"), &error, keys);
    }
    let error = open_by(&DRIVER, &server.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "without a user: {error}");

    // Whoever may not write is told at the first verb that does.
    let reader = open_by(&DRIVER, &url("reader", "")).await?;
    for queue in [true, false] {
        let mut request = exclusive(&lock)?;
        request.queue = queue;
        denied("a join by a reader", &reader.acquire(&request).await.unwrap_err(), "onelock/");
    }
    let app = open_by(&DRIVER, &url("app", "")).await?;
    let held = exclusive(&lock)?;
    let token = onelock_conformance::ctx::held(&app, &held).await?.token;
    let seen = reader.inspect(&lock).await?;
    assert_eq!(seen.holders.len(), 1, "a reader may look");
    assert_eq!(reader.list("", &Page::first(5)?).await?.names.len(), 1);
    denied("an eviction by a reader", &reader.evict(&lock, token).await.unwrap_err(), "onelock/");
    let ticket = onelock_conformance::ctx::ticket(&held, token);
    denied("a release by a reader", &reader.release(&ticket).await.unwrap_err(), "onelock/");
    app.release(&ticket).await?;

    // With an empty prefix rights are seen at the first use of a name, and one line is enough.
    let bare = open_by(&DRIVER, &url("app", "?prefix=")).await?;
    let error = bare.acquire(&exclusive(&lock)?).await.unwrap_err();
    denied("a line without the right", &error, "the lock's name and a slash");
    let line = open_by(&DRIVER, &url("line", "?prefix=")).await?;
    let mut request = exclusive(&lock)?;
    request.lease = Duration::from_secs(5);
    let token = onelock_conformance::ctx::held(&line, &request).await?.token;
    line.release(&onelock_conformance::ctx::ticket(&request, token)).await?;
    let error = line.acquire(&exclusive(&LockName::new("silver")?)?).await.unwrap_err();
    denied("another line", &error, "the lock's name and a slash");
    Ok(())
}

/// The right to one line is taken away: what is held in another is renewed, and what lapses there goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_is_taken_away_costs_no_other_lock() -> Verdict {
    let password = "apps-never-printed";
    let (server, root) = with_two_lines(password).await?;
    let app = open_by(&DRIVER, &format!("etcd://app:{password}@{}?prefix=", server.address())).await?;
    let reader =
        |line: &str| Verdict::Ok(leased(request(&name(line)?, Mode::Shared)?, Duration::from_secs(3)));
    let (taken, kept, lapsing) = (reader("silver")?, reader("gold")?, reader("gold")?);
    let [taken, kept, lapsing] = [
        renewal(&taken, held(&app, &taken).await?.token),
        renewal(&kept, held(&app, &kept).await?.token),
        renewal(&lapsing, held(&app, &lapsing).await?.token),
    ];
    take_silver_away(&root).await?;

    let due = [kept.clone(), taken, lapsing];
    let [before, refused, behind] = <[_; 3]>::try_from(app.renew(&due).await).expect("three answers");
    denied("a renewal without the right", &refused.unwrap_err(), "the lock's name and a slash");
    assert!(
        matches!((&before, &behind), (Ok(Renewed::Held(_)), Ok(Renewed::Held(_)))),
        "{before:?}, {behind:?}"
    );
    let end = Instant::now() + PATIENCE;
    while app.inspect(&kept.ticket.name).await?.holders.len() > 1 {
        assert!(Instant::now() < end, "what nobody renews stays");
        assert!(matches!(app.renew(std::slice::from_ref(&kept)).await.remove(0)?, Renewed::Held(_)));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// A server and its root, where `app` may use the lines `gold` and `silver`.
async fn with_two_lines(password: &str) -> Verdict<(Member, Client)> {
    let server = Member::single(None).await?;
    let gold = Permission::read_write("gold/").with_prefix();
    server.with_users(password, &[("app", Some(gold))]).await?;
    let root = server.admin().await?;
    let silver = Permission::read_write("silver/").with_prefix();
    root.auth_client().role_grant_permission("app", silver).await?;
    Ok((server, root))
}

async fn take_silver_away(root: &Client) -> Verdict {
    let prefix = RoleRevokePermissionOptions::new().with_prefix();
    root.auth_client().role_revoke_permission("app", "silver/", Some(prefix)).await?;
    Ok(())
}

/// The same for those who wait, by a client that cannot log in again, as one that is known by a certificate: who waits in the other
/// line goes on waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_is_taken_away_ends_no_other_wait() -> Verdict {
    let password = "apps-never-printed";
    let (server, root) = with_two_lines(password).await?;
    let options = ConnectOptions::new().with_user("app", password);
    let client = Client::connect([server.address().to_string()], Some(options)).await?;
    let mut config = EtcdConfig::of_client(client);
    config.namespace = String::new();
    let app: Arc<dyn Backend> = Arc::new(EtcdBackend::connect(config).await?);
    let (gold, silver) = (exclusive(&name("gold")?)?, exclusive(&name("silver")?)?);
    let holds = held(&app, &gold).await?.token;
    held(&app, &silver).await?;
    let (kept, taken) = (exclusive(&gold.name)?, exclusive(&silver.name)?);
    let (place, behind) = (waiting(&app, &kept).await?, waiting(&app, &taken).await?);
    let wait = waits(&app, &ticket(&kept, place.token));
    let end = Instant::now() + PATIENCE;
    let watches = |(name, count): &(String, f64)| name == "etcd_debugging_mvcc_watcher_total" && *count > 0.0;
    while !server.metrics().await?.iter().any(watches) {
        assert!(Instant::now() < end, "no watch");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    take_silver_away(&root).await?;

    let error = timeout(PATIENCE, app.wait(&ticket(&taken, behind.token))).await?.unwrap_err();
    let refused = app.renew(&[renewal(&taken, behind.token)]).await.remove(0).unwrap_err();
    denied("a renewal without the right", &refused, "the lock's name and a slash");
    app.release(&ticket(&gold, holds)).await?;
    assert_eq!(timeout(PATIENCE, wait).await???, Wake::Held(number(place)?));
    assert!(error.is_retryable(), "{error}");
    Ok(())
}

/// What lapses where the right was taken away is asked for until its lease is over, and then no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_not_be_taken_out_is_left_when_its_lease_is_over() -> Verdict {
    let password = "apps-never-printed";
    let (server, mut root) = with_two_lines(password).await?;
    let app = open_by(&DRIVER, &format!("etcd://app:{password}@{}?prefix=", server.address())).await?;
    held(&app, &leased(exclusive(&name("silver")?)?, Duration::from_secs(3))).await?;
    take_silver_away(&root).await?;
    let end = Instant::now() + PATIENCE;
    while root.get("silver/", Some(GetOptions::new().with_prefix())).await?.count() > 0 {
        assert!(Instant::now() < end, "its lease does not end");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(timeout(PATIENCE, quiet(&server)).await.is_ok(), "it is asked for without an end");
    Ok(())
}
