//! The options of a store: their table, and how the text of one is read as its type.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{Deserializer, Expected, IntoDeserializer as _, Unexpected, Visitor};

/// One option of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
#[must_use]
pub struct OptionSpec {
    /// Its name.
    pub name: &'static str,
    /// Other spellings that are read as well.
    pub aliases: &'static [&'static str],
    /// Its default, as one would write it.
    pub default: &'static str,
    /// One line that says what it does.
    pub about: &'static str,
}

impl OptionSpec {
    /// The option `name`. Of `about`, the spaces around it and a full stop at its end are dropped.
    pub const fn new(name: &'static str, default: &'static str, about: &'static str) -> Self {
        let about = about.trim_ascii();
        let about = match about.as_bytes() {
            [.., b'.'] => about.split_at(about.len() - 1).0,
            _ => about,
        };
        Self { name, aliases: &[], default, about }
    }

    /// With other spellings.
    pub const fn aliases(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    /// Whether `name` is this option, by its name or by another spelling.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }
}

/// The text of an option as serde sees it.
#[derive(Debug)]
pub struct Text<'de>(pub(crate) &'de str);

macro_rules! numbers {
    ($($method:ident $visit:ident $type:ty: $expected:literal, $check:expr;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unread> {
            let number: Option<$type> = self.0.parse().ok().filter($check);
            visitor.$visit(number.ok_or_else(|| Unread::expected($expected))?)
        }
    )*};
}

impl<'de> Deserializer<'de> for Text<'de> {
    type Error = Unread;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unread> {
        visitor.visit_borrowed_str(self.0)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unread> {
        match self.0 {
            "true" | "1" | "" => visitor.visit_bool(true),
            "false" | "0" => visitor.visit_bool(false),
            _ => Err(Unread::expected("true or false")),
        }
    }

    numbers! {
        deserialize_u16 visit_u16 u16: "a number from 0 to 65535", |_| true;
        deserialize_u32 visit_u32 u32: "a number from 0 to 4294967295", |_| true;
        deserialize_u64 visit_u64 u64: "a number", |_| true;
        deserialize_f64 visit_f64 f64: "a number", |number: &f64| number.is_finite();
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unread> {
        visitor.visit_some(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unread> {
        let text: StrDeserializer<'de, Unread> = self.0.into_deserializer();
        text.deserialize_enum(name, variants, visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Unread> {
        visitor.visit_newtype_struct(self)
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u128 f32 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map
        struct identifier ignored_any
    }
}

/// Why a text is not of its type. It says what was expected, and never the text: that may be a secret.
#[derive(Debug)]
pub struct Unread(String);

impl Unread {
    fn expected(what: impl fmt::Display) -> Self {
        Self(format!("is not {what}"))
    }
}

impl serde::de::Error for Unread {
    fn custom<T: fmt::Display>(why: T) -> Self {
        Self(format!("cannot be used: {why}"))
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::expected(expected)
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::expected(expected)
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        match expected {
            [one, other] => Self::expected(format_args!("{one} or {other}")),
            all => Self::expected(format_args!("one of {}", all.join(", "))),
        }
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unread {}
