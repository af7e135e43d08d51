//! Where a line lives: four keys and a counter, all of one hash slot.

use std::borrow::Cow;
use std::sync::LazyLock;

use onelock_core::{LockName, name};

/// How many buckets of names there are, each with one counter that never expires. It is part of the layout: were it
/// to change, names would move to other counters and their numbers could go back.
pub(crate) const BUCKETS: u32 = 128;

/// The kind of the hash of a line, the one key that every line with an entry has.
const ENTRIES: char = 'e';
/// The four keys of a line in the order the scripts take them: entries, owners, waiters, waiters' lease ends.
const KINDS: [char; 4] = [ENTRIES, 'o', 'w', 'x'];
const COUNTER: char = 'n';

/// The keys of a client.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) prefix: String,
    /// The key that the voting verbs look at, where there is a gate.
    pub(crate) gate: Option<String>,
}

impl Keys {
    pub(crate) fn new(prefix: &str, gated: bool) -> Self {
        Self { prefix: prefix.to_owned(), gate: gated.then(|| gate(prefix)) }
    }

    pub(crate) fn of(&self, name: &LockName) -> LineKeys {
        LineKeys::new(&self.prefix, name)
    }

    /// The number of keys of a voting verb that has `others` beside the gate.
    pub(crate) fn with_gate(&self, others: usize) -> usize {
        others + usize::from(self.gate.is_some())
    }
}

/// The keys of one name.
pub(crate) struct LineKeys {
    pub(crate) bucket: u32,
    /// One after the other: those of the line, all of one length, and the counter. Every verb makes them anew, and five
    /// strings would take a tenth of all that a client does for a lock.
    text: String,
    length: usize,
}

/// The hash tag of a bucket.
fn tag(bucket: u32) -> Cow<'static, str> {
    static TAGS: LazyLock<Vec<String>> =
        LazyLock::new(|| (0..BUCKETS).map(|bucket| bucket.to_string()).collect());
    match TAGS.get(bucket as usize) {
        Some(tag) => Cow::Borrowed(tag),
        None => Cow::Owned(bucket.to_string()),
    }
}

/// The slot of a bucket.
pub(crate) fn slot_of(bucket: u32) -> u16 {
    static SLOTS: LazyLock<Vec<u16>> =
        LazyLock::new(|| (0..BUCKETS).map(|bucket| slot(&tag(bucket))).collect());
    SLOTS.get(bucket as usize).copied().unwrap_or_else(|| slot(&tag(bucket)))
}

impl LineKeys {
    pub(crate) fn new(prefix: &str, name: &LockName) -> Self {
        let encoded = name.encoded();
        let bucket = bucket(&encoded);
        let start = start(prefix, bucket);
        let length = start.len() + 2 + encoded.len();
        let mut text = String::with_capacity(KINDS.len() * length + start.len() + 1);
        for kind in KINDS {
            text.push_str(&start);
            text.push(kind);
            text.push(':');
            text.push_str(&encoded);
        }
        text.push_str(&start);
        text.push(COUNTER);
        Self { bucket, text, length }
    }

    /// The slot of a cluster in which they are.
    pub(crate) fn slot(&self) -> u16 {
        slot_of(self.bucket)
    }

    /// Those of the line, in the order the scripts take them.
    pub(crate) fn line(&self) -> [&str; 4] {
        [0, 1, 2, 3].map(|i| &self.text[i * self.length..(i + 1) * self.length])
    }

    /// The counter of the bucket.
    pub(crate) fn counter(&self) -> &str {
        &self.text[KINDS.len() * self.length..]
    }
}

/// What all keys of a bucket begin with.
fn start(prefix: &str, bucket: u32) -> String {
    [prefix, ":{", &tag(bucket), "}:"].concat()
}

/// The counter of a bucket.
pub(crate) fn counter(prefix: &str, bucket: u32) -> String {
    let mut key = start(prefix, bucket);
    key.push(COUNTER);
    key
}

/// Which start of the server has a vote in a quorum.
pub(crate) fn gate(prefix: &str) -> String {
    format!("{prefix}:gate")
}

/// FNV-1a over the encoded name.
pub(crate) fn bucket(encoded: &str) -> u32 {
    let hash = encoded.bytes().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    hash % BUCKETS
}

/// The slot of a cluster in which all keys with this hash tag are: CRC16 (XMODEM) modulo 16384.
pub(crate) fn slot(tag: &str) -> u16 {
    let crc = tag.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % 16384
}

/// The glob that finds one key of every line whose name starts with `names`. Neither the prefix nor the encoded name
/// has a glob character (`*`, `?`, `[`, `]`, `^`, `\`): the codec and the check of the prefix see to that.
pub(crate) fn glob(prefix: &str, names: &str) -> String {
    format!("{prefix}:{{*}}:{ENTRIES}:{}*", name::encode(names))
}

/// The name behind a key that [`glob`] found; `None` when the key is not one of ours.
pub(crate) fn name_of(prefix: &str, key: &[u8]) -> Option<LockName> {
    let rest = std::str::from_utf8(key).ok()?.strip_prefix(prefix)?.strip_prefix(":{")?;
    let (bucket_text, rest) = rest.split_once("}:")?;
    let encoded = rest.strip_prefix(ENTRIES)?.strip_prefix(':')?;
    (bucket(encoded).to_string() == bucket_text).then(|| LockName::decode(encoded)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_never_change() {
        // Fixed for ever: a name that changed its bucket would change its counter.
        assert_eq!(["a", "orders%2F42", "", "z:z"].map(bucket), [44, 1, 69, 93]);
    }

    #[test]
    fn all_keys_of_a_line_share_a_hash_tag() {
        let name = LockName::new("orders/{42}").unwrap();
        let keys = LineKeys::new("app", &name);
        let tag = format!("app:{{{}}}:", keys.bucket);
        assert!(keys.line().iter().all(|k| k.starts_with(&tag) && k.ends_with(":orders%2F%7B42%7D")));
        assert!(keys.counter().starts_with(&tag));
        assert_eq!(keys.counter(), counter("app", keys.bucket));
    }

    #[test]
    fn slots_are_those_of_redis() {
        // From `CLUSTER KEYSLOT`; 0x31c3 is the check value of this CRC.
        assert_eq!(
            ["123456789", "foo", "user", "0", "127", ""].map(slot),
            [0x31c3, 12182, 5474, 13907, 6102, 0]
        );
    }

    #[test]
    fn only_our_own_keys_have_a_name() {
        let name = LockName::new("a:b/c").unwrap();
        let keys = LineKeys::new("p", &name);
        assert_eq!(name_of("p", keys.line()[0].as_bytes()), Some(name));
        for foreign in [keys.line()[1], "p:{0}:e:a", "p:{044}:e:a", "q:{44}:e:a", "p:{12}:e:%61", "p"] {
            assert_eq!(name_of("p", foreign.as_bytes()), None, "{foreign}");
        }
        assert_eq!(name_of("p", b"p:{44}:e:\xff"), None);
    }
}
