//! A trial: clients in processes of their own work on a few locks while everything around them breaks, and every event
//! is written down and judged afterwards.
//!
//! | part | what it does |
//! |---|---|
//! | [`event`] | what a client writes down, one JSON line an event |
//! | [`work`] | what a client does: short holds, long holds, holds that outlast their lease |
//! | `campaign` | how it stands in an election, and observes it |
//! | [`crew`] | clients as processes, to be stopped and killed; as tasks where the store lives in one process |
//! | `pulse` | when a client could not run |
//! | [`nemesis`] | what breaks, when, and for how long, from a seed |
//! | [`resource`] | a resource that checks fencing tokens, and its twin that does not |
//! | [`judge`] | what the events say about the promises |
//!
//! All clients stamp their events with the boot clock, which all processes of a host share: times can be compared.

mod campaign;
pub mod crew;
pub mod event;
pub mod judge;
pub mod nemesis;
pub mod pulse;
pub mod resource;
pub mod work;

pub use crew::run_if_asked;

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::ctx::{Ctx, PATIENCE, within};
use crate::trial::crew::Crew;
use crate::trial::judge::Findings;
use crate::trial::resource::Resource;
use crate::verdict::Verdict;
use crate::{ensure, fail};

/// What the clients of a trial are to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The leases of holders and waiters.
    pub lease: Duration,
    /// Whether all modes are used, or exclusive locks alone.
    pub modes: bool,
    /// Whether the store waits in a line.
    pub fifo: bool,
    /// Whether guards have fencing tokens.
    pub fencing: bool,
    /// Whether holds leave a lock-delay.
    pub delay: bool,
    /// Whether the work counts as the worker saw it, not as long as the lock was believed in: where no process is stopped.
    pub worked: bool,
    /// Where the resource listens that the writers write to.
    pub resource: u16,
}

/// What breaks in a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    /// Clients, their ways and the server.
    Everything,
    /// Ways and the server. No client is stopped, so each can end its work in time.
    Ways,
    /// The server that leads the others stalls for longer than any lease.
    Leader,
}

/// How much a trial does at least.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// Full cycles of acquire, hold and release.
    pub cycles: u64,
    /// Faults.
    pub faults: u64,
}

/// Runs a trial until its goal is reached, heals everything, waits until every client works again, and judges.
///
/// # Errors
/// When the store broke a promise, a client does not go on after healing, or something is left in the store.
pub async fn run(ctx: &Ctx, clients: u32, goal: Goal, scene: Scene) -> Verdict<Findings> {
    let capabilities = ctx.harness().capabilities();
    let resource = Resource::start().await?;
    let worked = scene != Scene::Everything;
    let plan = Plan {
        lease: if worked { ctx.units(3).max(JUDGED) } else { ctx.units(3) },
        modes: capabilities.shared && capabilities.permits,
        fifo: capabilities.fifo,
        fencing: capabilities.fencing,
        delay: capabilities.delay,
        worked,
        resource: resource.port,
    };
    let crew = Crew::start(ctx, clients, &plan).await?;
    let telling = || {
        let (stopped, deposed) = crew.stopped()?;
        let told = match scene {
            Scene::Everything => !capabilities.fencing || resource.lists.refused() > 0,
            Scene::Ways | Scene::Leader => stopped >= STOPPED,
        };
        Ok(told && (!nemesis::deposes(ctx, scene) || deposed > 1))
    };
    let faults = nemesis::harass(ctx, &crew, (plan.lease, scene), goal, telling).await?;
    goes_on(ctx, &crew).await?;
    crew.stop().await?;
    let mut findings = judge::judge(&crew, &plan)?;
    findings.faults = faults;
    findings.resource(&resource);
    leaves_nothing(ctx, &plan).await?;
    Ok(findings)
}

/// The shortest lease whose margin is longer than a gap in a process that is not noted.
const JUDGED: Duration = Duration::from_millis(1_500);
/// So many works must have been stopped by the end of their hold.
const STOPPED: u64 = 10;

/// Every client makes full cycles again once nothing is broken any more.
async fn goes_on(ctx: &Ctx, crew: &Crew) -> Verdict {
    const CYCLES: u64 = 5;
    for client in &crew.clients {
        let (number, before, end) = (client.number, client.cycles()?, Instant::now() + PATIENCE * 2);
        while client.cycles()? < before + CYCLES {
            ensure!(!client.has_ended().await?, "client {number} has ended; it said why");
            if Instant::now() >= end {
                let lines = lines(ctx).await?;
                fail!("client {number} does not work long after everything was healed\n{lines}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(())
}

/// Who holds and who waits for each lock, for the message of a failure.
async fn lines(ctx: &Ctx) -> Verdict<String> {
    let locks = ctx.locks().await?;
    let mut text = String::new();
    for name in work::names() {
        let line = locks.inspect(&name).await?;
        text += &format!("{name}: holders {:?}, waiters {:?}\n", line.holders, line.waiters);
    }
    Ok(text)
}

/// What killed clients held and waited for ends with its leases; a last visitor of each lock sees it.
async fn leaves_nothing(ctx: &Ctx, plan: &Plan) -> Verdict {
    let locks = ctx.locks().await?;
    for text in work::names() {
        let guard = ctx.soon("the locks are free in the end", locks.mutex(&text)?.acquire()).await??;
        guard.release().await?;
    }
    within(PATIENCE + plan.lease * 2, "nothing is owed", locks.close(PATIENCE)).await??;
    ctx.nothing_left(&[]).await
}
