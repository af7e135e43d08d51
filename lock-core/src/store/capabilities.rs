//! What a store declares about itself. The suite asserts every declaration.

use std::time::Duration;

use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
use crate::lease;
use crate::mode::Mode;

/// Declares each capability once: a field, its setter, its default, and a line of the table for each flag.
macro_rules! capabilities {
    (
        flags $count:literal { $($(#[$flag_doc:meta])* $flag:ident,)* }
        limits { $($(#[$doc:meta])* $limit:ident: $type:ty = $default:expr,)* }
    ) => {
        /// What a store can do: [`Capabilities::minimal`] and what its setters add.
        ///
        /// ```
        /// use std::time::Duration;
        /// use onelock_core::Capabilities;
        ///
        /// const CAPABILITIES: Capabilities =
        ///     Capabilities::minimal().fencing(true).durable(true).min_lease(Duration::from_secs(2));
        /// assert!(CAPABILITIES.fencing && !CAPABILITIES.fifo);
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        #[non_exhaustive]
        #[must_use]
        pub struct Capabilities {
            $($(#[$flag_doc])* pub $flag: bool,)*
            $($(#[$doc])* pub $limit: $type,)*
        }

        impl Capabilities {
            /// Exclusive locks, for callers that ask again and again; leases in milliseconds, and 256 renewals in a call. What is
            /// added to this type later is false here.
            pub const fn minimal() -> Self {
                Self { $($flag: false,)* $($limit: $default,)* }
            }

            /// Each yes-or-no capability by name, for tables.
            #[must_use]
            pub fn flags(&self) -> [(&'static str, bool); $count] {
                [$((stringify!($flag), self.$flag),)*]
            }

            $(#[doc = concat!("Sets [`", stringify!($flag), "`](Self#structfield.", stringify!($flag), ").")]
            pub const fn $flag(mut self, $flag: bool) -> Self {
                self.$flag = $flag;
                self
            })*

            $(#[doc = concat!("Sets [`", stringify!($limit), "`](Self#structfield.", stringify!($limit), ").")]
            pub const fn $limit(mut self, $limit: $type) -> Self {
                self.$limit = $limit;
                self
            })*
        }
    };
}

capabilities! {
    flags 10 {
        /// Shared entries.
        shared,
        /// Permits.
        permits,
        /// Waiting in the line, granted in its order.
        fifo,
        /// Fencing tokens that grow for ever.
        fencing,
        /// `raise`, which a fenced quorum needs.
        raise,
        /// A lock-delay.
        delay,
        /// The promoted waiter is notified, and nobody else.
        push,
        /// `list` by prefix.
        list,
        /// Tokens and entries survive a restart of the store.
        durable,
        /// Entries outlive the session that made them, so a lease can be resumed elsewhere.
        resume,
    }
    limits {
        /// The shortest lease; a shorter one is rounded up to it.
        #[serde(with = "crate::toolkit::human_time")]
        min_lease: Duration = Duration::from_millis(10),
        /// The longest lease.
        #[serde(with = "crate::toolkit::human_time")]
        max_lease: Duration = Duration::from_secs(366 * 24 * 3600),
        /// Leases are whole multiples of this; others are rounded up.
        #[serde(with = "crate::toolkit::human_time")]
        lease_step: Duration = Duration::from_millis(1),
        /// How much sooner than the lease the store's clock may end an entry; the client's deadline is this much earlier.
        #[serde(with = "crate::toolkit::human_time")]
        granularity: Duration = Duration::from_millis(2),
        /// How many renewals one call takes at most, at least one; the core asks in parts of this size.
        max_batch: usize = 256,
    }
}

impl Capabilities {
    /// What a durable store of whole lines offers ([`line`](crate::line)), with a counter that can be lifted.
    pub const fn of_lines() -> Self {
        let line = Self::minimal().shared(true).permits(true).fifo(true).push(true).delay(true);
        line.fencing(true).raise(true).list(true).durable(true).resume(true)
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
    /// [`ErrorKind::Unsupported`], naming the store and the missing capability; [`ErrorKind::InvalidConfig`] for a permit that weighs
    /// more than its limit.
    pub fn check_mode(&self, mode: Mode, store: &str) -> Result<()> {
        match mode {
            Mode::Shared => self.require(self.shared, "shared", store),
            // One that weighs more than its limit could not be read back.
            Mode::Permit { weight, .. } => {
                mode.weighing(weight.get())?;
                self.require(self.permits, "permits", store)
            }
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
        let mut caps = Capabilities::of_lines();
        caps.min_lease = Duration::from_secs(2);
        caps.lease_step = Duration::from_secs(1);
        let day = Duration::from_secs(86_400);
        assert_eq!(caps.round_lease(MS(10), day).unwrap(), Duration::from_secs(2));
        assert_eq!(caps.round_lease(MS(2_001), day).unwrap(), Duration::from_secs(3));
        assert_eq!(caps.round_lease(MS(3_000), day).unwrap(), Duration::from_secs(3));
    }

    #[test]
    fn hostile_leases_are_typed_errors() {
        let caps = Capabilities::of_lines();
        let day = Duration::from_secs(86_400);
        for bad in
            [Duration::ZERO, Duration::from_nanos(1), MS(9), Duration::MAX, Duration::from_millis(u64::MAX)]
        {
            assert_eq!(caps.round_lease(bad, day).unwrap_err().kind(), ErrorKind::InvalidLease, "{bad:?}");
        }
    }
}
