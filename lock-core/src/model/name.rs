//! Lock names and the one codec by which every store writes them.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};

use crate::model::error::{Error, ErrorKind, Result};

/// The longest name, in bytes of UTF-8.
pub const MAX_NAME_BYTES: usize = 255;

/// A checked lock name: 1 to 255 bytes of UTF-8 without control characters. Cheap to clone.
///
/// Names are compared byte for byte: case, spaces and Unicode normal forms all matter.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LockName(Arc<str>);

impl LockName {
    /// Checks `name`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] when it is empty, too long, or holds a control character.
    pub fn new(name: impl AsRef<str>) -> Result<Self> {
        let name = name.as_ref();
        check(name, 1)?;
        Ok(Self(name.into()))
    }

    /// The name as the user wrote it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as every store writes it: see [`encode`].
    #[must_use]
    pub fn encoded(&self) -> Cow<'_, str> {
        encode(&self.0)
    }

    /// Reads a name back from its encoded form; `None` when no name is written that way.
    #[must_use]
    pub fn decode(encoded: &str) -> Option<Self> {
        let name = Self::new(percent_decode_str(encoded).decode_utf8().ok()?).ok()?;
        // Only the canonical spelling is ours: two spellings must never share a lock.
        (name.encoded() == encoded).then_some(name)
    }
}

/// Checks a prefix of names, as `list` takes it: like a name, but it may be empty.
///
/// # Errors
/// [`ErrorKind::InvalidName`] when it is too long or holds a control character.
pub fn check_prefix(prefix: &str) -> Result<()> {
    check(prefix, 0)
}

fn check(name: &str, least: usize) -> Result<()> {
    let problem = if name.len() < least {
        "a lock name must not be empty".to_owned()
    } else if name.len() > MAX_NAME_BYTES {
        format!("a lock name has at most {MAX_NAME_BYTES} bytes, this one has {}", name.len())
    } else if let Some(c) = name.chars().find(|c| c.is_control()) {
        format!("a lock name has no control characters, this one has U+{:04X}", u32::from(c))
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::InvalidName, problem))
}

/// Writes a name (or a prefix of names) so that every store takes it.
///
/// ASCII letters, digits and `-`, `_`, `.`, `:`, `@` stay as they are; every other byte becomes `%XX`, and so does a
/// leading dot. The mapping is injective and keeps prefixes: `a` is a prefix of `b` exactly when
/// `encode(a)` is one of `encode(b)`.
#[must_use]
pub fn encode(name: &str) -> Cow<'_, str> {
    match name.strip_prefix('.') {
        None => utf8_percent_encode(name, ESCAPED).into(),
        Some(rest) => Cow::Owned(format!("%2E{}", utf8_percent_encode(rest, ESCAPED))),
    }
}

const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b':').remove(b'@');

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl TryFrom<String> for LockName {
    type Error = Error;
    fn try_from(name: String) -> Result<Self> {
        Self::new(name)
    }
}

impl From<LockName> for String {
    fn from(name: LockName) -> Self {
        name.0.as_ref().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn plain_names_stay_as_they_are() {
        assert_eq!(encode("orders-42_a.b:c@d"), "orders-42_a.b:c@d");
    }

    #[test]
    fn separators_dots_and_braces_are_escaped() {
        assert_eq!(encode("a/b"), "a%2Fb");
        assert_eq!(encode(".."), "%2E.");
        assert_eq!(encode("{x}%"), "%7Bx%7D%25");
        assert_eq!(encode("ü"), "%C3%BC");
    }

    #[test]
    fn only_the_canonical_spelling_decodes() {
        assert_eq!(LockName::decode("%61"), None);
        assert_eq!(LockName::decode("a%2fb"), None);
        assert_eq!(LockName::decode("%FF"), None);
        assert_eq!(LockName::decode("a%2Fb").unwrap().as_str(), "a/b");
    }

    #[test]
    fn bad_names_are_typed_errors() {
        for bad in ["", "a\0", "a\n", "\u{85}", &"x".repeat(256)] {
            assert_eq!(LockName::new(bad).unwrap_err().kind(), ErrorKind::InvalidName, "{bad:?}");
        }
        assert!(LockName::new("x".repeat(255)).is_ok());
    }

    proptest! {
        #[test]
        fn every_name_comes_back(name in "\\PC{1,40}") {
            if let Ok(name) = LockName::new(&name) {
                prop_assert_eq!(LockName::decode(&name.encoded()), Some(name));
            }
        }

        #[test]
        fn prefixes_are_kept(a in "\\PC{0,6}", b in "\\PC{0,6}") {
            prop_assert_eq!(b.starts_with(&a), encode(&b).starts_with(&*encode(&a)));
        }
    }
}
