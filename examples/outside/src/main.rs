//! Uses what onelock offers around the lock, on each store whose URL it is given.
//!
//! `cargo run -- memory:// sqlite:///tmp/locks.db redis://127.0.0.1 …`

mod around;
mod connecting;
mod fences;
mod seen;

use std::sync::Arc;
use std::time::Duration;

use onelock::{Config, Error, ErrorKind, Locks, LossReason, Settings, blocking, testing};

pub(crate) type Done<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Done {
    let urls: Vec<_> = std::env::args().skip(1).collect();
    if urls.is_empty() {
        return Err("usage: outside URL…".into());
    }
    let recorded = seen::Recorded::install()?;
    tests_of_a_service()?;
    fences::http()?;
    for url in &urls {
        // The rest of the URL may have a password.
        let store = url.split(':').next().unwrap_or_default();
        let of_store = |error| format!("{store}: {error}");
        without_async(url).map_err(of_store)?;
        let runtime = tokio::runtime::Runtime::new()?;
        runtime.block_on(on(url)).map_err(of_store)?;
        println!("{store}: all of it works");
    }
    recorded.check()
}

async fn on(url: &str) -> Done {
    let run = format!("outside-{}", std::process::id());
    let name = |what: &str| format!("{run}/{what}");
    let watched = Arc::new(seen::Watched::default());
    let mut config = Config::new(url);
    config.settings = Settings::default()
        .observer(watched.clone())
        .metric_group(|name| name.rsplit('/').next().unwrap_or_default().to_owned());
    let locks = onelock::connect_with(&config).await?;
    check(locks.check().await?.cycle > Duration::ZERO, "a cycle takes time")?;
    around::several(&locks, &name("a"), &name("b")).await?;
    around::leader(&locks, &name("leader")).await?;
    around::waiting(&locks, &name("line")).await?;
    around::ending(&locks, &name("end")).await?;
    around::weighing(&locks, &name("places")).await?;
    around::at_least(&locks, &name("job")).await?;
    around::hand_over(&locks, &name("deploy"), url).await?;
    fences::at_the_resource(&locks, url, &name("fence")).await?;
    connecting::by_what_the_application_has(&locks, url, &name("own")).await?;
    let lazy = onelock::connect(&with(url, "lazy=true")).await?;
    lazy.mutex(name("lazy"))?.acquire().await?.release().await?;
    lazy.close(PATIENCE).await?;
    locks.drain(PATIENCE).await?;
    expect(locks.mutex(name("late"))?.acquire().await, ErrorKind::Closed)?;
    watched.check()
}

fn with(url: &str, option: &str) -> String {
    format!("{url}{}{option}", if url.contains('?') { '&' } else { '?' })
}

pub(crate) fn check(held: bool, what: &str) -> Done {
    if held { Ok(()) } else { Err(format!("not so: {what}").into()) }
}

pub(crate) fn expect<T>(answer: Result<T, Error>, kind: ErrorKind) -> Done<Error> {
    match answer {
        Err(error) if error.kind() == kind => Ok(error),
        Err(error) => Err(format!("{kind} was expected, not {error}").into()),
        Ok(_) => Err(format!("{kind} was expected, and it worked").into()),
    }
}

/// The lease of a test: short, and not shorter than the store allows.
pub(crate) fn short(locks: &Locks) -> Duration {
    locks.capabilities().min_lease.max(SECOND * 3)
}

fn without_async(url: &str) -> Done {
    let locks: blocking::Locks = blocking::connect(url)?;
    let lock: blocking::Lock = locks.mutex(format!("outside-{}/blocking", std::process::id()))?;
    let guard: blocking::Guard = lock.acquire()?;
    check(guard.run(|| 7)? == 7, "work under a lock")?;
    guard.release()?;
    locks.close(PATIENCE)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async { expect(blocking::connect("memory://"), ErrorKind::Misuse) })?;
    Ok(())
}

/// What the tests of this program look like.
fn tests_of_a_service() -> Done {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().start_paused(true).build()?.block_on(async {
        let locks = testing::paused()?;
        let theirs = testing::hold_elsewhere(&locks, "n").await?;
        check(locks.mutex("n")?.try_acquire().await?.is_none(), "it is held elsewhere")?;
        theirs.release().await?;
        let guard = locks.mutex("n")?.acquire().await?;
        let outage = testing::outage(&locks)?;
        check(guard.lost().await == LossReason::Expired, "it is lost in an outage")?;
        drop(outage);
        let guard = locks.mutex("m")?.acquire().await?;
        testing::lose(&guard, LossReason::NotHeld);
        check(guard.loss() == Some(LossReason::NotHeld), "it is lost as asked")?;
        let by_url = onelock::connect("memory://").await?;
        let guard = by_url.mutex("n")?.auto_renew(false).acquire().await?;
        check(guard.lost().await == LossReason::Expired, "a lease of thirty seconds ends at once")
    })
}
