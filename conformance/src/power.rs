//! What a power cut must not take: holds, renewed leases and numbers that were answered.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use onelock_core::{Backend, ErrorKind, FencingToken, LockName, Release, Renewal};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::ctx::{exclusive, joined, leased};
use crate::rng::Rng;
use crate::verdict::{Context as _, Verdict};
use crate::{ensure, ensure_eq, fail};

/// How long answers may take to come.
const END: Duration = Duration::from_secs(30);

/// A server that can lose its power.
#[async_trait]
pub trait Powered: Send + Sync {
    /// Cuts its power, and starts it again.
    async fn cut_power(&self) -> Verdict;

    /// A new client of its store.
    async fn connect(&self) -> Verdict<std::sync::Arc<dyn Backend>>;
}

/// Longer than any test.
const LEASE: Duration = Duration::from_secs(600);
const RENEWED: Duration = Duration::from_secs(3_600);
/// How many tasks ask, each for names of its own and for one that all share.
const TASKS: usize = 4;
/// How many answers a round sees before the cut, at least.
const ANSWERS: usize = 40;

/// What was answered before the power went.
#[derive(Default)]
struct Answered {
    count: usize,
    /// The largest number of each name.
    last: BTreeMap<LockName, FencingToken>,
    /// What is held, by its number: not released, as far as that was asked. And whether a longer lease was answered.
    held: BTreeMap<LockName, (FencingToken, bool)>,
}

/// That nothing of what was answered is lost when the power goes: holds, renewed leases, and numbers.
///
/// # Errors
/// What was lost.
pub async fn nothing_answered_is_lost(server: &impl Powered, rounds: u32) -> Verdict {
    for round in 0..rounds {
        let client = server.connect().await?;
        let answered = std::sync::Arc::new(Mutex::new(Answered::default()));
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let (client, answered) = (client.clone(), answered.clone());
            tasks.spawn(async move { work(&*client, &answered, round, task).await });
        }
        let end = Instant::now() + END;
        while answered.lock().await.count < ANSWERS {
            ensure!(Instant::now() < end, "no answers: {:?}", tasks.try_join_next());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        server.cut_power().await?;
        // They end by errors, or by answers after the cut. Their client stays: with its end its session would end.
        tasks.shutdown().await;
        let _stays = client;
        let client = server.connect().await?;
        let answered = answered.lock().await;
        println!("round {round}: {} answers, {} held", answered.count, answered.held.len());
        for (name, (token, renewed)) in &answered.held {
            let line = client.inspect(name).await?;
            let Some(entry) = line.holders.iter().find(|entry| entry.token == *token) else {
                fail!("round {round}: the hold {token} of {name} is lost: {line:?}");
            };
            let least = if *renewed { LEASE } else { Duration::ZERO };
            let renewed = entry.expires_in.is_none_or(|left| left > least);
            ensure!(renewed, "round {round}: the renewal of {name} is lost: {entry:?}");
        }
        for (name, last) in &answered.last {
            let (_, token) = joined(client.acquire(&leased(exclusive(name)?, LEASE)).await?)?;
            ensure!(token > *last, "round {round}: {name}: token {token} after {last}");
        }
    }
    Ok(())
}

/// Asks until something fails.
async fn work(client: &dyn Backend, answered: &Mutex<Answered>, round: u32, task: usize) -> Verdict {
    let mut rng = Rng::new(u64::from(round) * 31 + task as u64);
    for turn in 0.. {
        let name = match turn % 3 {
            0 => format!("held-{round}-{task}-{turn}"),
            1 => format!("own-{round}-{task}"),
            _ => "shared".to_owned(),
        };
        let request = leased(exclusive(&LockName::new(&name)?)?, LEASE);
        let (_, token) = joined(client.acquire(&request).await?)?;
        let ticket = request.ticket().token(token);
        {
            let mut answered = answered.lock().await;
            answered.count += 1;
            let last = answered.last.entry(request.name.clone()).or_insert(token);
            *last = token.max(*last);
            if turn % 3 == 0 {
                answered.held.insert(request.name.clone(), (token, false));
            }
        }
        if turn % 3 != 0 {
            ensure_eq!(client.release(&ticket).await?, Release::Released, "the release of {name}");
            continue;
        }
        if rng.below(2) == 0 {
            let due = Renewal::new(ticket, RENEWED, RENEWED);
            match client.renew(std::slice::from_ref(&due)).await.pop().context("an answer")? {
                // Where the lease is a session's, which is as long as it was at first.
                Err(error) if error.kind() == ErrorKind::Unsupported => continue,
                renewed => drop(renewed?),
            }
            let mut answered = answered.lock().await;
            answered.count += 1;
            answered.held.insert(request.name, (token, true));
        }
    }
    Ok(())
}
