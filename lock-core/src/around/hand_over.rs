//! A lock that goes from one process to another without being free in between.
//!
//! A [`HandOver`] is used once. Renewals cannot tell two users of one holder id apart, so the giver takes a second lock under a
//! random name, the claim, and the hand-over carries the holder ids and the claim's number. The first to resume evicts the claim of that
//! number: the store answers that it was there to exactly one of them, and only that one goes on to renew the lock. By the number,
//! because a late request of the giver may make the claim again.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backend::{Release, Renewal, Renewed, Request, Ticket};
use crate::client::acquire::{self, Handle};
use crate::client::cancel_safe::renew_one;
use crate::client::entry::Entry;
use crate::client::guard::Guard;
use crate::client::{Client, Locks};
use crate::error::{Error, ErrorKind, Result};
use crate::holder::HolderId;
use crate::mode::Mode;
use crate::model::loss::LossReason;
use crate::name::LockName;
use crate::token::FencingToken;

/// The name of a claim begins with this.
const CLAIM: &str = "onelock.handover/";

/// A lock on its way to another process: [`Guard::hand_over`] makes it and [`Locks::resume`] takes it, once. With serde, or as a
/// `String`, it travels as one line of text.
///
/// It holds no address and no credentials, but anyone who has it can take the lock: send it as one would a session cookie. It is
/// valid until the lease ends that the lock had when it was made.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HandOver {
    /// With the store's number of the entry.
    ticket: Ticket,
    token: FencingToken,
    claim: HolderId,
    /// The claim's number.
    claimed: FencingToken,
    lease: Duration,
}

impl HandOver {
    /// The name of the lock.
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.ticket.name
    }

    /// The fencing token of the lock.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.token
    }
}

fn claim_of(holder: HolderId) -> Result<Ticket> {
    let name = LockName::new(format!("{CLAIM}{}", holder.to_hex()))?;
    Ok(Ticket::new(name, holder, Mode::Exclusive))
}

/// FNV-1a: finds what was cut off, mistyped or changed by accident. What was changed on purpose only finds no lock.
fn checksum(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

impl From<HandOver> for String {
    fn from(HandOver { ticket, token, claim, claimed, lease }: HandOver) -> Self {
        let Ticket { name, holder, mode, token: raw, delay, .. } = ticket;
        let (raw, holder, claim) = (raw.unwrap_or(token), holder.to_hex(), claim.to_hex());
        let (lease, delay) = (lease.as_millis(), delay.as_millis());
        let fields = format!("1:{holder}:{claim}:{claimed}:{raw}:{token}:{mode}:{lease}:{delay}:{name}");
        format!("{:016x}:{fields}", checksum(&fields))
    }
}

impl FromStr for HandOver {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let read = || {
            let (sum, fields) = text.split_once(':')?;
            if sum != format!("{:016x}", checksum(fields)) {
                return None;
            }
            let mut fields = fields.strip_prefix("1:")?.splitn(9, ':');
            let mut next = || fields.next();
            let (holder, claim) = (HolderId::from_hex(next()?)?, HolderId::from_hex(next()?)?);
            let claimed = next()?.parse().ok()?;
            let (raw, token): (FencingToken, _) = (next()?.parse().ok()?, next()?.parse().ok()?);
            let mode = next()?.parse().ok()?;
            let millis = |text: &str| text.parse().ok().map(Duration::from_millis);
            let (lease, delay) = (millis(next()?)?, millis(next()?)?);
            let name = LockName::new(next()?).ok()?;
            let ticket = Ticket::new(name, holder, mode).delay(delay).token(raw);
            Some(Self { ticket, token, claim, claimed, lease })
        };
        // Its text is not shown: it holds what opens the lock.
        read().ok_or_else(|| Error::new(ErrorKind::Foreign, "this is no hand-over, or it has been changed"))
    }
}

impl TryFrom<String> for HandOver {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl fmt::Debug for HandOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandOver")
            .field("name", self.name())
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

impl Guard {
    /// Lets another process go on with this lock: from the answer on this one holds nothing, and the lock stays taken until
    /// [`Locks::resume`] or the end of its lease. Two requests.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let guard = locks.mutex("deploy")?.acquire().await?;
    /// let text = String::from(guard.hand_over().await?); // to the other process
    /// let guard = locks.resume(text.parse()?).await?; // in the other process, with a client of its own
    /// guard.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where entries end with their client's session, and on a quorum; [`ErrorKind::Misuse`] for a
    /// guard that was entered again, and for a lock with [`Lock::at_least`](crate::Lock::at_least); [`ErrorKind::Lost`]; an error of
    /// the store. Then the lock is given back.
    ///
    /// # Cancel safety
    /// The lock is given back in the background.
    pub async fn hand_over(self) -> Result<HandOver> {
        let (client, entry) = (Arc::clone(self.client()), self.entry());
        client.capabilities.require(client.capabilities.resume, "resume", &client.info.scheme)?;
        let misuse = |why| Err(Error::new(ErrorKind::Misuse, format!("`{}` {why}", self.name())));
        if entry.has_least_time() {
            return misuse("has a least hold time, which a hand-over would not keep");
        }
        // In one step: from here on nobody enters.
        if !self.shut() {
            return misuse("was entered again: only its one guard can hand it over");
        }
        let token = entry.token().ok_or_else(|| Error::new(ErrorKind::Protocol, "the hold has no number"))?;
        // A full lease from here on, for the lock and for the claim.
        let lease = entry.lease();
        self.extend_to(lease).await?;
        let claim = HolderId::random()?;
        let (asking, ticket) = (Arc::clone(&client), claim_of(claim)?);
        let claimed = client.at_home(async move { acquire::claim(&asking, &ticket, lease).await }).await?;
        // Only a hold that was good until here: a lost one may have been granted to another.
        let ticket = self.end_without_release(LossReason::HandedOver)?;
        Ok(HandOver { ticket, token, claim, claimed, lease })
    }
}

impl Locks {
    /// Takes over a lock that another process has handed over: the same token, one eviction more than a renewal. Its lease, mode
    /// and lock-delay are the giver's; everything else is as this client's settings say, `max_hold` among it, which begins anew.
    ///
    /// Of several holders of the same hand-over exactly one gets the lock. If the store's answer to that one is lost, none
    /// gets it, and the lock is free when its lease ends.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] for a hand-over that has expired, was used before, or is of another store; [`ErrorKind::Unsupported`] as
    /// [`Guard::hand_over`]; [`ErrorKind::Denied`] where this client may not evict; an error of the store: then the hand-over may be used
    /// up.
    ///
    /// # Cancel safety
    /// The hand-over may be used up; the lock is given back in the background, or comes free when its lease ends.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let guard = locks.mutex("orders")?.acquire().await?;
    /// let token = guard.token()?;
    /// let ticket = String::from(guard.hand_over().await?); // to the next process, a client of the same store
    /// let guard = locks.resume(ticket.parse()?).await?;
    /// assert_eq!(guard.token()?, token);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn resume(&self, hand_over: HandOver) -> Result<Guard> {
        let client = Arc::clone(&self.client);
        // A task of its own: half way the lock is nobody's.
        let resumed =
            self.client.finish(async move { resume(&client, hand_over).await.inspect(Guard::sent) });
        let named = |error: Error| error.during("resume").at(&self.client.info.address);
        let guard = resumed.await.inspect(Guard::arrived).map_err(named)?;
        if let Some(observers) = &self.client.observers {
            observers.begun(guard.entry());
        }
        Ok(guard)
    }
}

async fn resume(client: &Arc<Client>, hand_over: HandOver) -> Result<Guard> {
    let _counted = client.background.begin();
    client.open()?;
    client.capabilities.require(client.capabilities.resume, "resume", &client.info.scheme)?;
    let HandOver { ticket, token, claim, claimed, lease } = hand_over;
    let gone = || {
        let text = "has expired, was used before, or is of another store than this";
        let text = format!("the hand-over of `{}` {text}", ticket.name);
        Error::new(ErrorKind::Lost, text).lost_by(LossReason::NotHeld)
    };
    // Once: an answer that is lost must not be asked for again, or two could take the next one's silence for theirs.
    if client.backend.evict(&claim_of(claim)?.name, claimed).await? == Release::NotHeld {
        return Err(gone());
    }
    let sent = client.clock.now();
    let answer = renew_one(client, Renewal::new(ticket.clone(), lease, lease)).await;
    let request = Request::new(ticket.name.clone(), ticket.holder, ticket.mode, lease)
        .delay(ticket.delay)
        .epoch(client.settings.token_epoch);
    let now = client.clock.now();
    let entry = match answer {
        Ok(held @ Renewed::Held(_)) => Entry::new(&request, client.upkeep(), sent, now, held),
        Ok(_) => return Err(gone()),
        Err(error) => Err(error),
    };
    let entry = entry.inspect_err(|_| client.release_later(ticket.clone(), lease, false))?;
    let handle = Handle { client: Arc::clone(client), entry: Arc::new(entry) };
    // Late, by another token epoch, or made again by a request of the giver that came late.
    if handle.entry.token() != Some(token) || !handle.entry.receive(now) {
        return Err(gone());
    }
    client.schedule.track(&handle.entry);
    // Closed meanwhile: the renewer may have been emptied before.
    client.open()?;
    Ok(Guard::new(handle, None))
}

#[cfg(test)]
#[path = "hand_over_tests.rs"]
mod tests;
