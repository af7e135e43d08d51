//! The settings of a client that are the same on every store, from a URL or a serde struct.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::around::observer::Wanted;
use crate::backend::Note;
use crate::capabilities::Capabilities;
use crate::driver::OptionSpec;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{self, Margin};
use crate::token::TokenEpoch;
use crate::url::StoreUrl;

/// The options every store's URL takes.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec { name: "ttl", default: "30s", about: "the lease of a holder" },
    OptionSpec { name: "waiter_lease", default: "10s", about: "the lease of a waiter, at most the ttl" },
    OptionSpec { name: "max_ttl", default: "1d", about: "the longest lease that may be asked for" },
    OptionSpec { name: "margin", default: "0.1", about: "the share of a lease the client does not count on" },
    OptionSpec { name: "auto_renew", default: "true", about: "renew leases while the guard lives" },
    OptionSpec { name: "max_hold", default: "none", about: "the longest time a lock may be held in all" },
    OptionSpec {
        name: "lock_delay",
        default: "0s",
        about: "how long a lock stays blocked after a lost holder",
    },
    OptionSpec { name: "note", default: "host and process", about: "the holder's label for people" },
    OptionSpec { name: "lazy", default: "false", about: "connect at the first call instead of at once" },
    OptionSpec { name: "token_epoch", default: "0", about: "the high bits of tokens; raise after a restore" },
];

/// The settings of a client. Every lock starts from them and may differ.
///
/// ```
/// use std::time::Duration;
/// use onelock_core::Settings;
///
/// let mut settings = Settings::default();
/// settings.ttl = Duration::from_secs(15);
/// settings.max_hold = Some(Duration::from_secs(3600));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Settings {
    /// The lease of a holder.
    #[serde(with = "crate::toolkit::human_time")]
    pub ttl: Duration,
    /// The lease of a waiter; the ttl when that is shorter.
    #[serde(with = "crate::toolkit::human_time")]
    pub waiter_lease: Duration,
    /// The longest lease that may be asked for.
    #[serde(with = "crate::toolkit::human_time")]
    pub max_ttl: Duration,
    /// The share of a lease the client does not count on, from 0 to 0.5.
    pub margin: f64,
    /// Whether leases are renewed while the guard lives.
    pub auto_renew: bool,
    /// The longest time a lock may be held in all.
    #[serde(with = "crate::toolkit::human_time::option")]
    pub max_hold: Option<Duration>,
    /// How long a lock stays blocked after its holder was lost.
    #[serde(with = "crate::toolkit::human_time")]
    pub lock_delay: Duration,
    /// The holder's label for people; host and process id when there is none.
    pub note: Option<Note>,
    /// The high bits of every token.
    pub token_epoch: TokenEpoch,
    /// Whether the client connects at the first call to the store instead of when it is made. The store must offer what its driver
    /// declares: a server that is set up to offer less is an error of the first call.
    pub lazy: bool,
    #[serde(skip)]
    pub(crate) wanted: Wanted,
}

const WAITER_LEASE: Duration = Duration::from_secs(10);

impl Default for Settings {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(30),
            waiter_lease: WAITER_LEASE,
            max_ttl: Duration::from_secs(24 * 3600),
            margin: Margin::DEFAULT_RATE,
            auto_renew: true,
            max_hold: None,
            lock_delay: Duration::ZERO,
            note: None,
            token_epoch: TokenEpoch::default(),
            lazy: false,
            wanted: Wanted::default(),
        }
    }
}

impl Settings {
    /// Takes the common options out of `url`, over `self` as the defaults.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when one cannot be read.
    pub fn merge_url(mut self, url: &mut StoreUrl) -> Result<Self> {
        fn over<T: crate::url::FromOption>(url: &mut StoreUrl, key: &str, field: &mut T) -> Result<()> {
            if let Some(value) = url.take(key)? {
                *field = value;
            }
            Ok(())
        }
        over(url, "ttl", &mut self.ttl)?;
        over(url, "waiter_lease", &mut self.waiter_lease)?;
        over(url, "max_ttl", &mut self.max_ttl)?;
        over(url, "margin", &mut self.margin)?;
        over(url, "auto_renew", &mut self.auto_renew)?;
        over(url, "lock_delay", &mut self.lock_delay)?;
        over(url, "lazy", &mut self.lazy)?;
        if let Some(hold) = url.take("max_hold")? {
            self.max_hold = Some(hold);
        }
        if let Some(note) = url.take::<String>("note")? {
            self.note = Some(Note::new(note)?);
        }
        if let Some(epoch) = url.take::<u16>("token_epoch")? {
            self.token_epoch = TokenEpoch::new(epoch)?;
        }
        Ok(self)
    }

    /// Checks the settings for a store and rounds their times up to what it gives.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLease`], [`ErrorKind::InvalidConfig`] or [`ErrorKind::Unsupported`].
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
        let caps = Capabilities::full();
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
