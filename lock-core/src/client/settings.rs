//! The settings of a client that are the same on every store, from a URL or a serde struct.

use std::sync::Arc;
use std::time::Duration;

use crate::around::observer::event::{Group, Observer};
use crate::backend::Note;
use crate::capabilities::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{self, Margin};
use crate::store::options::OptionSpec;
use crate::token::TokenEpoch;
use crate::toolkit::Given;

/// The options every store's URL takes.
pub const OPTIONS: &[OptionSpec] = Settings::OPTIONS;

crate::toolkit::options! {
    /// The settings of a client. Every lock starts from them and may differ.
    ///
    /// ```
    /// use std::time::Duration;
    /// use onelock::Settings;
    ///
    /// let mut settings = Settings::default();
    /// settings.ttl = Duration::from_secs(15);
    /// settings.max_hold = Some(Duration::from_secs(3600));
    /// ```
    pub struct Settings {}
    options {
        /// The lease of a holder.
        ttl: Duration = "30s",
        /// The lease of a waiter, at most the ttl.
        waiter_lease: Duration = "10s",
        /// The longest lease that may be asked for.
        max_ttl: Duration = "1d",
        /// The share of a lease the client does not count on, from 0 to 0.5.
        ///
        /// Chrony alone may slew a clock by 8.3 %.
        margin: f64 = "0.1",
        /// Whether leases are renewed while the guard lives.
        auto_renew: bool = "true",
        /// The longest time a lock may be held in all.
        max_hold: Option<Duration> = "none",
        /// How long a lock stays blocked after its holder was lost.
        lock_delay: Duration = "0s",
        /// The holder's label for people.
        note: Option<Note> = "host and process",
        /// Connect at the first call to the store instead of when the client is made.
        ///
        /// The store must offer what its driver declares: a server that is set up to offer less is an error of the first call.
        lazy: bool = "false",
        /// The high bits of tokens; raise after a restore.
        token_epoch: TokenEpoch = "0",
    }
    skip {
        pub(crate) observed_by: Option<Given<Arc<dyn Observer>>>,
        pub(crate) grouped_by: Option<Group>,
    }
}

const WAITER_LEASE: Duration = Duration::from_secs(10);

impl Settings {
    /// Checks the settings for a store and rounds their times up to what it gives.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLease`], [`ErrorKind::InvalidConfig`] or [`ErrorKind::Unsupported`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// # use std::time::Duration;
    /// # use onelock::{ErrorKind, Settings};
    /// let mut settings = Settings::default();
    /// settings.ttl = Duration::from_secs(7 * 24 * 3600);
    /// let refused = settings.checked(&locks.capabilities(), "memory").unwrap_err();
    /// assert_eq!(refused.kind(), ErrorKind::InvalidLease); // longer than `max_ttl`
    /// # Ok(())
    /// # }
    /// ```
    pub fn checked(mut self, capabilities: &Capabilities, store: &str) -> Result<Self> {
        Margin::new(self.margin, capabilities.granularity)?;
        if self.max_ttl > Duration::from_secs(366 * 24 * 3600) {
            return Err(Error::new(ErrorKind::InvalidLease, "max_ttl is longer than 366 days"));
        }
        self.ttl = capabilities.round_lease(self.ttl, self.max_ttl)?;
        if self.waiter_lease == WAITER_LEASE {
            // Nobody has asked for it: a short longest lease is no mistake of the user's.
            self.waiter_lease = WAITER_LEASE.min(self.max_ttl).min(capabilities.max_lease);
        }
        self.waiter_lease = capabilities.round_lease(self.waiter_lease, self.max_ttl)?;
        self.lock_delay = check_delay(self.lock_delay, capabilities, store)?;
        if let Some(hold) = self.max_hold {
            check_hold(hold)?;
        }
        Ok(self)
    }
}

/// Checks a lock-delay and rounds it up.
pub(crate) fn check_delay(delay: Duration, capabilities: &Capabilities, store: &str) -> Result<Duration> {
    if delay.is_zero() {
        return Ok(delay);
    }
    capabilities.require(capabilities.delay, "delay", store)?;
    if delay > Duration::from_secs(24 * 3600) {
        return Err(Error::new(ErrorKind::InvalidLease, "a lock-delay is at most a day"));
    }
    Ok(lease::round_up(delay, capabilities.lease_step))
}

/// Checks a longest hold time.
pub(crate) fn check_hold(hold: Duration) -> Result<()> {
    if hold < lease::MIN_LEASE {
        return Err(Error::new(ErrorKind::InvalidLease, "max_hold is shorter than the shortest lease"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::StoreUrl;

    #[test]
    fn a_url_overrides_the_defaults() {
        let mut url: StoreUrl =
            "memory://?ttl=15s&token_epoch=3&auto_renew=false&note=me&margin=0.2".parse().unwrap();
        let settings = Settings::default().merge_url(&mut url).unwrap();
        assert_eq!(settings.ttl, Duration::from_secs(15));
        assert_eq!(u16::from(settings.token_epoch), 3);
        assert!(!settings.auto_renew);
        assert_eq!(settings.note.unwrap().as_str(), "me");
        assert_eq!(url.option_names().count(), 0);
    }

    #[test]
    fn every_option_has_a_field_and_every_field_an_option() {
        let json = serde_json::to_value(Settings::default()).unwrap();
        let mut fields: Vec<_> = json.as_object().unwrap().keys().cloned().collect();
        let mut options: Vec<_> = OPTIONS.iter().map(|o| o.name.to_owned()).collect();
        fields.sort();
        options.sort();
        assert_eq!(fields, options);
    }

    #[test]
    fn settings_survive_serde_and_refuse_the_unknown() {
        let settings = Settings { max_hold: Some(Duration::from_secs(60)), ..Settings::default() };
        let json = serde_json::to_string(&settings).unwrap();
        assert_eq!(serde_json::from_str::<Settings>(&json).unwrap(), settings);
        let error = serde_json::from_str::<Settings>(r#"{"tll": "1s"}"#).unwrap_err().to_string();
        assert!(error.contains("tll") && error.contains("ttl"), "{error}");
    }

    #[test]
    fn hostile_settings_are_refused() {
        let caps = Capabilities::of_lines();
        let with = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            settings.checked(&caps, "memory").map_err(|e| e.kind())
        };
        assert!(with(|_| ()).is_ok());
        assert!(with(|s| (s.max_ttl, s.ttl) = (Duration::from_secs(5), Duration::from_secs(5))).is_ok());
        let long = with(|s| (s.max_ttl, s.waiter_lease) = (Duration::from_secs(60), Duration::from_secs(61)));
        assert_eq!(long, Err(ErrorKind::InvalidLease), "a waiter's lease that was asked for");
        assert_eq!(with(|s| s.ttl = Duration::ZERO), Err(ErrorKind::InvalidLease));
        assert_eq!(with(|s| s.ttl = Duration::MAX), Err(ErrorKind::InvalidLease));
        assert_eq!(with(|s| s.max_ttl = Duration::MAX), Err(ErrorKind::InvalidLease));
        assert_eq!(with(|s| s.margin = f64::NAN), Err(ErrorKind::InvalidConfig));
        assert_eq!(with(|s| s.lock_delay = Duration::MAX), Err(ErrorKind::InvalidLease));
        assert_eq!(with(|s| s.max_hold = Some(Duration::ZERO)), Err(ErrorKind::InvalidLease));
    }
}
