//! What an idle waiter costs as the line grows, in requests and bytes.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onelock_core::{Backend, LockName, Mode, Renewal, Renewed, Standing, Wake};
use tokio::task::JoinSet;

use crate::case::{Need, table};
use crate::ctx::{Ctx, PATIENCE, answered, name, patient, renewal, request};
use crate::faults::Link;
use crate::verdict::{Stop, Verdict};
use crate::{ensure, fail};

table! {
    an_idle_waiter_costs_the_same_in_any_line: [7, 9, 10], [Need::Requests, Need::Network], 240;
}

/// How long waiters are watched who do nothing.
const WATCHED: Duration = Duration::from_secs(1);
/// How many of a line are renewed one by one.
const SAMPLE: usize = 50;

/// What one waiter costs.
#[derive(Clone, Copy)]
struct Cost {
    requests: f64,
    bytes: f64,
}

impl Cost {
    const MOST: Self = Self { requests: f64::MAX, bytes: f64::MAX };

    /// Whether it has not grown from `small`. Numbers get longer, and a session's own beat may fall into what is counted.
    fn is_no_more_than(self, small: Self) -> bool {
        self.requests <= small.requests * 1.25 + 0.05 && self.bytes <= small.bytes * 1.25 + 16.0
    }

    fn least(self, other: Self) -> Self {
        Self { requests: self.requests.min(other.requests), bytes: self.bytes.min(other.bytes) }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} requests and {:.0} bytes", self.requests, self.bytes)
    }
}

/// In a line of 50, 200 and 800 a waiter costs the same while nothing happens, and so does its renewal. On stores without a
/// line, where clients ask again, what clients do is counted.
async fn an_idle_waiter_costs_the_same_in_any_line(ctx: &Ctx) -> Verdict {
    const SIZES: [usize; 3] = [50, 200, 800];
    if let Some(why) = ctx.harness().lacks(Need::Thousands) {
        return Err(Stop::NotApplicable(why));
    }
    if !ctx.harness().capabilities().fifo {
        let mut costs = Vec::new();
        for size in SIZES {
            costs.push(of_clients(ctx, size).await?);
        }
        return no_growth("waiting", &SIZES, &costs);
    }
    for mode in ctx.modes(2)? {
        let sizes = if mode == Mode::Exclusive { &SIZES[..] } else { &SIZES[..2] };
        let (mut idle, mut renewed) = (Vec::new(), Vec::new());
        for size in sizes {
            let mut line = IdleLine::start(ctx, mode, *size).await?;
            if mode == Mode::Exclusive {
                idle.push(line.idle(ctx).await?);
            }
            if line.polls().await {
                // Not meanwhile: what polls take is counted above.
                line.waits.shutdown().await;
            }
            renewed.push(line.renewed(ctx).await?);
            line.end().await?;
        }
        if mode == Mode::Exclusive {
            no_growth(&format!("{WATCHED:?} of waiting"), sizes, &idle)?;
        }
        no_growth(&format!("a renewal in mode {mode}"), sizes, &renewed)?;
    }
    Ok(())
}

fn no_growth(what: &str, sizes: &[usize], costs: &[Cost]) -> Verdict {
    let all: Vec<_> = sizes.iter().zip(costs).map(|(size, cost)| format!("{size}: {cost}")).collect();
    let all = format!("{what} costs each of {}", all.join("; of "));
    println!("{all}");
    ensure!(costs.iter().all(|cost| cost.is_no_more_than(costs[0])), "it grows: {all}");
    Ok(())
}

/// What each of `count` costs over `link` while nothing happens: the least of two times.
async fn watched(ctx: &Ctx, link: &Link, count: usize) -> Verdict<Cost> {
    settled(ctx, link).await?;
    let mut least = Cost::MOST;
    for _ in 0..2 {
        let (requests, bytes) = (ctx.store().requests().await?, link.bytes.get());
        tokio::time::sleep(WATCHED).await;
        let (requests, bytes) = (ctx.store().requests().await? - requests, link.bytes.get() - bytes);
        #[allow(clippy::cast_precision_loss, reason = "counts are small")]
        let each = |sum: u64| sum as f64 / count as f64;
        least = least.least(Cost { requests: each(requests), bytes: each(bytes) });
    }
    Ok(least)
}

/// Waiters of one client at the level of verbs, each waiting to be notified.
struct IdleLine {
    link: Arc<Link>,
    client: Arc<dyn Backend>,
    holder: Arc<dyn Backend>,
    name: LockName,
    due: Vec<Renewal>,
    waits: JoinSet<()>,
}

impl IdleLine {
    async fn start(ctx: &Ctx, mode: Mode, size: usize) -> Verdict<Self> {
        let link = Link::new();
        let (holder, client) = (ctx.backend().await?, ctx.connect_by(&link).await?);
        let name = name(&format!("idle-{mode}-{size}"))?;
        // Readers wait behind a writer that waits itself: none of them is the next.
        let first = if matches!(mode, Mode::Permit { .. }) { mode } else { Mode::Exclusive };
        for _ in 0..2 {
            holder.acquire(&request(&name, first)?).await?;
        }
        let (mut due, mut waits) = (Vec::new(), JoinSet::new());
        for _ in 0..size {
            let asked = request(&name, mode)?;
            let Standing::Waiting(place) = answered(|| client.acquire(&asked)).await? else {
                fail!("it does not wait");
            };
            let due_now = renewal(&asked, place.token);
            waits.spawn(wait(Arc::clone(&client), due_now.clone()));
            due.push(due_now);
        }
        Ok(Self { link, client, holder, name, due, waits })
    }

    /// While nothing happens.
    async fn idle(&self, ctx: &Ctx) -> Verdict<Cost> {
        let least = watched(ctx, &self.link, self.due.len()).await?;
        let line = self.holder.inspect(&self.name).await?;
        let count = line.holders.len() + line.waiters.len();
        ensure!(count == self.due.len() + 2, "{count} in a line of {}", self.due.len() + 2);
        Ok(least)
    }

    /// Whether something goes over the link while nothing happens.
    async fn polls(&self) -> bool {
        let before = self.link.bytes.get();
        tokio::time::sleep(WATCHED / 2).await;
        self.link.bytes.get() - before > self.due.len() as u64
    }

    /// Renewing some, each by itself, as if each had a client of its own. The requests are all of them; the bytes are those of
    /// the cheapest renewal, because a client that polls for all its waiters does so meanwhile.
    async fn renewed(&self, ctx: &Ctx) -> Verdict<Cost> {
        // In the first round a store may have to learn whom each waits for.
        self.renew().await?;
        let mut least = Cost::MOST;
        for _ in 0..3 {
            let requests = ctx.store().requests().await?;
            let bytes = self.renew().await?.into_iter().min().unwrap_or_default();
            let requests = ctx.store().requests().await? - requests;
            #[allow(clippy::cast_precision_loss, reason = "counts are small")]
            let round = Cost { requests: requests as f64 / SAMPLE as f64, bytes: bytes as f64 };
            least = least.least(round);
        }
        Ok(least)
    }

    /// The bytes of each renewal.
    async fn renew(&self) -> Verdict<Vec<u64>> {
        let mut bytes = Vec::new();
        for due in self.due.iter().step_by(self.due.len() / SAMPLE) {
            let before = self.link.bytes.get();
            let one = std::slice::from_ref(due);
            let renewed = answered(|| async { self.client.renew(one).await.remove(0) }).await?;
            ensure!(matches!(renewed, Renewed::Waiting(_)), "a waiter is {renewed:?}");
            bytes.push(self.link.bytes.get() - before);
        }
        Ok(bytes)
    }

    async fn end(mut self) -> Verdict {
        self.waits.shutdown().await;
        self.client.close().await?;
        Ok(self.holder.close().await?)
    }
}

/// Waits as a client does: who is notified asks.
async fn wait(client: Arc<dyn Backend>, due: Renewal) {
    while let Ok(Wake::Ask) = client.wait(&due.ticket).await {
        client.renew(std::slice::from_ref(&due)).await;
    }
}

/// What waiting costs each of so many on a store without a line.
async fn of_clients(ctx: &Ctx, size: usize) -> Verdict<Cost> {
    let link = Link::new();
    let (holder, locks) = (ctx.locks().await?, ctx.locks_by(&link, ctx.units(20), ctx.units(20)).await?);
    let text = format!("idle-{size}");
    let held = holder.mutex(&text)?.acquire().await?;
    let mut waiters = JoinSet::new();
    for _ in 0..size {
        let lock = locks.mutex(&text)?.retry(patient());
        waiters.spawn(async move { lock.acquire().await.map(drop) });
    }
    let least = watched(ctx, &link, size).await?;
    ensure!(held.is_held() && waiters.try_join_next().is_none(), "somebody waits no more");
    waiters.shutdown().await;
    held.release().await?;
    Ok(least)
}

/// Waits until as much goes over the link in half a second as in the half before: who has joined asks a few times more.
async fn settled(ctx: &Ctx, link: &Link) -> Verdict {
    let (mut last, mut before) = (u64::MAX, link.bytes.get());
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(500).max(ctx.units(1) / 2)).await;
        let now = link.bytes.get() - before;
        before += now;
        if now >= last - last / 5 {
            break;
        }
        last = now;
    }
    Ok(())
}
