//! Acquire: joins the line of a name.

use std::time::Duration;

use onelock_core::{Error, ErrorKind, Renewal, Request, Result, Standing};

use crate::keys::Keys;
use crate::reply::{self, Asked};
use crate::topology::Servers;
use crate::{error, release, scripts};

/// One script. What too few replicas have is given back.
pub(crate) async fn acquire(
    servers: &Servers,
    keys: &Keys,
    channel: &str,
    request: &Request,
) -> Result<Standing> {
    let times = Times::new(request.lease, request.waiter_lease, request.delay)?;
    let (lease, waiter_lease) = times.with_delay();
    let line = keys.of(&request.name);
    let mut command = scripts::ACQUIRE.call(keys.with_gate(5));
    command.arg(&line.line()).arg(line.counter()).arg(&keys.gate);
    command.arg(request.holder.to_hex()).arg(request.mode.to_string());
    command.arg(lease).arg(waiter_lease).arg(u8::from(request.queue));
    command.arg([channel, " ", request.note.as_str()].concat()).arg(u16::from(request.epoch));
    let (answer, short) = servers.call(line.slot(), &scripts::ACQUIRE, command).await?.joined()?;
    let standing = reply::standing(&answer, Asked::new(request.holder, times.leases()))?;
    match (standing, short) {
        (Standing::Busy(_), _) | (_, None) => Ok(standing),
        (_, Some(replicas)) => {
            // Whether or not this arrives, the error tells the caller that something may be left.
            let _ = release::release(servers, keys, &request.ticket()).await;
            Err(error::too_few(replicas))
        }
    }
}

/// The times of one entry in the whole milliseconds of the scripts, rounded up.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    lease: u64,
    waiter_lease: u64,
    delay: u64,
}

impl Times {
    /// Far beyond what the core allows; the sum of two and the clock stays far below 2^53.
    const MOST: u64 = 1 << 45;

    pub(crate) fn new(lease: Duration, waiter_lease: Duration, delay: Duration) -> Result<Self> {
        let millis = |time: Duration| {
            let whole = u64::try_from(time.as_nanos().div_ceil(1_000_000)).ok();
            let too_long = || Error::new(ErrorKind::InvalidLease, "a lease is longer than Redis can count");
            whole.filter(|ms| *ms <= Self::MOST).ok_or_else(too_long)
        };
        Ok(Self { lease: millis(lease)?, waiter_lease: millis(waiter_lease)?, delay: millis(delay)? })
    }

    pub(crate) fn of(item: &Renewal) -> Result<Self> {
        Self::new(item.lease, item.waiter_lease, item.ticket.delay)
    }

    pub(crate) fn with_delay(self) -> (u64, u64) {
        (self.lease + self.delay, self.waiter_lease + self.delay)
    }

    pub(crate) fn leases(self) -> (Duration, Duration) {
        (Duration::from_millis(self.lease), Duration::from_millis(self.waiter_lease))
    }
}
