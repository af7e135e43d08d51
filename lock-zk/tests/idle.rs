//! What a waiter costs while nothing happens.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use onelock_conformance::ctx::{held, leased, name, renewal, request, waiting};
use onelock_conformance::verdict::{Context as _, Verdict};
use onelock_conformance::{ensure, expect};
use onelock_core::{Backend, Mode, Renewal, Renewed};

use crate::support::counter::Counter;
use crate::support::harness::open;
use crate::{counted, quiet};

const LEASE: Duration = Duration::from_secs(600);

/// The bytes for each entry of renewing these in requests of `size`: the least of three times, because a beat of the
/// session may fall into one.
async fn bytes_each(
    client: &Arc<dyn Backend>,
    counter: &Counter,
    all: &[Renewal],
    size: usize,
) -> Verdict<u64> {
    let mut least = u64::MAX;
    for _ in 0..3 {
        let before = counter.counts().bytes();
        for some in all.chunks(size) {
            for answer in client.renew(some).await {
                expect!(answer?, Renewed::Waiting(_) => (), "a waiter");
            }
        }
        least = least.min((counter.counts().bytes() - before) / all.len() as u64);
    }
    Ok(least)
}

/// Renewing a waiter costs as many bytes in a line of 800 as in one of 50, together with others and alone.
#[tokio::test(flavor = "multi_thread")]
async fn renewing_a_waiter_costs_the_same_in_every_line() -> Verdict {
    let (_server, counter, url) = counted().await?;
    for mode in [Mode::Exclusive, Mode::Shared, Mode::permit(2)?] {
        let mut costs = Vec::new();
        for count in [50, 200, 800] {
            let (holder, client) = (open(&url).await?, open(&url).await?);
            let name = name(&format!("idle-{mode}-{count}"))?;
            let ahead = if matches!(mode, Mode::Permit { .. }) { [mode, mode] } else { [Mode::Exclusive; 2] };
            held(&holder, &leased(request(&name, ahead[0])?, LEASE)).await?;
            // Readers wait for a writer that waits itself, so that none of them is next.
            holder.acquire(&leased(request(&name, ahead[1])?, LEASE)).await?;
            let mut due = Vec::new();
            for _ in 0..count {
                let request = leased(request(&name, mode)?, LEASE);
                due.push(renewal(&request, waiting(&client, &request).await?.token));
            }
            let waits = due.iter().map(|renewal| {
                let (client, ticket) = (Arc::clone(&client), renewal.ticket.clone());
                tokio::spawn(async move { client.wait(&ticket).await })
            });
            let waits: Vec<_> = waits.collect();
            quiet(&counter).await?;
            let together = bytes_each(&client, &counter, &due, count).await?;
            let alone = bytes_each(&client, &counter, &due[..20], 1).await?;
            costs.push((count, together, alone));
            ensure!(waits.iter().all(|wait| !wait.is_finished()), "nothing has happened");
            waits.iter().for_each(tokio::task::JoinHandle::abort);
            join_all(waits).await;
            client.close().await?;
            holder.close().await?;
        }
        println!("mode {mode}: (waiters, bytes each, bytes alone) {costs:?}");
        let (_, together, alone) = *costs.first().context("a cost")?;
        for (count, now_together, now_alone) in &costs {
            // Longer numbers, and the few beats and pings that fall into it.
            ensure!(*now_together <= together + together / 4, "together, {count}: {costs:?} in mode {mode}");
            ensure!(*now_alone <= alone + alone / 4, "alone, {count}: {costs:?} in mode {mode}");
        }
    }
    Ok(())
}
