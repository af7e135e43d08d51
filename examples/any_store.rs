//! A service whose store is chosen by URL: nothing else changes.
//!
//! `cargo run -p onelock --example any_store` uses memory;
//! `ONELOCK_STORE=redis://127.0.0.1 cargo run -p onelock --features redis --example any_store` uses Redis.

use std::time::Duration;

use onelock::{Locks, Result};

/// Runs the nightly job unless another instance does; says whether it ran.
async fn nightly(locks: &Locks) -> Result<bool> {
    let lock = locks.mutex("jobs/nightly")?.ttl(Duration::from_secs(10))?.note("nightly report")?;
    let Some(guard) = lock.try_acquire().await? else { return Ok(false) };
    let report = async {
        tokio::task::yield_now().await;
        println!("reporting under token {:?}", guard.token());
    };
    // Stopped at its next await if the lock is lost.
    guard.run(report).await?;
    guard.release().await?;
    Ok(true)
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("ONELOCK_STORE").unwrap_or_else(|_| "memory://".to_owned());
    let locks = onelock::connect(&url).await?;
    println!("on {}: ran {}", locks.info().address, nightly(&locks).await?);
    locks.close(Duration::from_secs(5)).await
}
