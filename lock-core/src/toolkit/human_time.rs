//! Durations in a configuration as people write them: `15s`, `1h 30m`.
//!
//! ```
//! # use std::time::Duration;
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct Config {
//!     #[serde(with = "onelock_core::toolkit::human_time")]
//!     connect_timeout: Duration,
//!     #[serde(with = "onelock_core::toolkit::human_time::option", default)]
//!     longest: Option<Duration>,
//! }
//!
//! let config: Config = serde_json::from_str(r#"{ "connect_timeout": "1m 30s" }"#)?;
//! assert_eq!((config.connect_timeout, config.longest), (Duration::from_secs(90), None));
//! assert_eq!(serde_json::to_string(&config)?, r#"{"connect_timeout":"1m 30s","longest":null}"#);
//! # Ok::<(), serde_json::Error>(())
//! ```

use std::time::Duration;

use serde::de::Unexpected;
use serde::{Deserialize as _, Deserializer, Serializer};

/// Writes it as text.
///
/// # Errors
/// What the serializer says.
pub fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&humantime::format_duration(*time))
}

/// Reads it from text.
///
/// # Errors
/// For what is no text, or no time.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    read(&String::deserialize(from)?)
}

fn read<E: serde::de::Error>(text: &str) -> Result<Duration, E> {
    let unread = |_| E::invalid_value(Unexpected::Str(text), &"a time such as 500ms, 15s or 2m");
    humantime::parse_duration(text).map_err(unread)
}

/// The same for what may be missing.
pub mod option {
    use super::{Deserializer, Duration, Serializer, read};
    use serde::Deserialize as _;

    /// Writes it as text, or as nothing.
    ///
    /// # Errors
    /// What the serializer says.
    pub fn serialize<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => super::serialize(time, to),
            None => to.serialize_none(),
        }
    }

    /// Reads it from text, or from nothing.
    ///
    /// # Errors
    /// For what is no text, or no time.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        Option::<String>::deserialize(from)?.map(|text| read(&text)).transpose()
    }
}
