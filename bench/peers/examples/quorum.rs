//! A quorum of three Redis servers beside rslock over the same three, in turns: the median of an uncontended cycle, and the
//! cycles a second of 64 names over one client.
//!
//! `cargo run --release --manifest-path bench/peers/Cargo.toml --example quorum -- HOST:PORT HOST:PORT HOST:PORT`

use std::time::{Duration, Instant};

use onelock::Locks;
use rslock::LockManager;

const ROUNDS: u32 = 5;
const LEASE: Duration = Duration::from_secs(30);
const FOR: Duration = Duration::from_secs(3);

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone)]
enum Subject {
    Ours(Locks),
    Rslock(LockManager),
}

impl Subject {
    async fn cycle(&self, name: &str) -> Result<(), Failure> {
        match self {
            Self::Ours(locks) => locks.mutex(name)?.ttl(LEASE)?.acquire().await?.release().await?,
            // It does not tell whether the release succeeded.
            Self::Rslock(manager) => manager.acquire(name, LEASE).await?.release().await,
        }
        Ok(())
    }

    /// How long each cycle on a name took, until the time is over.
    async fn cycles(self, name: String) -> Result<Vec<Duration>, Failure> {
        let (mut took, begun) = (Vec::new(), Instant::now());
        while begun.elapsed() < FOR {
            let sent = Instant::now();
            self.cycle(&name).await?;
            took.push(sent.elapsed());
        }
        Ok(took)
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let servers: Vec<_> = std::env::args().skip(1).map(|server| format!("redis://{server}")).collect();
    if servers.len() != 3 {
        return Err("usage: quorum HOST:PORT HOST:PORT HOST:PORT".into());
    }
    let ours = onelock::connect(&format!("quorum://?members={}", servers.join("|"))).await?;
    let subjects = [("onelock", Subject::Ours(ours)), ("rslock", Subject::Rslock(LockManager::new(servers)))];
    for round in 1..=ROUNDS {
        for (library, subject) in &subjects {
            let mut alone = subject.clone().cycles("alone".into()).await?;
            alone.sort_unstable();
            let all: Vec<_> =
                (0..64).map(|name| tokio::spawn(subject.clone().cycles(format!("name-{name}")))).collect();
            let mut cycles = 0;
            for task in all {
                cycles += task.await??.len();
            }
            let median = alone.get(alone.len() / 2).ok_or("no cycle in time")?.as_micros();
            let rate = cycles as f64 / FOR.as_secs_f64();
            println!("round {round}, {library}: uncontended p50 {median} µs, 64 names {rate:.0} cycles/s");
        }
    }
    Ok(())
}
