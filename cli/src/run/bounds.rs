//! How long a run holds its lock at least and at most, checked before anything is asked of the store.

use std::time::Duration;

use onelock::lease::MIN_LEASE;
use onelock::{Error, ErrorKind, Lock, Settings, StoreUrl};

use super::work::Work;
use crate::exit::Failure;
use crate::output::human;

#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct Bounds {
    /// Keep the lock at least this long from when it was taken, however soon the command ends: for jobs that hosts whose
    /// clocks differ start at the same time of day. The store keeps it; onelock ends with the command.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(super) at_least: Option<Duration>,
    /// End the command when the lock has been held this long in all; TERM comes the grace before. The URL's, or none.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(super) max_hold: Option<Duration>,
}

impl Bounds {
    /// The settings of the URL. Refuses times that cannot be kept, and a store that cannot keep a lock without its client.
    pub(super) fn check(self, url: &str, work: &Work) -> Result<Settings, Failure> {
        let mut url: StoreUrl = url.parse()?;
        let settings = Settings::default().merge_url(&mut url)?;
        for (option, time) in [("--ttl", work.ttl), ("--at-least", self.at_least)] {
            if let Some(time) = time.filter(|time| *time < MIN_LEASE || *time > settings.max_ttl) {
                let (least, most) = (human(MIN_LEASE), human(settings.max_ttl));
                let text = format!("{option} is from {least} to {most} (max_ttl), not {}", human(time));
                return Err(Error::new(ErrorKind::InvalidLease, text).into());
            }
        }
        if self.at_least.is_some() {
            check_store(&url.scheme)?;
        }
        // TERM comes that long before the end.
        let grace = work.grace.min(work.ttl.unwrap_or(settings.ttl) / 3);
        match self.max_hold.or(settings.max_hold) {
            Some(hold) if hold < MIN_LEASE || hold <= grace => Err(Failure::Usage(format!(
                "a longest hold (max_hold) of {} leaves the command no time before the grace of {} begins",
                human(hold),
                human(grace)
            ))),
            _ => Ok(settings),
        }
    }

    /// The lock with them.
    pub(super) fn around(self, mut lock: Lock) -> Result<Lock, Failure> {
        if let Some(time) = self.at_least {
            lock = lock.at_least(time)?;
        }
        Ok(match self.max_hold {
            Some(hold) => lock.max_hold(hold)?,
            None => lock,
        })
    }
}

/// An unknown scheme is refused where the store is opened.
fn check_store(scheme: &str) -> Result<(), Error> {
    let driver = onelock::drivers().into_iter().find(|driver| driver.schemes.contains(&scheme));
    if driver.is_none_or(|driver| driver.capabilities.resume) {
        return Ok(());
    }
    let text = format!(
        "--at-least needs a store that keeps a lock when the process that took it has ended (`resume` of `onelock stores`); \
         `{scheme}` does not"
    );
    Err(Error::new(ErrorKind::Unsupported, text))
}
