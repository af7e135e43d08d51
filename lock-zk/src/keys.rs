//! How names, entries and notes are written in the tree.
//!
//! An entry is `_c_<id>-lock-<sequence>`, exactly as Curator's mutex writes it. A shared entry is
//! `_c_<id>-s-lock-<sequence>` and a permit `_c_<id>-p5-lock-<sequence>`, or `-p5w2-` where its weight is 2: Curator sorts by what follows the last
//! `lock-`, so its mutex takes its place among them, and one listing of the children tells the whole line.

use std::sync::Arc;

use onelock_core::{Error, ErrorKind, HolderId, LockName, Mode, Request, Result};

const PROTECTED: &str = "_c_";
const TAIL: &str = "lock-";
/// What kazoo's locks write between the 32 digits of an id and the sequence.
const KAZOO: [&str; 2] = ["__lock__", "__rlock__"];
/// The length of an id as Curator writes it.
const ID: usize = 36;
/// What the data of our entries starts with.
const MARK: &str = "onelock/1 ";

/// The node of a name, the parent of its entries.
pub(crate) fn parent(base: &str, name: &LockName) -> String {
    // Not formatted: that takes several times as long, and every join writes a few.
    [base, "/", &name.encoded()].concat()
}

/// The node with the largest token epoch that has joined. No name is written so.
pub(crate) fn epoch(base: &str) -> String {
    [base, "/%epoch"].concat()
}

/// A holder's id as Curator writes one.
fn id(holder: HolderId) -> String {
    let id = holder.to_hex();
    [&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]].join("-")
}

/// What the path of a holder's entry in the line of `parent` starts with.
pub(crate) fn prefix(parent: &str, holder: HolderId) -> String {
    [parent, "/", PROTECTED, &id(holder), "-"].concat()
}

/// The path of an entry of `parent` without its end: the server adds the sequence.
pub(crate) fn stem(parent: &str, holder: HolderId, mode: Mode) -> String {
    let mode = match mode {
        Mode::Exclusive => String::new(),
        mode => [&mode.to_string(), "-"].concat(),
    };
    [&prefix(parent, holder), &*mode, TAIL].concat()
}

/// Where an entry is to be, and what its node holds.
#[derive(Debug)]
pub(crate) struct Paths {
    /// The node of the name.
    pub(crate) parent: String,
    /// Its own path without its sequence.
    pub(crate) stem: String,
    pub(crate) data: Arc<[u8]>,
}

impl Paths {
    pub(crate) fn new(base: &str, request: &Request) -> Self {
        let parent = parent(base, &request.name);
        let stem = stem(&parent, request.holder, request.mode);
        Self { stem, parent, data: data(request.mode, request.note.as_str()).into() }
    }

    /// How many bytes its path has in the server's records.
    pub(crate) fn bytes(&self) -> u32 {
        // The length goes before it, and the sequence behind.
        (4 + self.stem.len() + "-2147483648".len()) as u32
    }

    /// Its path, once it has its sequence.
    pub(crate) fn path(&self, sequence: &str) -> String {
        [&self.stem, sequence].concat()
    }
}

/// An entry as its node's name tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) path: String,
    pub(crate) sequence: i64,
    /// What others write counts as exclusive.
    pub(crate) mode: Mode,
}

impl Child {
    /// Reads the name of a child of `parent`; nothing for what is no entry of any lock that sorts by `lock-`, nor one of kazoo's.
    pub(crate) fn read(parent: &str, name: &str) -> Option<Self> {
        let (head, sequence) = split(name)?;
        let path = [parent, "/", name].concat();
        Some(Self { path, sequence, mode: mode(head).unwrap_or(Mode::Exclusive) })
    }
}

/// The path of one of our entries without its sequence.
pub(crate) fn without_sequence(path: &str) -> &str {
    path.rfind(TAIL).map_or(path, |at| &path[..at + TAIL.len()])
}

/// What goes before the sequence, and the sequence.
fn split(name: &str) -> Option<(&str, i64)> {
    let (head, digits) = name.rsplit_once(TAIL).or_else(|| {
        let (head, digits) = KAZOO.iter().find_map(|mark| name.rsplit_once(mark))?;
        HolderId::from_hex(head).map(|_| (head, digits))
    })?;
    let bare = digits.strip_prefix('-').unwrap_or(digits);
    let written = digits.len() >= 10 && bare.bytes().all(|b| b.is_ascii_digit());
    if written { Some((head, digits.parse().ok()?)) } else { None }
}

/// The mode of one of our entries.
fn mode(head: &str) -> Option<Mode> {
    let (written, mode) = head.strip_prefix(PROTECTED)?.split_at_checked(ID)?;
    HolderId::from_hex(&written.replace('-', "")).filter(|holder| id(*holder) == written)?;
    match mode {
        "-" => Some(Mode::Exclusive),
        _ => mode.strip_prefix('-')?.strip_suffix('-')?.parse().ok().filter(|mode| *mode != Mode::Exclusive),
    }
}

/// The data of an entry: for people who look at it.
fn data(mode: Mode, note: &str) -> Vec<u8> {
    [MARK, &mode.to_string(), " ", note].concat().into_bytes()
}

/// The note in the data of an entry, ours or somebody else's.
pub(crate) fn note(data: &[u8]) -> String {
    let text = String::from_utf8_lossy(data);
    let ours = text.strip_prefix(MARK).and_then(|rest| rest.split_once(' '));
    let note = ours.map_or(&*text, |(_, note)| note);
    note.chars().filter(|c| !c.is_control()).take(512).collect()
}

/// Checks the path of the node above all names and writes it without a slash at the end: empty for the root.
pub(crate) fn base(path: &str) -> Result<String> {
    let base = path.strip_suffix('/').unwrap_or(path);
    let refused = |c: char| c.is_control() || matches!(u32::from(c), 0xD800..=0xF8FF | 0xFFF0..);
    let bad = |part: &str| matches!(part, "" | "." | "..") || part.contains(refused);
    let mut parts = base.split('/');
    let rooted = parts.next() == Some("");
    let reserved = base == "/zookeeper" || base.starts_with("/zookeeper/");
    if !rooted || reserved || base.len() > 1_000 || parts.any(bad) {
        let text = "the path of a ZooKeeper URL starts with a slash, has at most 1000 bytes, no empty parts, `.` or `..` and no \
             character that ZooKeeper refuses, and does not lie under /zookeeper, which is the server's own";
        return Err(Error::new(ErrorKind::InvalidConfig, text));
    }
    Ok(base.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_written_as_curator_does() {
        let holder = HolderId::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        let stem = |mode| stem("/n", holder, mode);
        assert_eq!(stem(Mode::Exclusive), "/n/_c_01234567-89ab-cdef-0123-456789abcdef-lock-");
        assert_eq!(stem(Mode::Shared), "/n/_c_01234567-89ab-cdef-0123-456789abcdef-s-lock-");
        for mode in [
            Mode::Exclusive,
            Mode::Shared,
            Mode::permit(7).unwrap(),
            Mode::permit(7).unwrap().weighing(5).unwrap(),
        ] {
            for (text, sequence) in [
                ("0000000007", 7),
                ("2147483647", 2_147_483_647),
                ("-2147483648", -2_147_483_648),
                ("-000000001", -1),
            ] {
                let paths = Paths { parent: "/n".into(), stem: stem(mode), data: Arc::default() };
                let path = paths.path(text);
                let child = Child::read("/n", &path["/n/".len()..]).unwrap();
                assert!(child.path.starts_with(&prefix("/n", holder)));
                assert_eq!(without_sequence(&path), paths.stem);
                assert!(!child.path.starts_with(&prefix("/n", HolderId::from_u128(1))));
                assert_eq!((child.mode, child.sequence, child.path), (mode, sequence, path));
            }
        }
    }

    #[test]
    fn what_others_write_is_exclusive_or_no_entry() {
        for foreign in [
            "lock-0000000001",
            "x-lock-0000000001",
            "_c_0123-lock-0000000001",
            "_c_01234567-89ab-cdef-0123-456789abcdef-q-lock-0000000001",
            "_c_01234567-89ab-cdef-0123-456789abcdef-x-lock-0000000001",
            "_c_01234567-89AB-cdef-0123-456789abcdef-lock-0000000001",
            "_c_0123456-789ab-cdef-0123-456789abcdef-lock-0000000001",
        ] {
            let child = Child::read("/n", foreign).unwrap();
            let (head, _) = split(foreign).unwrap();
            assert_eq!((mode(head), child.mode), (None, Mode::Exclusive), "{foreign}");
        }
        for none in [
            "",
            "x",
            "lock-",
            "lock-1",
            "lock-000000000x",
            "lock-+000000001",
            "__lock__0000000001",
            "lock--",
            "lock-99999999999999999999",
        ] {
            assert_eq!(Child::read("/n", none), None, "{none}");
        }
    }

    #[test]
    fn notes_come_back() {
        assert_eq!(note(&data(Mode::Shared, "host:1 a b")), "host:1 a b");
        assert_eq!(note(&data(Mode::Shared, "")), "");
        assert_eq!(note(b"10.0.0.1\n\xff"), "10.0.0.1\u{fffd}");
    }

    #[test]
    fn paths_are_checked() {
        for (path, wanted) in
            [("", ""), ("/", ""), ("/a", "/a"), ("/a/b/", "/a/b"), ("/zookeepers", "/zookeepers")]
        {
            assert_eq!(base(path).unwrap(), wanted);
        }
        for bad in [
            "a",
            "//",
            "/a//b",
            "/./a",
            "/a/..",
            "/a\u{e000}",
            "/\u{1f600}",
            "/zookeeper",
            "/zookeeper/quota",
        ] {
            assert_eq!(base(bad).unwrap_err().kind(), ErrorKind::InvalidConfig, "{bad:?}");
        }
    }
}
