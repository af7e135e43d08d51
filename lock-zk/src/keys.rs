//! How names, entries and notes are written in the tree.
//!
//! An entry is `_c_<id>-lock-<sequence>`, exactly as Curator's mutex writes it. A shared entry is
//! `_c_<id>-s-lock-<sequence>` and a permit `_c_<id>-p5-lock-<sequence>`, or `-p5w2-` where its weight is 2: Curator sorts by what follows the last
//! `lock-`, so its mutex takes its place among them, and one listing of the children tells the whole line.

use std::borrow::Cow;
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

/// What the names of a holder's entries start with.
pub(crate) fn id(holder: HolderId) -> String {
    let id = holder.to_hex();
    let (a, b, c, d, e) = (&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]);
    [PROTECTED, a, "-", b, "-", c, "-", d, "-", e, "-"].concat()
}

/// The path of an entry of `parent` without its end: the server adds the sequence.
pub(crate) fn stem(parent: &str, holder: HolderId, mode: Mode) -> String {
    let mode = match mode {
        Mode::Exclusive => String::new(),
        mode => [&*written(mode), "-"].concat(),
    };
    [parent, "/", &id(holder), &mode, TAIL].concat()
}

fn written(mode: Mode) -> Cow<'static, str> {
    match mode {
        Mode::Exclusive => "x".into(),
        Mode::Shared => "s".into(),
        mode => mode.to_string().into(),
    }
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
    pub(crate) fn bytes(&self) -> usize {
        // The length goes before it, and the sequence behind.
        4 + self.stem.len() + "-2147483648".len()
    }

    /// Its path, once it has its sequence.
    pub(crate) fn path(&self, sequence: &str) -> String {
        [&self.stem, sequence].concat()
    }

    /// The name of the node at one of its paths.
    pub(crate) fn child<'a>(&self, path: &'a str) -> &'a str {
        path.get(self.parent.len() + 1..).unwrap_or_default()
    }
}

/// An entry as its node's name tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) name: String,
    pub(crate) sequence: i64,
    /// Whether it is in our layout and not in another's.
    ours: bool,
    /// What others write counts as exclusive.
    pub(crate) mode: Mode,
}

impl Child {
    /// Reads a child's name; what is no entry of any lock that sorts by `lock-`, nor one of kazoo's, comes back.
    pub(crate) fn read(name: String) -> std::result::Result<Self, String> {
        let Some((head, sequence)) = split(&name) else { return Err(name) };
        let mode = mode(head);
        Ok(Self { sequence, ours: mode.is_some(), mode: mode.unwrap_or(Mode::Exclusive), name })
    }

    /// Whether it is the entry of the holder with this [`id`].
    pub(crate) fn is_of(&self, id: &str) -> bool {
        self.ours && self.name.starts_with(id)
    }
}

/// What goes before the sequence, and the sequence.
fn split(name: &str) -> Option<(&str, i64)> {
    let digits = |digits: &str| -> Option<i64> {
        let bare = digits.strip_prefix('-').unwrap_or(digits);
        let written = digits.len() >= 10 && bare.bytes().all(|b| b.is_ascii_digit());
        if written { digits.parse().ok() } else { None }
    };
    let ours = name.rsplit_once(TAIL).and_then(|(head, tail)| Some((head, digits(tail)?)));
    ours.or_else(|| {
        KAZOO.iter().find_map(|mark| {
            let (head, tail) = name.rsplit_once(mark)?;
            let id = head.len() == 32 && head.bytes().all(|b| b.is_ascii_hexdigit());
            if id { Some((head, digits(tail)?)) } else { None }
        })
    })
}

/// The mode of one of our entries.
fn mode(head: &str) -> Option<Mode> {
    let (id, mode) = head.strip_prefix(PROTECTED)?.split_at_checked(ID)?;
    let dash = |at| [8, 13, 18, 23].contains(&at);
    let digit = |(at, byte): (usize, u8)| {
        if dash(at) { byte == b'-' } else { matches!(byte, b'0'..=b'9' | b'a'..=b'f') }
    };
    if !id.bytes().enumerate().all(digit) {
        return None;
    }
    match mode {
        "-" => Some(Mode::Exclusive),
        _ => mode.strip_prefix('-')?.strip_suffix('-')?.parse().ok().filter(|mode| *mode != Mode::Exclusive),
    }
}

/// The data of an entry: for people who look at it.
fn data(mode: Mode, note: &str) -> Vec<u8> {
    [MARK, &written(mode), " ", note].concat().into_bytes()
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
    let bad = |why: &str| Error::new(ErrorKind::InvalidConfig, format!("the path of a ZooKeeper URL {why}"));
    let trimmed = path.strip_suffix('/').unwrap_or(path);
    if trimmed.is_empty() {
        return Ok(String::new());
    }
    let Some(rest) = trimmed.strip_prefix('/') else { return Err(bad("starts with a slash")) };
    if trimmed.len() > 1_000 {
        return Err(bad("has at most 1000 bytes"));
    }
    for part in rest.split('/') {
        if part.is_empty() || part == "." || part == ".." {
            return Err(bad("has no empty parts, `.` or `..`"));
        }
        let refused = |c: char| c.is_control() || matches!(u32::from(c), 0xD800..=0xF8FF | 0xFFF0.. );
        if part.chars().any(refused) {
            return Err(bad("has a character that ZooKeeper refuses"));
        }
    }
    if rest.split('/').next() == Some("zookeeper") {
        return Err(bad("must not lie under /zookeeper, which is the server's own"));
    }
    Ok(trimmed.to_owned())
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
                let child = Child::read(paths.child(&paths.path(text)).to_owned()).unwrap();
                assert!(child.is_of(&id(holder)) && !child.is_of(&id(HolderId::from_u128(1))));
                assert_eq!((child.mode, child.sequence), (mode, sequence));
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
            let child = Child::read(foreign.to_owned()).unwrap();
            assert_eq!((child.ours, child.mode), (false, Mode::Exclusive), "{foreign}");
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
            assert!(Child::read(none.to_owned()).is_err(), "{none}");
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
