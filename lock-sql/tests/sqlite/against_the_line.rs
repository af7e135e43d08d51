//! Random verbs on SQLite and on the executable specification give the same answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lock_core::line::Line;
use lock_core::{
    Backend, Clock as _, FencingToken, HolderId, ListedName, Mode, Note, Page, Raise, Release, Renewal,
    Request,
};

use crate::support::{HandClock, file, folder, name, open_with};

/// A small generator of pseudo-random numbers; its seed is in every message.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

const NAMES: [&str; 4] = ["a", "a/b", ".dots", "ü {x}%"];

/// What the store should say.
struct Model {
    lines: BTreeMap<&'static str, Line>,
    number: i64,
    clock: Arc<HandClock>,
}

impl Model {
    fn line(&mut self, on: &'static str) -> &mut Line {
        let now = self.clock.now();
        let line = self.lines.entry(on).or_default();
        line.settle(now, &mut Vec::new());
        line
    }

    fn acquire(&mut self, on: &'static str, request: &Request) -> lock_core::Standing {
        let now = self.clock.now();
        let mut number = self.number;
        let answer = self.line(on).acquire(now, request, || {
            number += 1;
            FencingToken::new(number).unwrap()
        });
        self.number = number;
        answer
    }

    fn remove(&mut self, on: &'static str, holder: HolderId) -> Release {
        let now = self.clock.now();
        let line = self.line(on);
        let there = line.remove(holder);
        line.settle(now, &mut Vec::new());
        if there { Release::Released } else { Release::NotHeld }
    }
}

fn some_request(dice: &mut Dice, on: &str) -> Request {
    let modes = [Mode::Exclusive, Mode::Shared, Mode::permit(2).unwrap(), Mode::permit(3).unwrap()];
    Request {
        name: name(on),
        holder: HolderId::from_u128(1 + u128::from(dice.roll(12))),
        mode: modes[dice.roll(4) as usize],
        lease: Duration::from_millis(100 + 100 * dice.roll(20)),
        waiter_lease: Duration::from_millis(100 + 100 * dice.roll(10)),
        delay: Duration::from_millis(50 * dice.roll(3)),
        queue: dice.roll(3) > 0,
        note: Note::new(["", "someone", "host:7 'quoted' \"x\""][dice.roll(3) as usize]).unwrap(),
    }
}

async fn play(seed: u64, steps: usize) {
    let folder = folder();
    let clock = HandClock::new();
    // Two backends in turn: each must see at once what the other did.
    let stores = [open_with(&file(&folder), &clock).await, open_with(&file(&folder), &clock).await];
    let mut model = Model { lines: BTreeMap::new(), number: 0, clock: clock.clone() };
    let mut dice = Dice(seed);
    for step in 0..steps {
        let at = format!("seed {seed}, step {step}");
        let store = &stores[dice.roll(2) as usize];
        let on = NAMES[dice.roll(4) as usize];
        let request = some_request(&mut dice, on);
        let ticket = request.ticket();
        match dice.roll(12) {
            0..=3 => {
                assert_eq!(
                    store.acquire(&request).await.unwrap(),
                    model.acquire(on, &request),
                    "acquire, {at}"
                );
            }
            4 | 5 => {
                let due: Vec<(&'static str, Renewal)> = (0..1 + dice.roll(4))
                    .map(|_| {
                        let on = NAMES[dice.roll(4) as usize];
                        let r = some_request(&mut dice, on);
                        (on, Renewal { ticket: r.ticket(), lease: r.lease, waiter_lease: r.waiter_lease })
                    })
                    .collect();
                let asked: Vec<_> = due.iter().map(|(_, renewal)| renewal.clone()).collect();
                let answers: Vec<_> =
                    store.renew(&asked).await.into_iter().map(|answer| answer.unwrap()).collect();
                let now = clock.now();
                let expected: Vec<_> = due.iter().map(|(on, r)| model.line(on).renew(now, r)).collect();
                assert_eq!(answers, expected, "renew, {at}");
            }
            6 | 7 => {
                let expected = model.remove(on, ticket.holder);
                assert_eq!(store.release(&ticket).await.unwrap(), expected, "release, {at}");
            }
            8 => {
                let token = FencingToken::new(1.max(model.number - dice.roll(6) as i64)).unwrap();
                let expected = match model.line(on).by_token(token) {
                    Some(holder) => model.remove(on, holder),
                    None => Release::NotHeld,
                };
                assert_eq!(store.evict(&name(on), token).await.unwrap(), expected, "evict, {at}");
            }
            9 => {
                let token = FencingToken::new(model.number + 1 + dice.roll(5) as i64).unwrap();
                let expected = if model.line(on).contains(ticket.holder) {
                    model.number = model.number.max(token.get());
                    Raise::Raised
                } else {
                    Raise::NotHeld
                };
                assert_eq!(store.raise(&ticket, token).await.unwrap(), expected, "raise, {at}");
            }
            _ => clock.advance(Duration::from_millis(20 * dice.roll(20))),
        }
        let (holders, waiters) = {
            let now = clock.now();
            model.line(on).view(now)
        };
        let seen = store.inspect(&name(on)).await.unwrap();
        assert_eq!((seen.holders, seen.waiters), (holders, waiters), "inspect, {at}");
        if step % 10 == 0 {
            compare_listing(&stores[0], &mut model, &at).await;
        }
    }
}

async fn compare_listing(store: &dyn Backend, model: &mut Model, at: &str) {
    let mut expected: Vec<_> = NAMES
        .iter()
        .filter_map(|on| {
            let line = model.line(on);
            let holders = line.holders();
            let waiters = line.entries().len() - holders;
            (!line.is_empty()).then(|| ListedName { name: name(on), holders, waiters })
        })
        .collect();
    expected.sort_by_key(|listed| listed.name.encoded());
    let mut page = Page::first(2).unwrap();
    let mut seen = Vec::new();
    loop {
        let listing = store.list("", &page).await.unwrap();
        assert!(listing.names.len() <= 2, "{at}");
        seen.extend(listing.names);
        match listing.next {
            Some(cursor) => page = page.after(cursor),
            None => break,
        }
    }
    assert_eq!(seen, expected, "list, {at}");
}

#[tokio::test]
async fn random_verbs_give_the_same_answers() {
    for seed in 1..=8 {
        play(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed), 500).await;
    }
}
