//! Random verbs on a store and on the executable specification, a [`Line`] for each name: the same answers.
//!
//! For a store whose time a test can move, and that keeps whole lines as the specification has them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::line::{Entry, Line};
use onelock_core::{
    Backend, EntryView, FencingToken, HolderId, ListedName, LockName, Mode, Note, Raise, Release, Renewal,
    Renewed, Request, Standing, Timestamp,
};

use crate::ctx::listed;
use crate::rng::Rng;
use crate::verdict::{Context as _, Verdict};
use crate::{ensure, ensure_eq};

/// Names that a careless store takes for one another, or for a path or a pattern.
const NAMES: [&str; 5] = ["a", "a/b", ".dots", "ü {x}%", "A"];

/// How a store numbers its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// One by one, those of all names together.
    OneByOne,
    /// Each is larger than those before it of the same name.
    Growing,
}

/// The times of a request.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// A holder's lease.
    pub lease: Duration,
    /// A waiter's lease.
    pub waiter_lease: Duration,
    /// The delay after a holder that was lost.
    pub delay: Duration,
}

/// An empty store, and how its time is moved and compared.
#[async_trait]
pub trait Subject: Send + Sync {
    /// Its clients. They take turns at random: each must see at once what the others did.
    fn clients(&self) -> &[Arc<dyn Backend>];

    /// How it numbers.
    fn numbers(&self) -> Numbers;

    /// Random times of a request.
    fn times(&self, rng: &mut Rng) -> Times;

    /// A random time between two verbs.
    fn pause(&self, rng: &mut Rng) -> Duration;

    /// Moves the store's time.
    async fn advance(&self, time: Duration) -> Verdict;

    /// What is compared of a time that is left.
    fn left(&self, time: Duration) -> Duration {
        time
    }

    /// What is compared of the time that is left to those ahead, in the answer to a renewal.
    fn left_after_renewal(&self, time: Duration) -> Duration {
        self.left(time)
    }

    /// What is compared of an age.
    fn age(&self, time: Duration) -> Duration {
        time
    }
}

/// Plays this many random verbs of this seed, and looks at a line after each of them.
///
/// # Errors
/// The first answer that differs.
pub async fn play(subject: &impl Subject, seed: u64, steps: usize) -> Verdict {
    let mut game = Game { subject, model: Model::new(subject.numbers()), rng: Rng::new(seed) };
    for step in 0..steps {
        game.step(step).await.map_err(|stop| stop.during(format!("seed {seed}, step {step}")))?;
    }
    Ok(())
}

/// What the store should say.
struct Model {
    lines: BTreeMap<&'static str, Line>,
    /// The last of each name.
    numbers: BTreeMap<&'static str, i64>,
    rule: Numbers,
    now: Timestamp,
}

impl Model {
    fn new(rule: Numbers) -> Self {
        Self { lines: BTreeMap::new(), numbers: BTreeMap::new(), rule, now: Timestamp::default() }
    }

    fn line(&mut self, on: &'static str) -> &mut Line {
        let now = self.now;
        let line = self.lines.entry(on).or_default();
        line.settle(now, &mut Vec::new());
        line
    }

    fn last(&self, on: &str) -> i64 {
        let last = match self.rule {
            Numbers::OneByOne => self.numbers.values().max(),
            Numbers::Growing => self.numbers.get(on),
        };
        last.copied().unwrap_or(0)
    }

    /// `given` is the number that the store gave, if any.
    fn acquire(
        &mut self,
        on: &'static str,
        request: &Request,
        given: Option<FencingToken>,
    ) -> Verdict<Standing> {
        let (now, last) = (self.now, self.last(on));
        let next = match (self.rule, given) {
            (Numbers::Growing, Some(given)) => given,
            _ => FencingToken::new(last + 1)?,
        };
        let mut used = false;
        let answer = self.line(on).acquire(now, request, || {
            used = true;
            next
        });
        if used {
            ensure!(next.get() > last, "{next} after {last}");
            self.numbers.insert(on, next.get());
        }
        Ok(answer)
    }

    fn remove(&mut self, on: &'static str, holder: HolderId) -> Release {
        let now = self.now;
        let line = self.line(on);
        let there = line.remove(holder);
        line.settle(now, &mut Vec::new());
        if there { Release::Released } else { Release::NotHeld }
    }
}

struct Game<'a, S> {
    subject: &'a S,
    model: Model,
    rng: Rng,
}

impl<S: Subject> Game<'_, S> {
    fn name(&mut self) -> &'static str {
        NAMES[self.rng.index(NAMES.len())]
    }

    fn number(&mut self, end: u64) -> Verdict<i64> {
        Ok(i64::try_from(self.rng.below(end))?)
    }

    fn request(&mut self, on: &str) -> Verdict<Request> {
        let permit = |limit, weight| Mode::permit(limit)?.weighing(weight);
        let modes =
            [Mode::Exclusive, Mode::Shared, permit(2, 1)?, permit(3, 1)?, permit(3, 2)?, permit(4, 3)?];
        let notes = ["", "someone", "host:7 'quoted' \"x\" \\"];
        let Times { lease, waiter_lease, delay } = self.subject.times(&mut self.rng);
        let rng = &mut self.rng;
        Ok(Request::new(
            LockName::new(on)?,
            HolderId::from_u128(1 + u128::from(rng.below(12))),
            modes[rng.index(modes.len())],
            lease,
        )
        .waiter_lease(waiter_lease)
        .delay(delay)
        .queue(rng.below(3) > 0)
        .note(Note::new(notes[rng.index(notes.len())])?))
    }

    async fn step(&mut self, step: usize) -> Verdict {
        let clients = self.subject.clients();
        let store = &clients[self.rng.index(clients.len())];
        let on = self.name();
        let request = self.request(on)?;
        let ticket = request.ticket();
        match self.rng.below(12) {
            0..=3 => {
                let answer = store.acquire(&request).await?;
                let given = match answer {
                    Standing::Held(grant) => Some(grant.token),
                    Standing::Waiting(place) => place.token,
                    Standing::Busy(_) => None,
                };
                let expected = self.model.acquire(on, &request, given)?;
                ensure_eq!(self.standing(answer), self.standing(expected), "acquire");
            }
            4 | 5 => self.renew(store).await?,
            6 | 7 => {
                // A client mostly knows the number.
                let entry = |e: &&Entry| e.holder == ticket.holder;
                let number = self.model.line(on).entries().iter().find(entry).map(|e| e.token);
                let token = number.filter(|_| self.rng.below(3) > 0);
                let expected = self.model.remove(on, ticket.holder);
                ensure_eq!(store.release(&ticket.token(token)).await?, expected, "release");
            }
            8 => {
                let token = FencingToken::new(1.max(self.model.last(on) - self.number(6)?))?;
                let expected = match self.model.line(on).by_token(token) {
                    Some(holder) => self.model.remove(on, holder),
                    None => Release::NotHeld,
                };
                ensure_eq!(store.evict(&request.name, token).await?, expected, "evict");
            }
            9 => {
                let token = FencingToken::new(self.model.last(on) + 1 + self.number(5)?)?;
                let expected = if self.model.line(on).contains(ticket.holder) {
                    self.model.numbers.insert(on, token.get());
                    Raise::Raised
                } else {
                    Raise::NotHeld
                };
                ensure_eq!(store.raise(&ticket, token).await?, expected, "raise");
            }
            _ => {
                let time = self.subject.pause(&mut self.rng);
                self.model.now = self.model.now + time;
                self.subject.advance(time).await?;
            }
        }
        let now = self.model.now;
        let (holders, waiters) = self.model.line(on).view(now);
        let seen = store.inspect(&request.name).await?;
        ensure_eq!(self.views(seen.holders), self.views(holders), "holders");
        ensure_eq!(self.views(seen.waiters), self.views(waiters), "waiters");
        if step.is_multiple_of(10) { self.compare_listing().await } else { Ok(()) }
    }

    async fn renew(&mut self, store: &Arc<dyn Backend>) -> Verdict {
        let (mut names, mut due) = (Vec::new(), Vec::new());
        for _ in 0..=self.rng.below(6) {
            let on = self.name();
            let Request { lease, waiter_lease, .. } = self.request(on)?;
            let ticket = self.request(on)?.ticket();
            names.push(on);
            due.push(Renewal::new(ticket, lease, waiter_lease));
        }
        let answers: Result<Vec<_>, _> = store.renew(&due).await.into_iter().collect();
        let answers: Vec<_> = answers?.into_iter().map(|answer| self.renewed(answer)).collect();
        let now = self.model.now;
        let mut expected = Vec::new();
        for (on, renewal) in names.into_iter().zip(&due) {
            let answer = self.model.line(on).renew(now, renewal);
            expected.push(self.renewed(answer));
        }
        ensure_eq!(answers, expected, "renew");
        Ok(())
    }

    async fn compare_listing(&mut self) -> Verdict {
        let mut expected = Vec::new();
        for on in NAMES {
            let line = self.model.line(on);
            let holders = line.holders();
            let waiters = line.entries().len() - holders;
            if !line.is_empty() {
                expected.push(ListedName::new(LockName::new(on)?, holders, waiters));
            }
        }
        expected.sort_by_key(|listed| listed.name.encoded().into_owned());
        let store = self.subject.clients().first().context("a client")?;
        let listed = listed(store, "", 2).await;
        ensure_eq!(listed.context(format!("list, specified {expected:?}"))?, expected, "list");
        Ok(())
    }

    fn standing(&self, mut answer: Standing) -> Standing {
        let left = match &mut answer {
            Standing::Held(_) => return answer,
            Standing::Waiting(place) => &mut place.retry_after,
            Standing::Busy(busy) => &mut busy.retry_after,
        };
        *left = left.map(|time| self.subject.left(time));
        answer
    }

    fn renewed(&self, mut answer: Renewed) -> Renewed {
        if let Renewed::Waiting(place) = &mut answer {
            place.retry_after = place.retry_after.map(|time| self.subject.left_after_renewal(time));
        }
        answer
    }

    fn views(&self, mut views: Vec<EntryView>) -> Vec<EntryView> {
        for view in &mut views {
            view.age = view.age.map(|time| self.subject.age(time));
            view.expires_in = view.expires_in.map(|time| self.subject.left(time));
        }
        views
    }
}
