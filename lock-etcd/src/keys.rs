//! Where the entries of a line are.
//!
//! The line of a name is every key that starts with `<prefix><name>/`, the name in the common codec, in the order of
//! creation. An exclusive entry is `<line><holder>`, a shared one `<line>r-<holder>`, a permit `<line>p<limit>-<holder>`
//! or `<line>p<limit>w<weight>-<holder>`.
//! So a key is a function of name, mode and holder alone: asking again, releasing and renewing need no memory of the
//! lease an entry was made on. Any other key in the line is somebody else's exclusive entry: `etcdctl lock` and Go's
//! `concurrency.Mutex` write `<line><lease in hexadecimal>` and wait for every older key of the line.

use etcd_client::proto::PbKeyValue;
use etcd_client::{GetOptions, TxnOp};
use onelock_core::{HolderId, LockName, Mode};

/// The keys under one prefix.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    /// The line of `name`.
    pub(crate) fn line(&self, name: &LockName) -> Span {
        Span::under(format!("{}{}/", self.prefix, name.encoded()))
    }

    /// A key under the prefix that no line has: to see whether the prefix may be used at all.
    pub(crate) fn probe(&self) -> String {
        format!("{}.probe", self.prefix)
    }

    /// The key of the largest token epoch that has joined; it is there once an epoch other than 0 has. No line has it. With an
    /// empty prefix there is none: rights are those of single lines then.
    pub(crate) fn epoch(&self) -> Option<String> {
        (!self.is_bare()).then(|| format!("{}.epoch", self.prefix))
    }

    /// Whether there is no prefix.
    pub(crate) fn is_bare(&self) -> bool {
        self.prefix.is_empty()
    }

    /// All lines whose encoded names start with `encoded`.
    pub(crate) fn lines(&self, encoded: &str) -> Span {
        Span::under(format!("{}{encoded}", self.prefix))
    }

    /// The first key after the line of the encoded name.
    pub(crate) fn after(&self, encoded: &str) -> Vec<u8> {
        Span::under(format!("{}{encoded}/", self.prefix)).end
    }

    /// The encoded name of the line a key is in.
    pub(crate) fn encoded_name<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        let rest = key.strip_prefix(self.prefix.as_bytes())?;
        let end = rest.iter().position(|b| *b == b'/')?;
        std::str::from_utf8(&rest[..end]).ok()
    }
}

/// Keys from `start` up to but not including `end`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Span {
    pub(crate) start: Vec<u8>,
    pub(crate) end: Vec<u8>,
}

impl Span {
    /// Every key that starts with `prefix`.
    fn under(prefix: impl Into<Vec<u8>>) -> Self {
        let start = prefix.into();
        let mut end = start.clone();
        // A prefix is ASCII or UTF-8, so its last byte can be raised. An empty one means every key, which etcd
        // writes as a single zero byte.
        match end.last_mut() {
            Some(last) => *last += 1,
            None => return Self { start: vec![0], end: vec![0] },
        }
        Self { start, end }
    }

    /// The key of an entry of this line.
    pub(crate) fn entry(&self, mode: Mode, holder: HolderId) -> Vec<u8> {
        let mut key = self.of_mode(mode);
        key.extend_from_slice(holder.to_hex().as_bytes());
        key
    }

    fn of_mode(&self, mode: Mode) -> Vec<u8> {
        let mut key = self.start.clone();
        match mode {
            Mode::Exclusive => {}
            Mode::Shared => key.extend_from_slice(b"r-"),
            Mode::Permit { .. } => key.extend_from_slice(format!("{mode}-").as_bytes()),
        }
        key
    }

    /// The parts of the line that must be empty for an entry of this mode to hold beside what is in the rest. Permits, whose keys
    /// begin with a `p`, are read: their limits and weights count, and others' keys may be among them.
    pub(crate) fn against(&self, mode: Mode) -> Vec<Self> {
        let beside = match mode {
            Mode::Exclusive => return vec![self.clone()],
            Mode::Shared => Self::under(self.of_mode(mode)),
            Mode::Permit { .. } => Self::under([&self.start[..], b"p"].concat()),
        };
        vec![
            Self { start: self.start.clone(), end: beside.start },
            Self { start: beside.end, end: self.end.clone() },
        ]
    }

    /// Reads the keys.
    pub(crate) fn op(&self, options: GetOptions) -> TxnOp {
        TxnOp::get(&self.start[..], Some(options.with_range(&self.end[..])))
    }

    /// The entries with these keys, in line order.
    pub(crate) fn entries(&self, keys: Vec<PbKeyValue>) -> Vec<Entry> {
        let entry = |kv: PbKeyValue| Entry {
            number: kv.create_revision,
            mode: self.mode_of(&kv.key),
            key: kv.key,
            value: kv.value,
        };
        let mut line: Vec<_> = keys.into_iter().map(entry).collect();
        line.sort_by(|a, b| a.place().cmp(&b.place()));
        line
    }

    /// The mode of the entry that has this key of the line.
    pub(crate) fn mode_of(&self, key: &[u8]) -> Mode {
        let rest = key.strip_prefix(&self.start[..]).unwrap_or_default();
        let Some(mark) = rest.iter().position(|b| *b == b'-') else { return Mode::Exclusive };
        match std::str::from_utf8(&rest[..mark]) {
            Ok("r") => Mode::Shared,
            Ok(text) if text.starts_with('p') => text.parse().unwrap_or(Mode::Exclusive),
            _ => Mode::Exclusive,
        }
    }
}

/// One entry as the store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The revision that created its key.
    pub(crate) number: i64,
    pub(crate) key: Vec<u8>,
    pub(crate) mode: Mode,
    pub(crate) value: Vec<u8>,
}

impl Entry {
    /// Numbers order a line. Keys that were made in one transaction share a number; then the key decides.
    pub(crate) fn place(&self) -> (i64, &[u8]) {
        (self.number, &self.key)
    }
}

/// The key and the number of an entry that keeps another one waiting.
pub(crate) type Blocker = (Vec<u8>, i64);

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    const MODES: [&str; 7] = ["x", "s", "p1", "p2", "p12", "p12w2", "p2w2"];

    #[test]
    fn keys_tell_their_mode() {
        let line = Keys::new("onelock/").line(&name("a/b"));
        assert_eq!(text(&line.start), "onelock/a%2Fb/");
        assert_eq!(text(&line.end), "onelock/a%2Fb0");
        let holder = HolderId::from_u128(0xabc);
        for mode in MODES.map(|m| m.parse::<Mode>().unwrap()) {
            let key = line.entry(mode, holder);
            assert!(key >= line.start && key < line.end);
            assert_eq!(line.mode_of(&key), mode, "{}", text(&key));
        }
        let exclusive = line.entry(Mode::Exclusive, holder);
        assert_eq!(text(&exclusive), format!("onelock/a%2Fb/{}", holder.to_hex()));
    }

    #[test]
    fn a_foreign_key_is_an_exclusive_entry() {
        let line = Keys::new("").line(&name("jobs"));
        for key in ["694d7f3a2b", "p0-x", "p01-x", "px-", "", "deeper/694d", "x-1", "R-1"] {
            let key = [&line.start[..], key.as_bytes()].concat();
            assert_eq!(line.mode_of(&key), Mode::Exclusive, "{}", text(&key));
        }
    }

    /// What the store compares says the same as the mode that is read from a key, but for permits, which are read.
    #[test]
    fn the_parts_against_a_mode_are_every_other_key() {
        let line = Keys::new("p/").line(&name("n"));
        let keys: Vec<_> = MODES
            .map(|m| line.entry(m.parse().unwrap(), HolderId::from_u128(7)))
            .into_iter()
            .chain(
                [b"p/n/694d", &b"p/n/p0-1"[..], b"p/n/zz", b"p/n/p2", b"p/n/r", b"p/n/", b"p/n/r-odd"]
                    .map(Vec::from),
            )
            .collect();
        for mode in MODES.map(|m| m.parse::<Mode>().unwrap()) {
            for key in &keys {
                let against = line.against(mode).iter().any(|s| key >= &s.start && key < &s.end);
                let beside = match mode {
                    Mode::Exclusive => false,
                    Mode::Shared => line.mode_of(key) == mode,
                    Mode::Permit { .. } => key.starts_with(b"p/n/p"),
                };
                assert_eq!(against, !beside, "{mode} against {}", text(key));
            }
        }
    }

    #[test]
    fn names_come_back_from_keys() {
        let keys = Keys::new("onelock/");
        assert_eq!(keys.encoded_name(b"onelock/a%2Fb/123"), Some("a%2Fb"));
        assert_eq!(keys.encoded_name(b"onelock/a"), None);
        assert_eq!(keys.encoded_name(b"other/a/1"), None);
        assert_eq!(Keys::new("").lines("").start, [0]);
        assert_eq!(text(&keys.after("a")), "onelock/a0");
    }
}
