//! What losing a lock looks like: the guard says so before another can hold it, and the work is stopped.

use std::time::Duration;

use onelock::{ErrorKind, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let locks = onelock::connect("memory://shop").await?;
    let guard = locks.mutex("orders/42")?.ttl(Duration::from_millis(200))?.acquire().await?;

    // Somebody else decides that this holder must go.
    locks.evict("orders/42", guard.token()?).await?;

    let work = guard.run(std::future::pending::<()>()).await;
    println!("the work was stopped: {}", work.is_err_and(|error| error.kind() == ErrorKind::Lost));
    println!("why: {}", guard.lost().await);
    println!("the token is refused: {}", guard.token().is_err());

    let next = locks.mutex("orders/42")?.acquire().await?;
    println!("the next holder has a larger token: {}", next.token()?);
    next.release().await
}
