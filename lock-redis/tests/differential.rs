//! The scripts against the executable specification: random verbs, the same answers, the same pushes.

use std::time::Duration;

use crate::common::{HOUR, Raw, Server, request, soon};
use onelock_core::line::Line;
use onelock_core::store::Checked;
use onelock_core::{
    Backend, FencingToken, HolderId, Release, Renewal, Renewed, Request, Standing, Timestamp, Wake,
};
use onelock_redis::RedisBackend;

/// A small generator with a printed seed: a failure can be replayed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % sides as u64).unwrap()
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.roll(of.len())]
    }
}

/// The server's clock runs and the model's stands still: times are compared to within this, and leases differ by more.
const SLOP: Duration = Duration::from_secs(100);
const NOW: Timestamp = Timestamp::from_origin(Duration::from_secs(1_000_000));

fn near(a: Option<Duration>, b: Option<Duration>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.abs_diff(b) < SLOP,
        (a, b) => a == b,
    }
}

struct Pair<'a> {
    backend: &'a Checked<RedisBackend>,
    raw: Raw,
    line: Line,
    next: i64,
    known: Vec<Request>,
}

impl Pair<'_> {
    /// Settles the line: who is promoted, and the number of each.
    fn settle(&mut self) -> Vec<(HolderId, FencingToken)> {
        let mut promoted = Vec::new();
        self.line.settle(NOW, &mut promoted);
        let entries = self.line.entries().iter().map(|e| (e.holder, e.token));
        entries.filter(|(holder, _)| promoted.contains(holder)).collect()
    }

    async fn acquire(&mut self, request: Request) {
        let mut promoted = self.settle();
        let next = &mut self.next;
        let expected = self.line.acquire(NOW, &request, || {
            *next += 1;
            FencingToken::new(*next).unwrap()
        });
        let answer = self.backend.acquire(&request).await.unwrap();
        match (expected, answer) {
            (Standing::Waiting(e), Standing::Waiting(a)) => {
                assert_eq!((e.token, e.lease), (a.token, a.lease));
                assert!(near(e.retry_after, a.retry_after), "{e:?} {a:?}");
            }
            (Standing::Busy(e), Standing::Busy(a)) => {
                assert!(near(e.retry_after, a.retry_after), "{e:?} {a:?}")
            }
            (e, a) => assert_eq!(e, a),
        }
        promoted.retain(|(holder, _)| *holder != request.holder);
        self.pushed(&promoted).await;
        if !matches!(answer, Standing::Busy(_)) {
            self.known.push(request);
        }
    }

    async fn renew(&mut self, due: Vec<Request>, lease: Duration) {
        let items: Vec<_> = due.iter().map(|r| Renewal::new(r.ticket(), lease, lease / 2)).collect();
        let mut promoted = self.settle();
        let expected: Vec<_> = items.iter().map(|item| self.line.renew(NOW, item)).collect();
        // The answer itself tells whoever asked; its place in the inbox is gone by then.
        for (e, a) in expected.into_iter().zip(self.backend.renew(&items).await) {
            match (e, a.unwrap()) {
                (Renewed::Waiting(e), Renewed::Waiting(a)) => {
                    assert_eq!((e.token, e.lease), (a.token, a.lease));
                    assert!(near(e.retry_after, a.retry_after), "{e:?} {a:?}");
                }
                (e, a) => assert_eq!(e, a),
            }
        }
        promoted.retain(|(holder, _)| !due.iter().any(|r| r.holder == *holder));
        self.pushed(&promoted).await;
    }

    async fn leave(&mut self, request: &Request) {
        let mut promoted = self.settle();
        let expected = if self.line.remove(request.holder) { Release::Released } else { Release::NotHeld };
        promoted.extend(self.settle());
        assert_eq!(self.backend.release(&request.ticket()).await.unwrap(), expected);
        promoted.retain(|(holder, _)| *holder != request.holder);
        self.pushed(&promoted).await;
    }

    async fn evict(&mut self, token: FencingToken) {
        let before = self.settle();
        let victim = self.line.by_token(token);
        if let Some(holder) = victim {
            self.line.remove(holder);
        }
        let mut promoted = self.settle();
        let name = &self.known[0].name;
        let expected = if victim.is_some() { Release::Released } else { Release::NotHeld };
        assert_eq!(self.backend.evict(name, token).await.unwrap(), expected);
        promoted.extend(before);
        self.pushed(&promoted).await;
    }

    /// The lease of this entry ends now, on both sides, and nobody is told.
    async fn expire(&mut self, request: &Request) {
        self.line.remove(request.holder);
        let holder = request.holder.to_hex();
        // Alone it is one string, whose end is the end of the lease.
        let entries = key("e", request.name.as_str());
        if self.raw.run_args(&["TYPE", &entries]).await == redis::Value::SimpleString("string".into()) {
            let alone = self.raw.run_args(&["GET", &entries]).await;
            if matches!(alone, redis::Value::BulkString(text) if text.starts_with(holder.as_bytes())) {
                self.raw.run_args(&["DEL", &entries]).await;
            }
            return;
        }
        for kind in ["o", "x"] {
            let key = key(kind, request.name.as_str());
            self.raw.run_args(&["ZADD", &key, "XX", "1", &holder]).await;
        }
    }

    /// Exactly the promoted have mail.
    async fn pushed(&mut self, promoted: &[(HolderId, FencingToken)]) {
        for (holder, token) in promoted {
            let request = self.known.iter().find(|r| r.holder == *holder).unwrap();
            assert_eq!(soon(self.backend.wait(&request.ticket())).await.unwrap(), Wake::Held(*token));
        }
    }

    async fn compare(&mut self) {
        let promoted = self.settle();
        let (holders, waiters) = self.line.view(NOW);
        let name = self.known.first().map_or_else(|| crate::common::name("line"), |r| r.name.clone());
        let shown = self.backend.inspect(&name).await.unwrap();
        self.pushed(&promoted).await;
        for (expected, shown) in [(&holders, &shown.holders), (&waiters, &shown.waiters)] {
            assert_eq!(expected.len(), shown.len());
            for (e, s) in expected.iter().zip(shown) {
                assert_eq!((e.token, e.mode, &e.note), (s.token, s.mode, &s.note));
                assert!(near(e.expires_in, s.expires_in) && near(e.age, s.age), "{e:?} {s:?}");
            }
        }
        if self.line.is_empty() {
            assert_eq!(self.raw.residue().await, Vec::<String>::new());
        } else {
            self.expiries(&name).await;
        }
    }

    /// Whatever there is expires, and not before the last lease.
    async fn expiries(&mut self, name: &onelock_core::LockName) {
        let last = self.line.entries().iter().map(|e| e.ends.saturating_since(NOW)).max().unwrap();
        for kind in ["e", "o", "w", "x"] {
            let left = self.raw.run_args(&["PTTL", &key(kind, name.as_str())]).await;
            let redis::Value::Int(left) = left else { panic!("{left:?}") };
            let live = u64::try_from(left).map(Duration::from_millis);
            assert!(left == -2 || live.is_ok_and(|left| left + SLOP > last), "{kind}: {left} {last:?}");
        }
    }
}

fn key(kind: &str, name: &str) -> String {
    // The name used here needs no escape; its bucket is fixed for ever.
    format!("onelock:{{{}}}:{kind}:{name}", BUCKET)
}
const BUCKET: u32 = 39;

async fn run(server: &Server, seed: u64, steps: usize) {
    let backend = server.backend().await;
    let mut raw = server.raw().await;
    raw.run("FLUSHALL").await;
    // A counter that is missing starts at the clock.
    raw.run(&format!("SET onelock:{{{BUCKET}}}:n 1")).await;
    let mut dice = Dice(seed | 1);
    let mut pair = Pair { backend: &backend, raw, line: Line::default(), next: 1, known: Vec::new() };
    let modes = [&["x"][..], &["x", "s"], &["s", "p2", "p3", "x"], &["p3"], &["s"]][dice.roll(5)];
    for step in 0..steps {
        let old = (!pair.known.is_empty()).then(|| dice.pick(&pair.known).clone());
        match (dice.roll(20), old) {
            (0..=6, _) => {
                let mut fresh = request("line", modes[dice.roll(modes.len())]);
                fresh.queue = dice.roll(4) > 0;
                fresh.lease = HOUR * u32::try_from(1 + dice.roll(3)).unwrap();
                fresh.waiter_lease = fresh.lease / 2;
                fresh.delay = Duration::from_secs(500) * u32::try_from(dice.roll(2)).unwrap();
                pair.acquire(fresh).await;
            }
            (7..=8, Some(old)) if pair.line.contains(old.holder) => pair.acquire(old).await,
            (9..=11, Some(old)) => {
                pair.renew(vec![old], HOUR * u32::try_from(dice.roll(4) + 1).unwrap()).await
            }
            (12, Some(_)) => pair.renew(pair.known.clone(), HOUR).await,
            (13..=15, Some(old)) => pair.leave(&old).await,
            (16, Some(_)) => {
                let n = i64::try_from(dice.roll(usize::try_from(pair.next).unwrap() + 2) + 1).unwrap();
                pair.evict(crate::common::token(n)).await;
            }
            (17..=18, Some(old)) => pair.expire(&old).await,
            _ => pair.compare().await,
        }
        if step % 5 == 0 {
            pair.compare().await;
        }
    }
    for left in pair.known.clone() {
        pair.leave(&left).await;
    }
    pair.compare().await;
    assert_eq!(pair.raw.residue().await, Vec::<String>::new());
}

#[tokio::test]
async fn random_verbs_answer_as_the_line_does() {
    let server = Server::start(&[]).await;
    let base: u64 = match std::env::var("SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => u64::from(std::process::id()) << 20,
    };
    for seed in base..base + 40 {
        println!("SEED={seed}");
        run(&server, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), 150).await;
    }
}
