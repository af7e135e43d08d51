//! What breaks, when, and for how long.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use onelock_core::toolkit::Mutex;

use super::crew::{Client, Crew};
use super::{Goal, Scene};
use crate::case::Need;
use crate::ctx::Ctx;
use crate::ensure;
use crate::faults::Fault;
use crate::rng::Rng;
use crate::verdict::Verdict;

/// A trial that has not reached its goal by then is a failure: this many leases for each fault, and this long for each
/// cycle.
const LEASES_PER_FAULT: u32 = 12;
const TIME_PER_CYCLE: Duration = Duration::from_millis(20);
const START: Duration = Duration::from_secs(60);
/// So many replies are let through one by one.
const SINGLES: usize = 8;

/// What can break a client.
#[derive(Clone, Copy, Debug)]
enum Blow {
    Link(Fault),
    OneByOne,
    Pause,
    Block,
    Kill,
}

/// What can happen to a way, by the names that records have.
const OF_LINKS: [(&str, Fault); 11] = [
    ("stall", Fault::Stall),
    ("requests stalled", Fault::StallRequests),
    ("replies stalled", Fault::StallReplies),
    ("reset", Fault::Reset),
    ("requests lost", Fault::LoseRequests),
    ("replies lost", Fault::LoseReplies),
    ("half-open", Fault::HalfOpen),
    ("delay", Fault::Delay(Duration::from_millis(30))),
    ("replies late", Fault::DelayReplies(Duration::from_millis(300))),
    ("throttle", Fault::Throttle(4000)),
    ("cut in mid-message", Fault::CutAfter(500)),
];

/// What can happen to a client in a process of its own. It is stopped the more often: that is what loses leases.
const OF_PROCESSES: [(&str, Blow); 4] = [
    (STOPPED, Blow::Pause),
    ("runtime blocked", Blow::Block),
    (STOPPED, Blow::Pause),
    ("client killed", Blow::Kill),
];
const STOPPED: &str = "client stopped";
const LEADER: &str = "leader stopped";

/// What can happen to the clients of this store.
fn blows(ctx: &Ctx, scene: Scene) -> Vec<(&'static str, Blow)> {
    let lacks = |need| ctx.harness().lacks(need).is_some();
    let mut blows = Vec::new();
    if scene == Scene::Leader {
        return blows;
    }
    // A link in another process is out of reach.
    if lacks(Need::Processes) || !lacks(Need::Network) {
        blows.extend(OF_LINKS.map(|(name, fault)| (name, Blow::Link(fault))));
        blows.push(("replies one by one", Blow::OneByOne));
    }
    if scene == Scene::Everything && !lacks(Need::Processes) {
        blows.extend(OF_PROCESSES);
    }
    blows
}

struct Nemesis<'a> {
    ctx: &'a Ctx,
    lease: Duration,
    scene: Scene,
    blows: Vec<(&'static str, Blow)>,
    next: AtomicUsize,
    over: AtomicBool,
    done: Mutex<BTreeMap<String, u64>>,
}

/// Breaks clients, their ways and the server again and again until the goal is reached; all is healed then. Says how
/// often what was broken.
///
/// # Errors
/// When the goal is not reached in time, or something cannot be broken.
pub async fn harass(
    ctx: &Ctx,
    crew: &Crew,
    (lease, scene): (Duration, Scene),
    goal: Goal,
    telling: impl Fn() -> Verdict<bool>,
) -> Verdict<BTreeMap<String, u64>> {
    let nemesis = Nemesis {
        ctx,
        lease,
        scene,
        blows: blows(ctx, scene),
        next: AtomicUsize::new(ctx.rng().index(100)),
        over: AtomicBool::new(false),
        done: Mutex::default(),
    };
    let clients = crew.clients.iter().map(|client| nemesis.or_ends(nemesis.of_client(client, ctx.rng())));
    let broken = join(join_all(clients), nemesis.or_ends(nemesis.of_the_server(ctx.rng())));
    let reached = async {
        let reached = nemesis.until(crew, goal, telling).await;
        nemesis.over.store(true, Ordering::Relaxed);
        reached
    };
    let (reached, (of_clients, of_server)) = join(reached, broken).await;
    of_clients.into_iter().collect::<Verdict>()?;
    of_server?;
    reached?;
    let done = nemesis.done.lock().clone();
    Ok(done)
}

impl Nemesis<'_> {
    fn over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn note(&self, what: impl Into<String>) {
        *self.done.lock().entry(what.into()).or_default() += 1;
    }

    fn count(&self) -> u64 {
        self.done.lock().values().sum()
    }

    /// What can be neither broken nor healed ends the trial.
    async fn or_ends(&self, part: impl Future<Output = Verdict>) -> Verdict {
        part.await.inspect_err(|_| self.over.store(true, Ordering::Relaxed))
    }

    async fn until(&self, crew: &Crew, goal: Goal, telling: impl Fn() -> Verdict<bool>) -> Verdict {
        let faults = u32::try_from(goal.faults)?;
        let end = Instant::now()
            + START
            + self.lease * LEASES_PER_FAULT * faults
            + TIME_PER_CYCLE * u32::try_from(goal.cycles)?;
        loop {
            let cycles = crew.clients.iter().map(Client::cycles).sum::<Verdict<u64>>()?;
            let so_far = Goal { cycles, faults: self.count() };
            let late = Instant::now() > end;
            // What tells nothing goes on for as long as it may.
            let reached = so_far.cycles >= goal.cycles && so_far.faults >= goal.faults;
            if self.over() || reached && (late || telling()?) {
                return Ok(());
            }
            ensure!(!late, "only {so_far:?} of {goal:?}");
            tokio::time::sleep(self.lease / 8).await;
        }
    }

    /// Waits a random time, but not when all is over; whether it goes on.
    async fn rest(&self, rng: &mut Rng, least: Duration, most: Duration) -> bool {
        let end = Instant::now() + least + rng.time(most - least);
        while !self.over() && Instant::now() < end {
            tokio::time::sleep((end - Instant::now()).min(self.lease / 16)).await;
        }
        !self.over()
    }

    async fn of_client(&self, client: &Client, mut rng: Rng) -> Verdict {
        while !self.blows.is_empty() && self.rest(&mut rng, self.lease / 4, self.lease).await {
            // One after the other over all clients: each kind comes before any comes twice.
            let next = self.next.fetch_add(1, Ordering::Relaxed) % self.blows.len();
            let (name, blow) = self.blows[next];
            match blow {
                Blow::Link(fault) => {
                    client.link.set(fault);
                    self.rest(&mut rng, self.lease / 8, self.lease * 2).await;
                    client.link.heal();
                }
                Blow::OneByOne => {
                    client.link.set(Fault::StallReplies);
                    for _ in 0..SINGLES {
                        self.rest(&mut rng, Duration::ZERO, self.lease / 4).await;
                        client.link.let_one_through();
                    }
                    client.link.heal();
                }
                Blow::Pause => client.pause(self.lease / 2 + rng.time(self.lease * 2)).await?,
                Blow::Block => client.block(self.lease / 4 + rng.time(self.lease)).await?,
                Blow::Kill => client.replace(rng.bits()).await?,
            }
            self.note(name);
        }
        Ok(())
    }

    async fn of_the_server(&self, mut rng: Rng) -> Verdict {
        let lacks = |need| self.ctx.harness().lacks(need).is_some();
        let (restarts, pauses) = (!lacks(Need::Restart), !lacks(Need::Pause));
        if self.scene == Scene::Leader {
            return self.of_the_leader(rng).await;
        }
        let mut restart = false;
        while (restarts || pauses) && self.rest(&mut rng, self.lease, self.lease * 3).await {
            restart = restarts && (!restart || !pauses);
            if restart {
                self.ctx.store().restart().await?;
                self.note("server killed");
            } else {
                // What has stopped half way goes on, too.
                let stopped = self.ctx.store().pause(true).await;
                self.rest(&mut rng, self.lease / 8, self.lease * 2).await;
                stopped.and(self.ctx.store().pause(false).await)?;
                self.note("server stopped");
            }
        }
        Ok(())
    }

    /// Longer than any lease or session, so that all of them end while what was sent last is under way.
    async fn of_the_leader(&self, mut rng: Rng) -> Verdict {
        while self.rest(&mut rng, self.lease, self.lease * 2).await {
            let stopped = self.ctx.store().stop_leader(true).await;
            tokio::time::sleep(self.lease * 2 + rng.time(self.lease)).await;
            stopped.and(self.ctx.store().stop_leader(false).await)?;
            self.note(LEADER);
        }
        Ok(())
    }
}

/// How many faults of different kinds a store can have in this scene.
#[must_use]
pub fn kinds(ctx: &Ctx, scene: Scene) -> usize {
    wanted(ctx, scene).len()
}

/// Whether leaders must lose their terms under their work: there are faults, and their leases are no longer than those.
#[must_use]
pub fn deposes(ctx: &Ctx, scene: Scene) -> bool {
    scene != Scene::Everything && kinds(ctx, scene) > 0
}

fn wanted(ctx: &Ctx, scene: Scene) -> Vec<&'static str> {
    let lacks = |need| ctx.harness().lacks(need).is_some();
    let mut wanted: Vec<_> = blows(ctx, scene).into_iter().map(|(name, _)| name).collect();
    match scene {
        Scene::Leader => wanted.push(LEADER),
        Scene::Everything | Scene::Ways => {
            wanted.extend((!lacks(Need::Restart)).then_some("server killed"));
            wanted.extend((!lacks(Need::Pause)).then_some("server stopped"));
        }
    }
    wanted
}

/// Fails unless every kind of fault that this store can have was seen.
///
/// # Errors
/// With what was not.
pub fn all_kinds(ctx: &Ctx, scene: Scene, faults: &BTreeMap<String, u64>) -> Verdict {
    for kind in wanted(ctx, scene) {
        ensure!(
            faults.contains_key(kind),
            "no fault of the kind `{kind}`: the run proves nothing ({faults:?})"
        );
    }
    Ok(())
}
