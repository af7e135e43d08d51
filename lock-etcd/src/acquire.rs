//! Joining a line: one transaction ([`Spot`]) that looks at the line, joins it, and reads it if that is needed to know the
//! place.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::proto::{PbRangeResponse, PbTxnOpResponse, PbTxnResponse};
use etcd_client::{Client, Txn};
use onelock_core::{
    Busy, Error, ErrorKind, FencingToken, Grant, Mode, Place, Renewal, Renewed, Request, Result, Standing,
};

use tokio::time::timeout;

use crate::backend::Shared;
use crate::entries::ends;
use crate::error::{Failure, protocol};
use crate::lease::{Lease, Life};
use crate::lines::{Reading, kv};
use crate::members::closed;
use crate::spot::{Joined, Looked, Spot};
use crate::strays::Attempts;

/// How often a try for a permit looks again because somebody joined between looking and joining; then it is busy.
const LOOKS: usize = 16;

impl Shared {
    pub(crate) async fn join(&self, request: &Request) -> Result<Standing> {
        self.members.open()?;
        let Ok(turn) = timeout(self.members.queue_time(), self.crowds.turn(&request.name)).await else {
            let text = "too many acquisitions of this client are under way";
            return Err(Error::new(ErrorKind::Unavailable, text));
        };
        let _turn = turn.map_err(|_| closed())?;
        let span = self.keys.line(&request.name);
        let key = span.entry(request.mode, request.holder);
        let mut sent = Attempts::new(self, request.holder, &key)?;
        let mut tries = self.members.tries();
        loop {
            let Some(limit) = tries.next().await else {
                return Err(self.members.late(self.members.try_time()));
            };
            let hold = self.leases.get(request.lease, request.delay).await?;
            let wait = if request.queue {
                self.leases.get(request.waiter_lease, request.delay).await?
            } else {
                Arc::clone(&hold)
            };
            let spot = Spot { request, span: span.clone(), key: key.clone(), hold, wait };
            sent.begins([&spot.hold, &spot.wait]);
            // Leases that were not kept alive lately are, beside the transaction: no round trip more.
            let (joined, hold_life, wait_life) =
                tokio::join!(self.attempt_join(&spot, limit), self.refresh(&spot.hold), async {
                    if spot.request.queue { self.refresh(&spot.wait).await } else { Ok(Life::Kept) }
                },);
            sent.ends(matches!(&joined, Err(Failure::Other(error)) if error.is_unclear()));
            let standing = match joined {
                Ok(Joined::Held(number)) => match hold_life {
                    Ok(Life::Kept) => self.joined(&spot, number, &spot.hold, true)?,
                    Ok(Life::Gone) => continue,
                    Err(error) => return Err(self.abandon(&spot, number, &spot.hold, error)),
                },
                Ok(Joined::Waits(number, reading)) => match wait_life {
                    Ok(Life::Kept) => self.in_line(&spot, number, &spot.wait, reading.as_ref())?,
                    Ok(Life::Gone) => continue,
                    Err(error) => return Err(self.abandon(&spot, number, &spot.wait, error)),
                },
                Ok(Joined::WaitsAsHolder(number, reading)) => match hold_life {
                    Ok(Life::Kept) => self.in_line(&spot, number, &spot.hold, Some(&reading))?,
                    Ok(Life::Gone) => continue,
                    Err(error) => return Err(self.abandon(&spot, number, &spot.hold, error)),
                },
                Ok(Joined::Busy) => Standing::Busy(Busy { retry_after: None }),
                Ok(Joined::There) => match self.rejoin(request).await? {
                    Some(standing) => standing,
                    None => continue,
                },
                Err(Failure::LeaseGone) => {
                    // Which of the two is not said.
                    spot.hold.close();
                    spot.wait.close();
                    continue;
                }
                Err(Failure::Other(error)) if error.is_retryable() && tries.more() => continue,
                Err(failure) => return Err(failure.into()),
            };
            return Ok(standing);
        }
    }

    /// Keeps a lease alive unless it was lately.
    pub(crate) async fn refresh(&self, lease: &Arc<Lease>) -> Result<Life> {
        if lease.fresh(self.clock.now()) {
            return Ok(Life::Kept);
        }
        lease.keep_alive(self.leases.means()).await
    }

    fn in_line(
        &self,
        spot: &Spot<'_>,
        number: i64,
        lease: &Arc<Lease>,
        reading: Option<&Reading>,
    ) -> Result<Standing> {
        if let Some(reading) = reading {
            self.watches.learn(&spot.span, reading, reading.revision);
        }
        self.watches.prepare(&spot.span);
        self.joined(spot, number, lease, false)
    }

    fn joined(&self, spot: &Spot<'_>, number: i64, lease: &Arc<Lease>, held: bool) -> Result<Standing> {
        let (delay, token) = (spot.request.delay, FencingToken::new(number)?);
        let ends = ends(self.clock.now(), lease, delay);
        self.entries.put(spot.request.holder, spot.entry(number, lease, held, ends));
        let lease = lease.lasts(delay);
        Ok(match held {
            true => Standing::Held(Grant { token, lease }),
            false => Standing::Waiting(Place { token: Some(token), lease, retry_after: None }),
        })
    }

    /// Gives up an entry that was made, but not as it has to be: it is taken out in the background.
    fn abandon(&self, spot: &Spot<'_>, number: i64, lease: &Arc<Lease>, error: Error) -> Error {
        self.entries.put(spot.request.holder, spot.entry(number, lease, false, self.clock.now()));
        error
    }

    /// The entry was there before: its place is the answer, and it is renewed.
    async fn rejoin(&self, request: &Request) -> Result<Option<Standing>> {
        let renewal =
            Renewal { ticket: request.ticket(), lease: request.lease, waiter_lease: request.waiter_lease };
        match self.renew(std::slice::from_ref(&renewal)).await.pop() {
            Some(Ok(Renewed::Held(grant))) => Ok(Some(Standing::Held(grant))),
            Some(Ok(Renewed::Waiting(place))) => Ok(Some(Standing::Waiting(place))),
            Some(Ok(Renewed::NotHeld)) => Ok(None),
            Some(Err(error)) => Err(error),
            None => Err(protocol("a renewal was not answered")),
        }
    }

    async fn attempt_join(&self, spot: &Spot<'_>, limit: Duration) -> Result<Joined, Failure> {
        let request = spot.request;
        if request.queue {
            let known = self.watches.known(&spot.span, request.mode);
            if let (Some((_, true)), Mode::Exclusive | Mode::Shared) = (known, request.mode) {
                return spot.queued_behind(&self.send(limit, spot.behind()).await?);
            }
            // Where a watch brings what happens, what is new is all there is to read; otherwise a reading would come too
            // early to be of use, and the first to wait reads for all.
            let known = known.map(|(complete, _)| complete);
            let answer = self.send(limit, spot.queue(known)).await?;
            return spot.queued(answer, known);
        }
        let Mode::Permit { .. } = request.mode else {
            let answer = self.send(limit, spot.alone()).await?;
            return spot.tried(answer);
        };
        let looks = async {
            let mut answer = self.send(limit, spot.first_permit()).await?;
            for _ in 0..LOOKS {
                match spot.permitted(answer)? {
                    Looked::Joined(joined) => return Ok(joined),
                    Looked::Room(revision) => answer = self.send(limit, spot.next_permit(revision)).await?,
                }
            }
            Ok(Joined::Busy)
        };
        // However often it looks, it takes no longer than any other try.
        timeout(limit, looks).await.unwrap_or_else(|_| Err(self.members.late(limit).into()))
    }

    async fn send(&self, limit: Duration, txn: Txn) -> Result<PbTxnResponse, Failure> {
        let call = |client: Arc<Client>| async move { kv(&client).txn(txn).await };
        Ok(self.members.attempt(limit, call).await?.0)
    }
}

/// The answers to the readings of a transaction.
pub(crate) fn ranges(answer: PbTxnResponse) -> Vec<PbRangeResponse> {
    let range = |part: Option<PbTxnOpResponse>| match part {
        Some(PbTxnOpResponse::ResponseRange(range)) => Some(range),
        _ => None,
    };
    answer.responses.into_iter().filter_map(|part| range(part.response)).collect()
}
