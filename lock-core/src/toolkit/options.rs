//! A configuration whose every option is declared once.
//!
//! [`options!`](crate::toolkit::options!) takes the fields that a URL says in its own way (hosts, user, path) and the
//! options, each with its documentation, type, default and other spellings. It makes the struct with public fields, `Clone`,
//! `Debug` and `PartialEq`; its `Default`; `merge_url`, which takes the options out of a URL; and `OPTIONS`, the table for
//! [`Driver::options`](crate::Driver::options). By serde it is read with every field optional and unknown fields refused;
//! times are texts such as `2s`, and a [`Secret`](crate::Secret) is read and never written.
//!
//! The first line of an option's documentation is its line in the table. The default is written as in a URL; that of an
//! `Option` is `None`, and the text says what that means. A type is written without a path: `Duration`, `Option<Secret>`.
//! Types of your own need serde's `Deserialize`, `Serialize` and `Default`. What only a program can give, such as a callback,
//! follows under `skip`.
//!
//! ```
//! use std::time::Duration;
//! use onelock_core::{Secret, StoreUrl};
//!
//! onelock_core::toolkit::options! {
//!     /// How to reach it.
//!     pub struct MyConfig {
//!         /// The server's name.
//!         pub host: String = "127.0.0.1".into(),
//!         /// The password.
//!         pub password: Option<Secret> = None,
//!     }
//!     options {
//!         /// How long the server may take to answer.
//!         request_timeout: Duration = "2s",
//!         /// What every key starts with.
//!         ///
//!         /// At most 64 letters.
//!         #[alias = "prefix"]
//!         namespace: String = "onelock",
//!         /// A PEM file with the authorities to trust.
//!         tls_ca: Option<String> = "the system's",
//!     }
//! }
//!
//! let mut url: StoreUrl = "my://h?prefix=shop".parse()?;
//! url.check_options(&[MyConfig::OPTIONS])?;
//! let config = MyConfig::default().merge_url(&mut url)?;
//! assert_eq!((config.namespace.as_str(), config.request_timeout), ("shop", Duration::from_secs(2)));
//!
//! let json = r#"{ "request_timeout": "1m 30s", "password": "hunter2" }"#;
//! let config: MyConfig = serde_json::from_str(json).unwrap();
//! assert_eq!(config.request_timeout, Duration::from_secs(90));
//! assert!(!serde_json::to_string(&config).unwrap().contains("hunter2"));
//!
//! let option = MyConfig::OPTIONS[1];
//! assert_eq!((option.name, option.default, option.about), ("namespace", "onelock", "What every key starts with"));
//! # Ok::<(), onelock_core::Error>(())
//! ```

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::{DeserializeSeed, Error as _, MapAccess, Visitor};

use crate::error::{Error, ErrorKind};
pub use crate::store::options::OptionSpec;
use crate::store::options::{Text, Unread};
use crate::url::StoreUrl;
#[doc(hidden)]
pub use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

#[doc(hidden)]
#[macro_export]
macro_rules! __options {
    (
        $(#[$attr:meta])*
        $vis:vis struct $config:ident {
            $($(#[$field_attr:meta])* $field_vis:vis $field:ident: $kind:ident $(<$of:tt>)? = $value:expr,)*
        }
        options {
            $(#[doc = $about:literal] $(#[doc = $doc:literal])* $(#[alias = $alias:literal])*
            $name:ident: $type:ident $(<$item:tt>)? = $default:literal,)*
        }
        $(skip { $($(#[$skip_attr:meta])* $skip_vis:vis $skipped:ident: $skipped_type:ty,)* })?
    ) => {
        $(#[$attr])*
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        $vis struct $config {
            $($(#[$field_attr])* $field_vis $field: $kind $(<$of>)?,)*
            $(#[doc = $about] $(#[doc = $doc])* pub $name: $type $(<$item>)?,)*
            $($($(#[$skip_attr])* $skip_vis $skipped: $skipped_type,)*)?
        }

        impl Default for $config {
            fn default() -> Self {
                Self {
                    $($field: $value,)*
                    $($name: $crate::__options!(@default $default, $type $(<$item>)?),)*
                    $($($skipped: Default::default(),)*)?
                }
            }
        }

        impl $config {
            /// What a URL may set, beside what every store takes.
            $vis const OPTIONS: &'static [$crate::OptionSpec] = &[$(
                $crate::OptionSpec::new(stringify!($name), $default, $about).aliases(&[$($alias),*]),
            )*];

            /// Takes these options out of a URL, over what `self` has.
            ///
            /// # Errors
            /// `InvalidConfig` when one is not of its type, or is given under two spellings; the value itself is not shown.
            $vis fn merge_url(self, url: &mut $crate::StoreUrl) -> $crate::Result<Self> {
                $crate::toolkit::options::merge_url(self, Self::OPTIONS, url)
            }
        }

        impl $crate::toolkit::options::Fields for $config {
            const NAME: &'static str = stringify!($config);
            const FIELDS: &'static [&'static str] = &[$(stringify!($field),)* $(stringify!($name), $($alias,)*)*];

            fn read<'de, D: $crate::toolkit::options::Deserializer<'de>>(
                &mut self,
                name: &str,
                from: D,
            ) -> Result<&'static str, D::Error> {
                match name {
                    $(stringify!($field) => {
                        self.$field = $crate::__options!(@read from, $kind $(<$of>)?);
                        Ok(stringify!($field))
                    })*
                    $(stringify!($name) $(| $alias)* => {
                        self.$name = $crate::__options!(@read from, $type $(<$item>)?);
                        Ok(stringify!($name))
                    })*
                    _ => Err($crate::toolkit::options::de::Error::unknown_field(name, Self::FIELDS)),
                }
            }
        }

        impl<'de> $crate::toolkit::options::Deserialize<'de> for $config {
            fn deserialize<D: $crate::toolkit::options::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                $crate::toolkit::options::deserialize(from)
            }
        }

        impl $crate::toolkit::options::Serialize for $config {
            fn serialize<S: $crate::toolkit::options::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                use $crate::toolkit::options::ser::SerializeStruct as _;
                let count = [$(stringify!($field),)* $(stringify!($name),)*].len();
                let mut to = to.serialize_struct(stringify!($config), count)?;
                $($crate::__options!(@write to, stringify!($field), &self.$field, $kind $(<$of>)?);)*
                $($crate::__options!(@write to, stringify!($name), &self.$name, $type $(<$item>)?);)*
                to.end()
            }
        }
    };
    (@default $default:literal, Option<$type:tt>) => { None };
    (@default $default:literal, $type:ident) => {
        $crate::toolkit::options::default($default, |from| Ok($crate::__options!(@read from, $type)))
    };
    (@read $from:ident, Duration) => { $crate::toolkit::human_time::deserialize($from)? };
    (@read $from:ident, Option<Duration>) => { $crate::toolkit::human_time::option::deserialize($from)? };
    (@read $from:ident, $type:ty) => { <$type as $crate::toolkit::options::Deserialize<'_>>::deserialize($from)? };
    (@write $to:ident, $name:expr, $value:expr, Option<Secret>) => { $to.skip_field($name)? };
    (@write $to:ident, $name:expr, $value:expr, Duration) => {
        $to.serialize_field($name, &$crate::toolkit::options::HumanTime(*$value))?
    };
    (@write $to:ident, $name:expr, $value:expr, Option<Duration>) => {
        $to.serialize_field($name, &$value.map($crate::toolkit::options::HumanTime))?
    };
    (@write $to:ident, $name:expr, $value:expr, $type:ty) => { $to.serialize_field($name, $value)? };
}

/// Declares a configuration, each option once; see the [module](self).
#[doc(inline)]
pub use crate::__options as options;

/// What a default says that is written as in a URL.
#[doc(hidden)]
pub fn default<T: Default>(text: &'static str, read: impl FnOnce(Text<'static>) -> Result<T, Unread>) -> T {
    let value = read(Text(text));
    debug_assert!(value.is_ok(), "the default `{text}` is not of its type");
    value.unwrap_or_default()
}

/// A time that is written as a text.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HumanTime(#[serde(with = "super::human_time")] pub Duration);

/// What `options!` makes of its fields.
#[doc(hidden)]
pub trait Fields: Default {
    const NAME: &'static str;
    /// Aliases included.
    const FIELDS: &'static [&'static str];

    /// Sets the field that `name` spells, and says what it is called.
    fn read<'de, D: Deserializer<'de>>(&mut self, name: &str, from: D) -> Result<&'static str, D::Error>;
}

#[doc(hidden)]
pub fn merge_url<T: Fields>(mut config: T, specs: &[OptionSpec], url: &mut StoreUrl) -> crate::Result<T> {
    for spec in specs {
        if let Some(value) = url.take_option(spec)? {
            let read = config.read(spec.name, Text(value.reveal()));
            let bad = |why| Error::new(ErrorKind::InvalidConfig, format!("option `{}` {why}", spec.name));
            read.map_err(bad)?;
        }
    }
    Ok(config)
}

/// Reads a map of fields over the defaults.
#[doc(hidden)]
pub fn deserialize<'de, T: Fields, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    from.deserialize_struct(T::NAME, T::FIELDS, Map(PhantomData))
}

struct Map<T>(PhantomData<T>);

impl<'de, T: Fields> Visitor<'de> for Map<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the fields of {}", T::NAME)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let (mut config, mut seen) = (T::default(), Vec::new());
        while let Some(name) = map.next_key::<String>()? {
            let field = map.next_value_seed(Field(&mut config, &name))?;
            if seen.contains(&field) {
                return Err(A::Error::duplicate_field(field));
            }
            seen.push(field);
        }
        Ok(config)
    }
}

struct Field<'a, T>(&'a mut T, &'a str);

impl<'de, T: Fields> DeserializeSeed<'de> for Field<'_, T> {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<&'static str, D::Error> {
        self.0.read(self.1, from)
    }
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
