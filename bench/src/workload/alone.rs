//! One client, one operation after the other.

use std::future::Future;
use std::time::Instant;

use super::{Task, Workload};
use crate::data::Metric;
use crate::measure::{Latencies, Sample, Stretch, figure};
use crate::subject::{Failure, LEASE, Lock, LockSpec, Need};

/// Repeats `operation` for as long as the effort says, after it has warmed up, and times each; one is `parts` operations.
async fn repeated<F: Future<Output = Result<(), Failure>> + Send>(
    task: &Task,
    parts: u32,
    mut operation: impl FnMut() -> F + Send,
) -> Result<Sample, Failure> {
    let warm = Instant::now() + task.effort.warm_up;
    while Instant::now() < warm {
        operation().await?;
    }
    let mut latencies = Latencies::new()?;
    let before = task.served().await?;
    let stretch = Stretch::begin();
    let mut last = stretch.began;
    while last < stretch.began + task.effort.time {
        operation().await?;
        let now = Instant::now();
        latencies.add((now - last) / parts);
        last = now;
        // A store that answers at once would never let anything else in.
        tokio::task::coop::consume_budget().await;
    }
    let (seconds, share) = (stretch.seconds(), stretch.share());
    let count = latencies.count() as f64 * f64::from(parts);
    let requests = task.served_since(before).await?;
    Ok(Sample::of(latencies)
        .with(Metric::Rate, count / seconds)
        .with(Metric::ClientCpu, share)
        .with(Metric::ServerRequests, requests.map(|requests| requests / count)))
}

pub(super) const CYCLE: Workload = Workload {
    latency: Some("from the call of acquire to the answer to the release"),
    ..Workload::new(
        "cycle",
        "One client takes a free lock and gives it back, over and over. Nobody else wants it.",
        |task| Box::pin(cycles(task)),
    )
};

async fn cycles(task: &Task) -> Result<Sample, Failure> {
    let client = task.connect().await?;
    let lock = client.prepare(&LockSpec::exclusive(&task.name))?;
    let sample = repeated(task, 1, || cycle(&*lock)).await?;
    client.close().await?;
    Ok(sample.with(Metric::RoundTrips, round_trips(task).await?))
}

async fn cycle(lock: &dyn Lock) -> Result<(), Failure> {
    lock.take().await?.release().await
}

/// Round trips of a cycle, the median of some.
async fn round_trips(task: &Task) -> Result<Option<f64>, Failure> {
    let Some((client, tap)) = task.subject.connect_tapped(LEASE).await? else { return Ok(None) };
    let lock = client.prepare(&LockSpec::exclusive(&task.name))?;
    // The first ones prepare statements and load scripts.
    for _ in 0..5 {
        cycle(&*lock).await?;
    }
    let mut trips = Vec::new();
    for _ in 0..50 {
        let before = tap.trips();
        cycle(&*lock).await?;
        trips.push((tap.trips() - before) as f64);
    }
    client.close().await?;
    Ok(figure(trips).map(|trips| trips.median))
}

pub(super) const TRY_BUSY: Workload = Workload {
    operation: "try",
    latency: Some("of one try"),
    needs: &[Need::Try],
    ..Workload::new(
        "try-busy",
        "One client holds a lock; another tries it over and over and finds it busy.",
        |task| Box::pin(tries(task)),
    )
};

async fn tries(task: &Task) -> Result<Sample, Failure> {
    let (holder, client) = (task.connect().await?, task.connect().await?);
    let held = holder.prepare(&LockSpec::exclusive(&task.name))?.take().await?;
    let lock = client.prepare(&LockSpec::exclusive(&task.name))?;
    let refused = || async {
        match lock.try_take().await? {
            None => Ok(()),
            Some(_) => Err("it was granted twice".into()),
        }
    };
    let sample = repeated(task, 1, refused).await?;
    held.release().await?;
    client.close().await?;
    holder.close().await?;
    Ok(sample)
}

pub(super) const REENTRY: Workload = Workload {
    operation: "enter again and step out",
    latency: Some("of entering again and stepping out, the mean of 100 in a row"),
    needs: &[Need::Reentry],
    ..Workload::new(
        "reentry",
        "A client that holds a lock takes it again for the same owner, and steps out.",
        |task| Box::pin(reentries(task)),
    )
};

async fn reentries(task: &Task) -> Result<Sample, Failure> {
    /// How many are timed together: one takes about as long as reading the clock.
    const TOGETHER: u32 = 100;
    let client = task.connect().await?;
    let held = client.prepare(&LockSpec::exclusive(&task.name))?.take().await?;
    let again = || async {
        for _ in 0..TOGETHER {
            held.again()?.release().await?;
        }
        Ok(())
    };
    let sample = repeated(task, TOGETHER, again).await?;
    held.release().await?;
    client.close().await?;
    Ok(sample)
}

pub(super) const ROUND_TRIP: Workload = Workload {
    operation: "round trip",
    latency: Some("of one round trip"),
    needs: &[Need::Ping],
    ..Workload::new(
        "round-trip",
        "The driver alone asks the server for the least that it answers, over and over: one bare round trip, by which \
         the time of a hand-over can be divided.",
        |task| Box::pin(pings(task)),
    )
};

async fn pings(task: &Task) -> Result<Sample, Failure> {
    let client = task.connect().await?;
    let ping = || async { client.ping().await?.then_some(()).ok_or_else(|| "it has no round trip".into()) };
    let mut sample = repeated(task, 1, ping).await?;
    // What a server counts for it says nothing about locks.
    sample.figures.remove(&Metric::ServerRequests);
    client.close().await?;
    Ok(sample)
}

pub(super) const CONNECT: Workload = Workload {
    operation: "connect, acquire, release and close",
    latency: Some("from the call of connect to the grant"),
    ..Workload::new(
        "connect",
        "A new client connects and takes its first lock, a free one; then it gives it back and ends.",
        |task| Box::pin(connections(task)),
    )
};

async fn connections(task: &Task) -> Result<Sample, Failure> {
    let mut latencies = Latencies::new()?;
    let before = task.served().await?;
    for _ in 0..task.effort.connections {
        let began = Instant::now();
        let client = task.connect().await?;
        let held = client.prepare(&LockSpec::exclusive(&task.name))?.take().await?;
        latencies.add(began.elapsed());
        held.release().await?;
        client.close().await?;
    }
    let requests = task.served_since(before).await?;
    let each = requests.map(|requests| requests / f64::from(task.effort.connections));
    Ok(Sample::of(latencies).with(Metric::ServerRequests, each))
}
