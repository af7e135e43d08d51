//! One hold of the lock: the command runs under it, then the lock is given back.

use std::fmt;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal::SIGTTOU};
use onelock::{ErrorKind, FencingToken, Guard, Locks, Timestamp};

use super::bounds::Bounds;
use super::signals::{Signals, TERMINAL};
use super::supervise::{End, Supervisor};
use super::terminal::Terminal;
use super::ward::Ward;
use super::work::Work;
use crate::exit::Failure;
use crate::output::{human, say};

/// How long giving the lock back may take at most; its lease frees it otherwise.
const GIVE_BACK: Duration = Duration::from_secs(10);

pub(super) struct Term<'a> {
    pub(super) locks: &'a Locks,
    pub(super) signals: &'a mut Signals,
    pub(super) work: &'a Work,
    pub(super) bounds: Bounds,
    pub(super) leader_only: bool,
}

impl Term<'_> {
    /// Has the command run under the lock, and gives the lock back.
    pub(super) async fn under(&mut self, guard: Guard, begun: Instant) -> Result<End, Failure> {
        // A lock that was waited for begins with what is left of the waiter's lease.
        let ttl = self.work.ttl.unwrap_or(self.locks.settings().ttl);
        let least = self.bounds.at_least.unwrap_or_default();
        let stays_until = self.locks.clock().now() + least;
        if guard.remaining() < ttl / 2 || guard.ttl() < least {
            match guard.extend(ttl.max(least)).await {
                // Renewals go on; the deadman starts no command that has no time.
                Err(error) if error.is_retryable() => {}
                extended => extended?,
            }
        }
        if self.work.verbose {
            let (name, time) = (guard.name(), human(begun.elapsed()));
            let token = self.token(&guard)?.map_or("none".to_owned(), |token| token.to_string());
            let (store, lease) = (&self.locks.info().address, human(guard.ttl()));
            say(format_args!("took `{name}` after {time}, token {token}, lease {lease}, at {store}"));
        }
        match self.command(&guard, ttl).await {
            Ok(end) if !end.lost => Ok(self.give_back(guard, stays_until, end).await),
            Err(Failure::Left) => {
                // Dropping it would give it back.
                std::mem::forget(guard);
                Err(Failure::Left)
            }
            end => {
                // Whatever is left of it is given back in the background; closing waits for that.
                drop(guard);
                end
            }
        }
    }

    /// The fencing token, where the store has any.
    fn token(&self, guard: &Guard) -> Result<Option<FencingToken>, Failure> {
        Ok(if self.locks.capabilities().fencing { Some(guard.token()?) } else { None })
    }

    async fn command(&mut self, guard: &Guard, ttl: Duration) -> Result<End, Failure> {
        // Children start with nothing blocked all the same; see the shim.
        SigSet::from(SIGTTOU).thread_block().map_err(Failure::system("signals cannot be set up"))?;
        self.signals.hear(&TERMINAL).map_err(Failure::system("signals cannot be set up"))?;
        let terminal = if self.signals.service { Terminal::default() } else { Terminal::open() };
        let mut env = vec![("ONELOCK_NAME", guard.name().to_string())];
        env.extend(self.token(guard)?.map(|token| ("ONELOCK_TOKEN", token.to_string())));
        let ward = Ward::spawn(&self.work.command, &env, guard.deadline())
            .map_err(Failure::system("the deadman cannot be started"))?;
        Supervisor { term: self, guard, ward, terminal, ttl }.run().await
    }

    /// Gives the lock back. That it was lost in the last moment of the command counts as lost; a service that was told to
    /// end ends all the same. A signal ends the wait for the store.
    async fn give_back(&mut self, guard: Guard, stays_until: Timestamp, end: End) -> End {
        let left = stays_until.saturating_since(self.locks.clock().now());
        let (name, ttl) = (guard.name().clone(), human(guard.ttl().max(left)));
        let unfinished = |why: &dyn fmt::Display| {
            say(format_args!("`{name}` could not be given back and frees itself within {ttl}: {why}"));
        };
        tokio::select! {
            biased;
            released = guard.release() => match released {
                Ok(()) if self.work.verbose && !left.is_zero() => {
                    say(format_args!("`{name}` stays taken for at least another {}", human(left)));
                }
                Ok(()) if self.work.verbose => say(format_args!("gave `{name}` back")),
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Lost => {
                    let exit = Failure::from(error).report();
                    return End { exit, lost: true, death: None, ..end };
                }
                Err(error) => unfinished(&error),
            },
            () = tokio::time::sleep(GIVE_BACK) => unfinished(&"the store does not answer"),
            signal = self.signals.next_end() => {
                unfinished(&"onelock was told to end");
                return End { stopped_by: Some(signal), ..end };
            }
        }
        end
    }
}
