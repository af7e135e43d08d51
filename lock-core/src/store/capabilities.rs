//! What a store declares about itself. The suite asserts every declaration.

use std::time::Duration;

use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
use crate::lease;
use crate::mode::Mode;

/// What a store can do. Start from [`Capabilities::full`] and take away what is not true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Capabilities {
    /// Shared entries.
    pub shared: bool,
    /// Permits.
    pub permits: bool,
    /// Waiting in the line, granted in its order.
    pub fifo: bool,
    /// Fencing tokens that grow for ever.
    pub fencing: bool,
    /// `raise`, which a fenced quorum needs.
    pub raise: bool,
    /// A lock-delay.
    pub delay: bool,
    /// The promoted waiter is told, and nobody else.
    pub push: bool,
    /// `list` by prefix.
    pub list: bool,
    /// Tokens and entries survive a restart of the store.
    pub durable: bool,
    /// Entries outlive the session that made them, so a lease can be resumed elsewhere.
    pub resume: bool,
    /// The shortest lease; a shorter one is rounded up to it.
    #[serde(with = "crate::toolkit::human_time")]
    pub min_lease: Duration,
    /// The longest lease.
    #[serde(with = "crate::toolkit::human_time")]
    pub max_lease: Duration,
    /// Leases are whole multiples of this; others are rounded up.
    #[serde(with = "crate::toolkit::human_time")]
    pub lease_step: Duration,
    /// How much sooner than the lease the store's clock may end an entry; the client's deadline is this much earlier.
    #[serde(with = "crate::toolkit::human_time")]
    pub granularity: Duration,
}

impl Capabilities {
    /// Everything, with leases in milliseconds.
    #[must_use]
    pub const fn full() -> Self {
        Self {
            shared: true,
            permits: true,
            fifo: true,
            fencing: true,
            raise: true,
            delay: true,
            push: true,
            list: true,
            durable: true,
            resume: true,
            min_lease: Duration::from_millis(10),
            max_lease: Duration::from_secs(366 * 24 * 3600),
            lease_step: Duration::from_millis(1),
            granularity: Duration::from_millis(2),
        }
    }

    /// Each yes-or-no capability by name, for tables.
    #[must_use]
    pub fn flags(&self) -> [(&'static str, bool); 10] {
        [
            ("shared", self.shared),
            ("permits", self.permits),
            ("fifo", self.fifo),
            ("fencing", self.fencing),
            ("raise", self.raise),
            ("delay", self.delay),
            ("push", self.push),
            ("list", self.list),
            ("durable", self.durable),
            ("resume", self.resume),
        ]
    }

    /// Checks a lease against what is sensible and what the store can, and rounds it up to what the store will give.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLease`] when it is shorter than [`MIN_LEASE`](crate::lease::MIN_LEASE) or longer than `longest` or
    /// than the store allows.
    pub fn round_lease(&self, lease: Duration, longest: Duration) -> Result<Duration> {
        lease::check(lease, longest.min(self.max_lease))?;
        Ok(lease::round_up(lease.max(self.min_lease), self.lease_step))
    }

    /// Refuses a mode this store does not have.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], naming the store and the missing capability.
    pub fn check_mode(&self, mode: Mode, store: &str) -> Result<()> {
        match mode {
            Mode::Shared => self.require(self.shared, "shared", store),
            Mode::Permit { .. } => self.require(self.permits, "permits", store),
            Mode::Exclusive => Ok(()),
        }
    }

    /// Refuses what this store does not have.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], naming the store and the missing capability.
    pub fn require(&self, has: bool, what: &str, store: &str) -> Result<()> {
        if has {
            return Ok(());
        }
        let text = format!(
            "{store} does not offer `{what}` as its servers are set up; `onelock stores` shows which stores do, and the page \
             of the store what it takes"
        );
        Err(Error::new(ErrorKind::Unsupported, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn leases_are_rounded_up_never_down() {
        let mut caps = Capabilities::full();
        caps.min_lease = Duration::from_secs(2);
        caps.lease_step = Duration::from_secs(1);
        let day = Duration::from_secs(86_400);
        assert_eq!(caps.round_lease(MS(10), day).unwrap(), Duration::from_secs(2));
        assert_eq!(caps.round_lease(MS(2_001), day).unwrap(), Duration::from_secs(3));
        assert_eq!(caps.round_lease(MS(3_000), day).unwrap(), Duration::from_secs(3));
    }

    #[test]
    fn hostile_leases_are_typed_errors() {
        let caps = Capabilities::full();
        let day = Duration::from_secs(86_400);
        for bad in
            [Duration::ZERO, Duration::from_nanos(1), MS(9), Duration::MAX, Duration::from_millis(u64::MAX)]
        {
            assert_eq!(caps.round_lease(bad, day).unwrap_err().kind(), ErrorKind::InvalidLease, "{bad:?}");
        }
    }
}
