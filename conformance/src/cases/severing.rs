//! Connections that end within a request or an answer, at any byte of it.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use onelock_core::{Backend, FencingToken, Page, Raise, Release, Renewed, Result, Standing, Wake};

use crate::case::{Need, table};
use crate::ctx::{Ctx, Entry, PATIENCE, answered, exclusive, name, renewal, ticket, trying, within};
use crate::faults::{Fault, Link};
use crate::verdict::{Context as _, Verdict};
use crate::{ensure, ensure_eq, fail};

table! {
    messages_may_end_anywhere: [8, 9, 16], [Need::Link], 240;
}

/// What is asked for while connections end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Join,
    Try,
    Stand,
    Wait,
    Renew,
    Release,
    Raise,
    Inspect,
    List,
    Evict,
}

/// Each connection of a client ends after some bytes of what it asks, or of what the server answers, wherever in a message that
/// is. An answer that comes through is true, an error may be asked again, a clear one means that nothing was done, and what the client
/// has it gives back by its next connection.
async fn messages_may_end_anywhere(ctx: &Ctx) -> Verdict {
    let (can, lines) = (ctx.harness().capabilities(), ctx.shows_the_line());
    let calls = [
        (Call::Join, true),
        (Call::Try, true),
        (Call::Stand, lines),
        (Call::Wait, lines),
        (Call::Renew, true),
        (Call::Release, true),
        (Call::Raise, can.raise),
        (Call::Inspect, true),
        (Call::List, can.list),
        (Call::Evict, can.fencing),
    ];
    let (sound, mut rng) = (ctx.backend().await?, ctx.rng());
    let (mut rounds, mut cuts) = (0, 0);
    for (call, _) in calls.into_iter().filter(|(_, offered)| *offered) {
        // The first round shows how many bytes it takes, both ways together: each way has fewer, and its first matter most.
        let mut bytes = 0;
        for round in 0..=ctx.volume(16) {
            let most = bytes >> rng.below(10);
            let way = if rng.below(2) == 0 { Fault::CutAfter } else { Fault::CutRequestsAfter };
            let cut = Some(way(rng.below(most + 1))).filter(|_| round > 0);
            let scene = Scene::new(ctx, &sound, call, round).await?;
            let done = scene.run(cut).await;
            let (through, lost) = done.map_err(|stop| stop.during(format!("{call:?}, {cut:?}")))?;
            if cut.is_some() {
                (rounds, cuts) = (rounds + 1, cuts + u64::from(lost));
            } else {
                bytes = through;
            }
        }
    }
    ensure!(cuts * 4 >= rounds, "{cuts} of {rounds} calls lost their connection: the run proves nothing");
    ctx.nothing_left(&[]).await
}

/// One call by a client of its own.
struct Scene<'a> {
    ctx: &'a Ctx,
    call: Call,
    link: Arc<Link>,
    /// Who has a sound connection, and the lock where the call is not about a lock that its own client holds.
    sound: &'a Arc<dyn Backend>,
    first: Option<Entry>,
    mine: Entry,
}

impl<'a> Scene<'a> {
    async fn new(ctx: &'a Ctx, sound: &'a Arc<dyn Backend>, call: Call, round: u64) -> Verdict<Self> {
        let (lock, link) = (name(&format!("severed/{call:?}/{round}"))?, Link::new());
        let backend = ctx.connect_by(&link).await?;
        let mut request = exclusive(&lock)?;
        let first = match call {
            Call::Join | Call::Renew | Call::Release | Call::Raise => None,
            Call::Try | Call::Stand | Call::Wait | Call::Inspect | Call::List | Call::Evict => {
                Some(Entry::holding(sound, exclusive(&lock)?).await?)
            }
        };
        let token = match call {
            Call::Renew | Call::Release | Call::Raise | Call::Wait => {
                match answered(|| backend.acquire(&request)).await? {
                    Standing::Held(grant) => Some(grant.token),
                    Standing::Waiting(place) => place.token,
                    Standing::Busy(_) => fail!("a queued request is busy"),
                }
            }
            _ => None,
        };
        if call == Call::Try {
            request = trying(request);
        }
        Ok(Self { ctx, call, link, sound, first, mine: Entry { backend, request, token } })
    }

    /// Makes the call while connections are cut, looks at what came of it, and gives everything back. How many bytes went through, and
    /// whether a connection was lost.
    async fn run(self, cut: Option<Fault>) -> Verdict<(u64, bool)> {
        let before = self.link.bytes.get();
        if let Some(fault) = cut {
            self.link.set(fault);
        }
        let asked = within(PATIENCE, "the call", self.ask()).await??;
        self.look(asked).await?;
        let seen = (self.link.bytes.get() - before, self.link.hits.get() > 0);
        self.link.heal();
        self.end().await?;
        Ok(seen)
    }

    /// Asks. An answer must be as it has to be.
    async fn ask(&self) -> Verdict<Result<()>> {
        let (backend, request, ticket) = (&self.mine.backend, &self.mine.request, self.mine.ticket());
        let ends = ends(self.ctx);
        match self.call {
            Call::Join => good(backend.acquire(request).await, |got| matches!(got, Standing::Held(_))),
            Call::Try => good(backend.acquire(request).await, |got| matches!(got, Standing::Busy(_))),
            Call::Stand => good(backend.acquire(request).await, |got| matches!(got, Standing::Waiting(_))),
            Call::Wait => {
                let first = self.first.as_ref().context("a holder")?;
                ensure_eq!(first.release().await?, Release::Released, "the release");
                // Whose connections all end is notified when they no longer do.
                let heals = async {
                    while self.link.hits.get() == 0 {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    self.link.heal();
                    std::future::pending().await
                };
                tokio::select! {
                    told = self.told() => Ok(told?),
                    never = heals => never,
                }
            }
            Call::Renew => {
                let renewed = renew(&self.mine).await;
                good(renewed, |got| matches!(got, Renewed::Held(_)) || ends && *got == Renewed::NotHeld)
            }
            Call::Release => good(backend.release(&ticket).await, |got| *got == Release::Released || ends),
            Call::Raise => {
                let own = self.mine.token.context("its number")?;
                let raised = backend.raise(&ticket, FencingToken::new(own.get() + 1000)?).await;
                good(raised, |got| *got == Raise::Raised)
            }
            Call::Inspect => good(backend.inspect(&request.name).await, |line| line.holders.len() == 1),
            Call::List => {
                let listed = backend.list(request.name.as_str(), &Page::first(10)?).await;
                good(listed, |listing| listing.names.len() == 1)
            }
            Call::Evict => {
                let token = self.first.as_ref().and_then(|first| first.token).context("its number")?;
                good(backend.evict(&request.name, token).await, |got| *got == Release::Released)
            }
        }
    }

    /// Waits and renews as a client does, until it holds.
    async fn told(&self) -> Verdict<Result<()>> {
        loop {
            match self.mine.backend.wait(&self.mine.ticket()).await {
                Ok(Wake::Held(token)) if self.mine.token.is_none_or(|own| own == token) => return Ok(Ok(())),
                Ok(Wake::Held(token)) => fail!("number {token} after {:?}", self.mine.token),
                Ok(Wake::Ask) => {}
                Err(error) if error.is_retryable() => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(error) => return Ok(Err(error)),
            }
            match renew(&self.mine).await {
                Ok(Renewed::Held(_)) => return Ok(Ok(())),
                Ok(Renewed::Waiting(_)) => {}
                // Its place has ended with its connection.
                Ok(Renewed::NotHeld) if ends(self.ctx) => return Ok(Ok(())),
                Ok(Renewed::NotHeld) => fail!("its entry is gone"),
                Err(error) if error.is_retryable() => {}
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    /// Looks at the line after the call: it is as the answer says.
    async fn look(&self, asked: Result<()>) -> Verdict {
        let line = answered(|| self.sound.inspect(&self.mine.request.name)).await?;
        let (before, now) = (usize::from(self.call != Call::Join), line.holders.len() + line.waiters.len());
        let wanted = match self.call {
            Call::Stand => 2,
            Call::Release | Call::Evict => 0,
            _ => 1,
        };
        match asked {
            // A renewal may have said that the lock has ended with its connection.
            Ok(()) if self.call == Call::Renew && ends(self.ctx) => {}
            Ok(()) => {
                ensure_eq!((line.holders.len(), now), (wanted.min(1), wanted), "holders, and all entries");
            }
            Err(error) => {
                ensure!(error.is_retryable(), "{error}");
                let same = now == before || self.call == Call::Wait || ends(self.ctx);
                ensure!(
                    same || error.is_unclear(),
                    "{now} entries, {before} before, though nothing was done: {error}"
                );
            }
        }
        Ok(())
    }

    /// Gives everything back. What was unclear is asked again, as every caller must.
    async fn end(self) -> Verdict {
        let Self { ctx, call, sound, first, mine, .. } = self;
        if let (Call::Evict, Some(token)) = (call, first.as_ref().and_then(|first| first.token)) {
            answered(|| mine.backend.evict(&mine.request.name, token)).await?;
        }
        for entry in [Some(&mine), first.as_ref()].into_iter().flatten() {
            let ticket = ticket(&entry.request, None);
            answered(|| entry.backend.release(&ticket)).await?;
        }
        ctx.until_line_has(sound, &mine.request.name, 0).await?;
        Ok(mine.backend.close().await?)
    }
}

/// An answer must be as it has to be; an error is for the caller to judge.
fn good<T: Debug>(got: Result<T>, is: impl FnOnce(&T) -> bool) -> Verdict<Result<()>> {
    match got {
        Ok(answer) if is(&answer) => Ok(Ok(())),
        Ok(answer) => fail!("the answer is {answer:?}"),
        Err(error) => Ok(Err(error)),
    }
}

/// Whether a lock ends with its connection.
fn ends(ctx: &Ctx) -> bool {
    ctx.harness().lacks(Need::Reconnect).is_some()
}

async fn renew(mine: &Entry) -> Result<Renewed> {
    mine.backend.renew(&[renewal(&mine.request, mine.token)]).await.remove(0)
}
