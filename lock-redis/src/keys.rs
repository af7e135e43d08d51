//! Where a lock lives: in the layout of a line four keys and a counter, all of one hash slot; in the plain layout one key.

use onelock_core::{LockName, name};

use crate::config::{Gate, Layout, RedisConfig, Topology};
use crate::scripts::{self, Verbs};

/// How many buckets of names there are, each with one counter that never expires. It is part of the layout: were it
/// to change, names would move to other counters and their numbers could go back.
pub(crate) const BUCKETS: u32 = 128;

/// The kind of the hash of a line, the one key that every line with an entry has.
const ENTRIES: &str = "e";
/// The four keys of a line in the order the scripts take them: entries, owners, waiters, waiters' lease ends.
const KINDS: [&str; 4] = [ENTRIES, "o", "w", "x"];

/// The keys of a client.
#[derive(Debug)]
pub(crate) struct Keys {
    layout: Layout,
    pub(crate) prefix: String,
    /// Whether the counter is on the server of the lock.
    counted: bool,
    /// The key that the voting verbs look at, where there is a gate.
    pub(crate) gate: Option<String>,
}

impl Keys {
    pub(crate) fn new(config: &RedisConfig) -> Self {
        Self {
            layout: config.layout,
            prefix: config.namespace.clone(),
            counted: config.layout == Layout::Line || config.topology != Topology::Cluster,
            gate: (config.gate == Gate::RunId).then(|| gate(&config.namespace)),
        }
    }

    /// The scripts for these keys.
    pub(crate) fn verbs(&self) -> &'static Verbs {
        match self.layout {
            Layout::Line => &scripts::LINE,
            Layout::Plain => &scripts::PLAIN,
        }
    }

    /// Whether the lock of this name would be the counter of others: in the plain layout a name is a key.
    pub(crate) fn is_counter(&self, name: &LockName) -> bool {
        let is_plain = self.layout == Layout::Plain;
        is_plain && [&self.prefix, name.as_str()].concat().starts_with("onelock:plain:{")
    }

    pub(crate) fn of(&self, name: &LockName) -> LineKeys {
        let encoded = name.encoded();
        let bucket = bucket(&encoded);
        let (mut text, counters);
        match self.layout {
            Layout::Plain => {
                text = [&self.prefix, name.as_str()].concat();
                counters = "onelock:plain";
            }
            Layout::Line => {
                let start = start(&self.prefix, bucket);
                text = String::with_capacity((KINDS.len() + 1) * (start.len() + 2 + encoded.len()));
                for kind in KINDS {
                    text.extend([&*start, kind, ":", &*encoded]);
                }
                counters = &self.prefix;
            }
        }
        let end = text.len();
        if self.counted {
            text.push_str(&counter(counters, bucket));
        }
        // As many as the first of its scripts takes.
        let length = end / self.verbs().release[0].1;
        LineKeys { text, length, end }
    }

    /// What the verbs that vote take: those of the line, its counter, and the gate where there is one.
    pub(crate) fn voting<'a>(&'a self, line: &'a LineKeys) -> Vec<&'a str> {
        let mut keys = line.line();
        keys.extend(Some(&line.text[line.end..]).filter(|counter| !counter.is_empty()));
        keys.extend(self.gate.as_deref());
        keys
    }
}

/// The keys of one name.
pub(crate) struct LineKeys {
    /// One after the other: those of the line, all of one length, and the counter. Every verb makes them anew, and five
    /// strings would take a tenth of all that a client does for a lock.
    text: String,
    length: usize,
    end: usize,
}

impl LineKeys {
    /// The slot of a cluster in which they are.
    pub(crate) fn slot(&self) -> u16 {
        slot(&self.text[..self.length])
    }

    /// Those of the line, in the order the scripts take them.
    pub(crate) fn line(&self) -> Vec<&str> {
        (0..self.end).step_by(self.length).map(|at| &self.text[at..at + self.length]).collect()
    }
}

/// What all keys of a bucket begin with.
fn start(prefix: &str, bucket: u32) -> String {
    // Every verb makes it anew, and `format!` takes four times as long.
    [prefix, ":{", &bucket.to_string(), "}:"].concat()
}

/// The counter of a bucket.
pub(crate) fn counter(prefix: &str, bucket: u32) -> String {
    start(prefix, bucket) + "n"
}

/// Which start of the server has a vote in a quorum.
pub(crate) fn gate(prefix: &str) -> String {
    format!("{prefix}:gate")
}

/// FNV-1a over the encoded name.
fn bucket(encoded: &str) -> u32 {
    let hash = encoded.bytes().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    hash % BUCKETS
}

/// The slot of a cluster in which a key is: CRC16 (XMODEM) of its hash tag, or of all of it, modulo 16384.
pub(crate) fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    let crc = hashed.bytes().fold(0_u16, |crc, byte| {
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

    fn keys(prefix: &str) -> Keys {
        Keys::new(&RedisConfig { namespace: prefix.to_owned(), ..RedisConfig::default() })
    }

    #[test]
    fn buckets_never_change() {
        // Fixed for ever: a name that changed its bucket would change its counter.
        assert_eq!(["a", "orders%2F42", "", "z:z"].map(bucket), [44, 1, 69, 93]);
    }

    #[test]
    fn all_keys_of_a_line_share_a_hash_tag() {
        let name = LockName::new("orders/{42}").unwrap();
        let (keys, bucket) = (keys("app"), bucket(&name.encoded()));
        let line = keys.of(&name);
        let tag = format!("app:{{{bucket}}}:");
        assert!(line.line().iter().all(|k| k.starts_with(&tag) && k.ends_with(":orders%2F%7B42%7D")));
        assert_eq!((line.line().len(), keys.voting(&line).len()), (4, 5));
        assert_eq!(keys.voting(&line)[4], counter("app", bucket));
        assert_eq!(line.slot(), slot(&bucket.to_string()));
    }

    #[test]
    fn a_plain_lock_is_one_key_of_its_name() {
        let config =
            RedisConfig { layout: Layout::Plain, namespace: "p:".to_owned(), ..RedisConfig::default() };
        let (alone, shared) = (Keys::new(&config), RedisConfig { topology: Topology::Cluster, ..config });
        let name = LockName::new("ä/{x}").unwrap();
        let line = alone.of(&name);
        assert_eq!(alone.voting(&line), ["p:ä/{x}", &counter("onelock:plain", bucket(&name.encoded()))]);
        assert_eq!(Keys::new(&shared).of(&name).line(), ["p:ä/{x}"]);
        assert_eq!(Keys::new(&shared).voting(&Keys::new(&shared).of(&name)).len(), 1);
    }

    #[test]
    fn slots_are_those_of_redis() {
        // From `CLUSTER KEYSLOT`; 0x31c3 is the check value of this CRC.
        let known = ["123456789", "foo", "user", "0", "127", "", "{user}x", "a{foo"];
        assert_eq!(known.map(slot)[..7], [0x31c3, 12182, 5474, 13907, 6102, 0, 5474]);
        assert_ne!(slot("a{}b"), slot(""));
    }

    #[test]
    fn only_our_own_keys_have_a_name() {
        let name = LockName::new("a:b/c").unwrap();
        let line = keys("p").of(&name);
        assert_eq!(name_of("p", line.line()[0].as_bytes()), Some(name));
        for foreign in [line.line()[1], "p:{0}:e:a", "p:{044}:e:a", "q:{44}:e:a", "p:{12}:e:%61", "p"] {
            assert_eq!(name_of("p", foreign.as_bytes()), None, "{foreign}");
        }
        assert_eq!(name_of("p", b"p:{44}:e:\xff"), None);
    }
}
