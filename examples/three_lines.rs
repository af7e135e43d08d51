//! Three lines to a lock: take it, work under it, give it back.
//!
//! `cargo run -p onelock --example three_lines` uses the memory store; another store is another URL.

use onelock::FencingToken;

async fn charge(order: &str, token: FencingToken) -> Result<String, std::io::Error> {
    Ok(format!("{order} charged under token {token}"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let locks = onelock::connect("memory://?ttl=15s").await?;

    let guard = locks.mutex("orders/42")?.acquire().await?;
    let receipt = guard.run(charge("orders/42", guard.token()?)).await??;
    guard.release().await?;

    println!("{receipt}");
    Ok(())
}
