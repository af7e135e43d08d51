//! Random verbs on the server and on the executable specification give the same answers.
//!
//! The server's clock is the real one, so time is moved by moving what the tables say. Leases and steps of time are whole
//! multiples of a unit that is longer than the test, so the time it takes decides nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use lock_core::line::Line;
use lock_core::{
    Backend, EntryView, FencingToken, HolderId, ListedName, Mode, Note, Page, Raise, Release, Renewal,
    Renewed, Request, Standing, Timestamp,
};
use lock_sql::MySqlBackend;

use crate::mysql_server::{Admin as _, MariaDb};
use crate::support::{config, name};
use lock_conformance::servers::mariadb::mysqld;

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

const UNIT: Duration = Duration::from_secs(600);
const NAMES: [&str; 5] = ["a", "a/b", ".dots", "ü {x}%", "A"];

/// What the store should say.
#[derive(Default)]
struct Model {
    lines: BTreeMap<&'static str, Line>,
    numbers: BTreeMap<&'static str, i64>,
    now: Timestamp,
}

impl Model {
    fn line(&mut self, on: &'static str) -> &mut Line {
        let now = self.now;
        let line = self.lines.entry(on).or_default();
        line.settle(now, &mut Vec::new());
        line
    }

    /// `given` is the number that the store gave: a new one is any that is larger than those before.
    fn acquire(&mut self, on: &'static str, request: &Request, given: Option<FencingToken>) -> Standing {
        let now = self.now;
        let mut number = self.numbers.get(on).copied().unwrap_or(0);
        let answer = self.line(on).acquire(now, request, || {
            let given = given.expect("an entry");
            assert!(given.get() > number, "{given} after {number}");
            number = given.get();
            given
        });
        self.numbers.insert(on, number);
        answer
    }

    fn remove(&mut self, on: &'static str, holder: HolderId) -> Release {
        let now = self.now;
        let line = self.line(on);
        let there = line.remove(holder);
        line.settle(now, &mut Vec::new());
        if there { Release::Released } else { Release::NotHeld }
    }
}

/// Answers with their times in units: what passed in between is far less than one, and only ever makes them shorter.
fn units(time: Option<Duration>) -> Option<u128> {
    time.map(|time| time.as_nanos().div_ceil(UNIT.as_nanos()))
}

fn standing(answer: &Standing) -> String {
    match answer {
        Standing::Held(grant) => format!("{grant:?}"),
        Standing::Waiting(p) => format!("{} {:?} {:?}", p.token, p.lease, units(p.retry_after)),
        Standing::Busy(busy) => format!("busy {:?}", units(busy.retry_after)),
    }
}

/// In a batch an entry's own renewal may come before or after the look at the leases ahead: only whether there is one.
fn renewed(answer: &Renewed) -> String {
    match answer {
        Renewed::Waiting(p) => format!("{} {:?} {}", p.token, p.lease, p.retry_after.is_some()),
        other => format!("{other:?}"),
    }
}

fn views(views: &[EntryView]) -> Vec<String> {
    let show = |view: &EntryView| {
        let age = view.age.unwrap().as_nanos() / UNIT.as_nanos();
        format!("{} {} {} {age} {:?}", view.token, view.mode, view.note, units(view.expires_in))
    };
    views.iter().map(show).collect()
}

fn some_request(dice: &mut Dice, on: &str) -> Request {
    let modes = [Mode::Exclusive, Mode::Shared, Mode::permit(2).unwrap(), Mode::permit(3).unwrap()];
    Request {
        name: name(on),
        holder: HolderId::from_u128(1 + u128::from(dice.roll(12))),
        mode: modes[dice.roll(4) as usize],
        lease: UNIT * (1 + dice.roll(8) as u32),
        waiter_lease: UNIT * (1 + dice.roll(4) as u32),
        delay: UNIT * dice.roll(3) as u32,
        queue: dice.roll(3) > 0,
        note: Note::new(["", "someone", "host:7 'quoted' \"x\" \\"][dice.roll(3) as usize]).unwrap(),
    }
}

async fn advance(server: &MariaDb, model: &mut Model, time: Duration) {
    model.now = model.now + time;
    let micros = time.as_micros();
    let sql = format!("UPDATE locks.onelock_line SET ends = ends - {micros}, joined = joined - {micros}");
    server.run(&sql).await.unwrap();
}

async fn play(server: &MariaDb, stores: &[MySqlBackend], seed: u64, steps: usize) {
    server.run("DELETE FROM locks.onelock_line; DELETE FROM locks.onelock_name").await.unwrap();
    server.run("UPDATE locks.onelock_floor SET number = 0").await.unwrap();
    let (mut model, mut dice) = (Model::default(), Dice(seed));
    for step in 0..steps {
        let at = format!("seed {seed}, step {step}");
        let store = &stores[dice.roll(stores.len() as u64) as usize];
        let on = NAMES[dice.roll(5) as usize];
        let request = some_request(&mut dice, on);
        let ticket = request.ticket();
        match dice.roll(12) {
            0..=3 => {
                let answer = store.acquire(&request).await.unwrap();
                let given = match answer {
                    Standing::Held(grant) => Some(grant.token),
                    Standing::Waiting(place) => Some(place.token),
                    Standing::Busy(_) => None,
                };
                let expected = model.acquire(on, &request, given);
                assert_eq!(standing(&answer), standing(&expected), "acquire, {at}");
            }
            4 | 5 => renew(store, &mut model, &mut dice, &at).await,
            6 | 7 => {
                let expected = model.remove(on, ticket.holder);
                assert_eq!(store.release(&ticket).await.unwrap(), expected, "release, {at}");
            }
            8 => {
                let last = model.numbers.get(on).copied().unwrap_or(0);
                let token = FencingToken::new(1.max(last - dice.roll(6) as i64)).unwrap();
                let expected = match model.line(on).by_token(token) {
                    Some(holder) => model.remove(on, holder),
                    None => Release::NotHeld,
                };
                assert_eq!(store.evict(&name(on), token).await.unwrap(), expected, "evict, {at}");
            }
            9 => {
                let last = model.numbers.get(on).copied().unwrap_or(0);
                let token = FencingToken::new(last + 1 + dice.roll(5) as i64).unwrap();
                let expected = if model.line(on).contains(ticket.holder) {
                    model.numbers.insert(on, token.get());
                    Raise::Raised
                } else {
                    Raise::NotHeld
                };
                assert_eq!(store.raise(&ticket, token).await.unwrap(), expected, "raise, {at}");
            }
            _ => advance(server, &mut model, UNIT * dice.roll(4) as u32).await,
        }
        let now = model.now;
        let (holders, waiters) = model.line(on).view(now);
        let seen = store.inspect(&name(on)).await.unwrap();
        assert_eq!(views(&seen.holders), views(&holders), "holders, {at}");
        assert_eq!(views(&seen.waiters), views(&waiters), "waiters, {at}");
        if step % 10 == 0 {
            compare_listing(&stores[0], &mut model, &at).await;
        }
    }
}

async fn renew(store: &MySqlBackend, model: &mut Model, dice: &mut Dice, at: &str) {
    let due: Vec<(&'static str, Renewal)> = (0..1 + dice.roll(6))
        .map(|_| {
            let on = NAMES[dice.roll(5) as usize];
            let r = some_request(dice, on);
            (on, Renewal { ticket: r.ticket(), lease: r.lease, waiter_lease: r.waiter_lease })
        })
        .collect();
    let asked: Vec<_> = due.iter().map(|(_, renewal)| renewal.clone()).collect();
    let answers: Vec<_> = store.renew(&asked).await.into_iter().map(|a| renewed(&a.unwrap())).collect();
    let now = model.now;
    let expected: Vec<_> = due.iter().map(|(on, r)| renewed(&model.line(on).renew(now, r))).collect();
    assert_eq!(answers, expected, "renew, {at}");
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

/// Two clients in turn, one with blocks and one with several statements: each must see at once what the other did.
#[tokio::test]
async fn random_verbs_give_the_same_answers() {
    let server = MariaDb::start(&[]).await.unwrap();
    let mut stores = Vec::new();
    for options in ["", "?blocks=false"] {
        let config = config(&format!("{}{options}", server.url()));
        stores.push(MySqlBackend::connect(config).await.unwrap());
    }
    for seed in 1..=6 {
        play(&server, &stores, 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed), 300).await;
    }
}

/// A server with strange defaults: every one of them changes what a careless statement does.
#[tokio::test]
async fn strange_defaults_change_nothing() {
    let mut settings = vec![
        "--default-time-zone=-07:30",
        "--sql-mode=ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,HIGH_NOT_PRECEDENCE",
        "--character-set-server=latin1",
        "--collation-server=latin1_german1_ci",
        "--transaction-isolation=SERIALIZABLE",
        // For users without special rights.
        "--init-connect=SET autocommit = 0, completion_type = 'RELEASE', sql_select_limit = 1, sql_safe_updates = 1, \
         sql_auto_is_null = 1, sql_big_selects = 0, max_join_size = 1, innodb_lock_wait_timeout = 1",
    ];
    if mysqld().is_none() {
        // MySQL keeps the one from its first start and does not know the other.
        settings.extend(["--lower-case-table-names=1", "--skip-character-set-client-handshake"]);
    }
    let server = MariaDb::start(&settings).await.unwrap().with_locker().await.unwrap();
    let mut stores = Vec::new();
    for options in ["", "?blocks=false"] {
        let config = config(&format!("{}{options}", server.locker_url()));
        stores.push(MySqlBackend::connect(config).await.unwrap());
    }
    for seed in 1..=2 {
        play(&server, &stores, 0x2545_F491_4F6C_DD1D_u64.wrapping_mul(seed), 200).await;
    }
}
