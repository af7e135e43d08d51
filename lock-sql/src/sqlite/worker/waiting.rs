//! Who waits for a promotion: woken by what this worker does itself, and by what other processes tell or have done.

use std::time::{Duration, Instant};

use onelock_core::{FencingToken, Result, Ticket, Wake};
use sqlx::Row as _;

use super::{Answer, Reply, STALL, Worker};
use crate::sqlite::error::Fault;
use crate::sqlite::open::{Store, check_version};
use crate::sqlite::step;

/// The shortest time between two looks for other processes, where they cannot be heard.
const QUICK_LOOK: Duration = Duration::from_millis(1);

/// How many times rarer looks are where other processes can be heard: then a look is only for what was not told, because
/// its process died after its commit. Hundreds of waiters must not keep the processor busy by looking.
const RARER: u32 = 100;

impl Worker {
    /// Answers each once its entry holds or is gone. Only reads, so it is in no writer's way.
    pub(super) async fn wait(&mut self, mut waits: Vec<(Ticket, Reply)>) {
        waits.retain(|(_, reply)| !reply.is_closed());
        if waits.is_empty() {
            return;
        }
        let keys = step::keys(waits.iter().map(|(ticket, _)| ticket));
        let deadline = Instant::now() + self.config.busy_timeout;
        let standings = self.persist(deadline, async |this| {
            let store = this.open().await?;
            // First, so that nothing falls between the answer and what is told later.
            store.listen();
            let query = sqlx::query(include_str!("../sql/wait.sql")).bind(keys.clone()).bind(store.now());
            let mut rows = query.fetch_all(&mut store.conn).await?;
            check_version(rows.pop().as_ref())?;
            store.check_same()?;
            rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
        });
        let standings: Vec<(Option<i64>, Option<bool>)> = match standings.await {
            Ok(standings) => standings,
            Err(error) => {
                for (_, reply) in waits {
                    let _ = reply.send(Err(error.clone()));
                }
                return;
            }
        };
        for ((_, reply), (number, held)) in waits.into_iter().zip(standings) {
            let wake = match (number, held) {
                (Some(number), Some(true)) => FencingToken::new(number).map(Wake::Held),
                (Some(number), _) => {
                    if self.watchers.is_empty() {
                        self.look_after(QUICK_LOOK);
                    }
                    self.watchers.entry(number).or_default().push(reply);
                    continue;
                }
                (None, _) => Ok(Wake::Ask),
            };
            // A caller that went away needs no answer.
            let _ = reply.send(wake.map(Answer::Wake));
        }
    }

    pub(super) fn wake(&mut self, number: i64, wake: Wake) {
        for reply in self.watchers.remove(&number).into_iter().flatten() {
            let _ = reply.send(Ok(Answer::Wake(wake)));
        }
    }

    /// Sets the next look: after `pause`, or much later where other processes can be heard.
    fn look_after(&mut self, pause: Duration) {
        let heard = self.store.as_ref().is_some_and(Store::listen);
        self.pause = pause;
        self.next_look = Instant::now() + if heard { self.config.poll * RARER } else { pause };
    }

    /// Looks whether another connection changed the file, and if so wakes the watchers it concerns. `told`: it did.
    pub(super) async fn look(&mut self, told: bool) {
        let began = Instant::now();
        self.watchers.retain(|_, replies| {
            replies.retain(|reply| !reply.is_closed());
            !replies.is_empty()
        });
        let mut soon = false;
        let changed = match tokio::time::timeout(STALL, self.changes(told)).await {
            Ok(Ok(changed)) => changed,
            // Busy with something rare, such as recovery: the next look will tell.
            Ok(Err(fault)) if fault.is_busy() => {
                (soon, self.seen) = (true, None);
                true
            }
            // The file cannot be read: let the waiters ask, so that they get the error.
            _ => {
                self.let_go();
                self.wake_all();
                true
            }
        };
        let pause = if changed { QUICK_LOOK } else { self.pause.mul_f32(1.25).min(self.config.poll) };
        // With very many waiters a look takes its time: never spend more than a fifth of it looking.
        self.look_after(pause.max(began.elapsed() * 4).min(Duration::from_secs(1)));
        if soon {
            self.next_look = Instant::now() + QUICK_LOOK;
        }
    }

    async fn changes(&mut self, told: bool) -> Result<bool, Fault> {
        let Some(store) = &mut self.store else {
            // Lost while they waited; asking opens it again or says why not.
            self.wake_all();
            return Ok(false);
        };
        store.check_same()?;
        if !told {
            let row = sqlx::query("PRAGMA data_version").fetch_one(&mut store.conn).await?;
            let version: i64 = row.try_get(0)?;
            if self.seen.replace(version) == Some(version) {
                return Ok(false);
            }
        }
        let numbers: Vec<String> = self.watchers.keys().map(i64::to_string).collect();
        let mut rows = sqlx::query(include_str!("../sql/watched.sql"))
            .bind(format!("[{}]", numbers.join(",")))
            .bind(store.now())
            .fetch_all(&mut store.conn)
            .await?;
        check_version(rows.pop().as_ref())?;
        for row in rows {
            let number: i64 = row.try_get(0)?;
            let wake = match FencingToken::new(number) {
                Ok(token) if row.try_get(1)? => Wake::Held(token),
                _ => Wake::Ask,
            };
            self.wake(number, wake);
        }
        Ok(true)
    }

    fn wake_all(&mut self) {
        for (_, replies) in self.watchers.drain() {
            for reply in replies {
                let _ = reply.send(Ok(Answer::Wake(Wake::Ask)));
            }
        }
    }
}

/// Ends when another process told that a line has changed.
pub(super) async fn told(store: Option<&mut Store>) {
    match store {
        Some(store) => store.told().await,
        None => std::future::pending().await,
    }
}
