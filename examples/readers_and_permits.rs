//! Readers share, a writer waits for them; at most two at a time pass a semaphore. Grants follow the order of the line.

use std::time::Duration;

use onelock::Result;

#[tokio::main]
async fn main() -> Result<()> {
    let locks = onelock::connect("memory://").await?;

    let catalogue = locks.rwlock("catalogue")?;
    let one = catalogue.read().acquire().await?;
    let two = catalogue.read().acquire().await?;
    let busy = catalogue.write().acquire_timeout(Duration::from_millis(20)).await?.is_none();
    println!("two readers hold, a writer waits: {busy}");
    drop((one, two));
    let writer = catalogue.write().acquire().await?;
    println!("the writer holds with token {}", writer.token()?);
    writer.release().await?;

    let exports = locks.semaphore("exports", 2)?;
    let (_a, _b) = (exports.acquire().await?, exports.acquire().await?);
    println!("a third export must wait: {}", exports.try_acquire().await?.is_none());
    Ok(())
}
