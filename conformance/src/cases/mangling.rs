//! The way to the store alters what the store says.

use std::panic::Location;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use onelock_core::{Backend, ErrorKind, Page, Renewal, Renewed, Request, Result, Standing};

use crate::case::{Need, table};
use crate::ctx::{Ctx, Entry, LONG, PATIENCE, exclusive, holder, leased, name, trying, within};
use crate::faults::{Fault, Link};
use crate::rng::Rng;
use crate::verdict::Verdict;
use crate::wear::{PEAK, in_kib};
use crate::{ensure, ensure_eq, expect};

table! {
    mangled_replies: [16], [Need::Network, Need::Altered], 120;
}

/// How many clients meet altered replies at once, each on a link of its own.
const CLIENTS: usize = 16;
/// How many altered replies make a run.
const ALTERED: u64 = 200;
/// What a run takes at most unless there is nothing to show yet.
const TIME: Duration = Duration::from_secs(5);
/// The longest a call may take: far more than its time-out on a machine that does other things, too.
const LIMIT: Duration = Duration::from_secs(15);
/// How much memory altered replies may take, in KiB; the rest of the program is in it.
const MEMORY: u64 = 512 << 10;

/// Replies that arrive altered are never a panic, never a hang, never gigabytes, and take no other client's lock from it. Each
/// client works again when the link heals. That an altered reply is never taken for a grant is left to TCP and TLS, which
/// check what arrives.
async fn mangled_replies(ctx: &Ctx) -> Verdict {
    pass_over_panics_of_drivers();
    let sound = ctx.backend().await?;
    let taken = Entry::holding(&sound, exclusive(&name("mangled/taken")?)?).await?;
    let before = in_kib(PEAK)?;
    let end = Instant::now() + TIME * u32::try_from(ctx.volume(1))?;
    let wanted = ctx.volume(ALTERED) / CLIENTS as u64;
    let mut clients = tokio::task::JoinSet::new();
    for i in 0..CLIENTS {
        let (link, mut rng) = (Link::new(), ctx.rng());
        let backend = ctx.connect_by(&link).await?;
        let (seed, keeps) = (rng.bits(), ctx.harness().keeps_altered_connections());
        clients.spawn(async move {
            let client = Client { backend, link, number: i, keeps };
            client.work(rng, wanted, end).await.map_err(|e| e.during(format!("client {i}, seed {seed}")))
        });
    }
    let mut sum = Tally::default();
    let mut due = tokio::time::interval(LONG / 6);
    loop {
        let tally = tokio::select! {
            tally = clients.join_next() => tally,
            _ = due.tick() => {
                expect!(taken.renew().await?, Renewed::Held(_) => (), "the sound client's lock");
                continue;
            }
        };
        let Some(tally) = tally else { break };
        let tally = tally??;
        sum.altered += tally.altered;
        sum.failed += tally.failed;
        sum.answered += tally.answered;
    }
    let Tally { altered, failed, answered } = sum;
    // Else the run is void.
    ensure!(altered >= ctx.volume(ALTERED) / 3, "only {altered} replies were altered");
    ensure!(
        failed >= altered / 20,
        "{altered} altered replies, and only {failed} calls of {answered} failed"
    );
    let grown = in_kib(PEAK)?.saturating_sub(before);
    ensure!(grown < MEMORY, "{altered} altered replies took {} MiB of memory", grown >> 10);
    expect!(taken.renew().await?, Renewed::Held(_) => (), "the sound client's lock");
    ensure_eq!(holder(&sound, &taken.request.name).await?, taken.token, "the holder at the end");
    taken.release().await?;
    Ok(())
}

struct Client {
    backend: Arc<dyn Backend>,
    link: Arc<Link>,
    number: usize,
    /// The driver keeps a connection whose two ends disagree about what was said: it must break before it is replaced.
    keeps: bool,
}

#[derive(Default)]
struct Tally {
    altered: u64,
    /// Calls that ended in an error.
    failed: u64,
    /// Calls that ended well.
    answered: u64,
}

impl Client {
    async fn work(&self, mut rng: Rng, wanted: u64, end: Instant) -> Verdict<Tally> {
        let mut tally = Tally::default();
        let mut round = 0;
        while self.link.hits.get() < wanted && (Instant::now() < end || self.link.hits.get() < wanted / 2) {
            round += 1;
            // A stream that was altered may be out of step for good. A sound moment in between lets clients get over it,
            // as they must.
            self.link.set(Fault::Mangle(rng.bits()));
            for _ in 0..8 {
                if self.link.hits.get() < wanted {
                    self.step(&mut rng, &mut tally).await?;
                }
            }
            if round % 4 == 0 {
                self.link.heal();
                self.recovers(round).await?;
            }
        }
        self.link.heal();
        self.recovers(0).await?;
        tally.altered = self.link.hits.get();
        Ok(tally)
    }

    /// One call, or a few that belong together.
    async fn step(&self, rng: &mut Rng, tally: &mut Tally) -> Verdict {
        let taken = leased(exclusive(&name("mangled/taken")?)?, Duration::from_secs(3));
        match rng.below(6) {
            0 | 1 => {
                let request = trying(taken);
                self.call(tally, "a try", self.backend.acquire(&request)).await?;
            }
            2 => self.wait(taken, tally).await?,
            3 => {
                let own = name(&format!("mangled/own/{}/{}", self.number, rng.below(4)))?;
                let own = trying(leased(exclusive(&own)?, Duration::from_secs(3)));
                self.call(tally, "acquire", self.backend.acquire(&own)).await?;
                self.renew(&own, tally).await?;
                self.call(tally, "release", self.backend.release(&own.ticket())).await?;
            }
            4 => {
                self.call(tally, "inspect", self.backend.inspect(&taken.name)).await?;
            }
            _ => {
                let page = Page::first(10)?;
                self.call(tally, "list", self.backend.list("mangled", &page)).await?;
            }
        }
        Ok(())
    }

    /// In the line behind the holder.
    async fn wait(&self, request: Request, tally: &mut Tally) -> Verdict {
        self.call(tally, "acquire", self.backend.acquire(&request)).await?;
        self.renew(&request, tally).await?;
        let ticket = request.ticket();
        // It ends when the line says so, or not at all.
        let _ = tokio::time::timeout(Duration::from_millis(5), self.backend.wait(&ticket)).await;
        self.call(tally, "release", self.backend.release(&ticket)).await?;
        Ok(())
    }

    async fn renew(&self, request: &Request, tally: &mut Tally) -> Verdict {
        let due = [Renewal::new(request.ticket(), request.lease, request.waiter_lease)];
        let answers = within(LIMIT, "a renewal", self.backend.renew(&due)).await?;
        ensure!(answers.len() == 1, "{} answers to one renewal", answers.len());
        answers.into_iter().for_each(|answer| tally.count(answer));
        Ok(())
    }

    async fn call<T>(&self, tally: &mut Tally, what: &str, call: impl Future<Output = Result<T>>) -> Verdict {
        tally.count(within(LIMIT, what, call).await?);
        Ok(())
    }

    /// The same client takes and gives back a free lock.
    async fn recovers(&self, round: u32) -> Verdict {
        if self.keeps {
            self.link.set(Fault::Reset);
            tokio::time::sleep(Duration::from_millis(20)).await;
            self.link.heal();
        }
        let end = Instant::now() + PATIENCE;
        let free = name(&format!("mangled/free/{}/{round}", self.number))?;
        let mut owed: Vec<Request> = Vec::new();
        loop {
            let request = trying(leased(exclusive(&free)?, Duration::from_secs(3)));
            let cycle = async {
                // What was asked for and not answered is given back, as every caller must.
                while let Some(old) = owed.last() {
                    self.backend.release(&old.ticket()).await?;
                    owed.pop();
                }
                owed.push(request.clone());
                let held = matches!(self.backend.acquire(&request).await?, Standing::Held(_));
                self.backend.release(&request.ticket()).await?;
                owed.pop();
                Ok::<_, onelock_core::Error>(held)
            };
            let last = match within(LIMIT, "a cycle after healing", cycle).await? {
                Ok(true) => return Ok(()),
                Ok(false) => "somebody holds it".to_owned(),
                Err(error) => error.to_string(),
            };
            ensure!(Instant::now() < end, "it does not work again after healing: {last}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Tally {
    fn count<T>(&mut self, ended: Result<T>) {
        match ended {
            Ok(_) => self.answered += 1,
            Err(error) => self.failed += u64::from(error.kind() != ErrorKind::Unsupported),
        }
    }
}

/// Keeps the panics of drivers from being taken for a panic of ours, which fails the case, and from filling the log. The
/// store's crate must make an error of one; where it does not, the task that asked ends, which the case sees.
fn pass_over_panics_of_drivers() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let thread = std::thread::current();
            let here = thread.name().is_some_and(|name| name.ends_with("::mangled_replies"));
            // The sources of this project are compiled by their relative paths; the standard library tells where it was
            // called from, or else its own path, which may be our fault.
            let driver = |at: &Location<'_>| at.file().starts_with('/') && !at.file().starts_with("/rustc/");
            if !here || !info.location().is_some_and(driver) {
                before(info);
            }
        }));
    });
}
