//! How those who wait are notified: by what this process does itself, and by the touches of other processes, which are only
//! hints: a process may die between its commit and its touch, so waiters also poll now and then.

use std::time::Instant;

use onelock_core::{HolderId, HolderMap, Result, Ticket, Wake};
use tokio::sync::oneshot;

use super::connection::Connection;
use super::error::Fault;
use super::line::wake;
use super::open::{Database, check_marks};

/// How many times rarer polls are where the kernel notifies: then they are only for what was not notified. Hundreds of waiters must
/// not keep the processor busy by polling.
const RARER: u32 = 100;

/// The most entries ahead that are counted.
const FAR: u32 = 50;

pub(super) type Reply = oneshot::Sender<Result<Wake>>;

/// Those of this process who wait.
#[derive(Default)]
pub(super) struct Waiters {
    /// An entry has one waiting call: one that is made anew comes in place of the one before, which is to ask.
    calls: HolderMap<(Ticket, Reply)>,
    /// How many wait ahead of the first of them. Where the kernel does not notify, hundreds of processes poll, and those far
    /// behind must leave the processor to those in front.
    ahead: u32,
    polled: Option<Instant>,
}

impl Waiters {
    pub(super) fn has(&self, holder: HolderId) -> bool {
        self.calls.contains_key(&holder)
    }

    pub(super) fn add(&mut self, ticket: Ticket, reply: Reply) {
        if let Some((_, before)) = self.calls.insert(ticket.holder, (ticket, reply)) {
            // A caller that went away needs no answer.
            let _ = before.send(Ok(Wake::Ask));
        }
    }

    /// Ends when somebody waits and it is time to poll: because another process notified (true), or for what was not notified.
    pub(super) async fn due(&self, connection: &Connection) -> bool {
        if self.calls.is_empty() {
            return std::future::pending().await;
        }
        let notices = connection.database.as_ref().and_then(Database::notices);
        let pause = connection.config.poll * if notices.is_some() { RARER } else { 1 + self.ahead };
        let next = self.polled.map_or_else(Instant::now, |polled| polled + pause);
        tokio::select! {
            Some(()) = async { notices?.notified().await } => true,
            () = tokio::time::sleep_until(next.into()) => false,
        }
    }

    /// Reads what other processes did, and answers those whom it concerns.
    pub(super) fn poll(&mut self, connection: &mut Connection, notified: bool) {
        self.calls.retain(|_, (_, reply)| !reply.is_closed());
        if notified || connection.persist(Database::has_changed).unwrap_or(true) {
            let all: Vec<_> = self.calls.keys().copied().collect();
            self.ahead = FAR;
            self.answer(connection, &all);
        }
        self.polled = Some(Instant::now());
    }

    /// Answers those of these whose wait is over. Only reads, so it is in no writer's way.
    pub(super) fn answer(&mut self, connection: &mut Connection, holders: &[HolderId]) {
        let waiting: Vec<_> = holders.iter().filter_map(|holder| self.calls.remove(holder)).collect();
        if waiting.is_empty() {
            return;
        }
        let read = connection.persist(|database| {
            // First, so that nothing falls between the answer and what is notified later.
            database.notices();
            let wakes: Result<Vec<_>, Fault> =
                waiting.iter().map(|(ticket, _)| wake(database, ticket)).collect();
            // Last: versions only grow, so what was read before was of this one.
            check_marks(&database.sql)?;
            database.files.check()?;
            wakes
        });
        let wakes = match read {
            Ok(wakes) => wakes,
            // A caller that went away needs no answer.
            Err(error) => {
                return waiting.into_iter().for_each(|(_, reply)| drop(reply.send(Err(error.clone()))));
            }
        };
        for ((ticket, reply), wake) in waiting.into_iter().zip(wakes) {
            match wake {
                Ok(wake) => drop(reply.send(Ok(wake))),
                Err(ahead) => {
                    self.ahead = self.ahead.min(ahead);
                    self.calls.insert(ticket.holder, (ticket, reply));
                }
            }
        }
    }
}
