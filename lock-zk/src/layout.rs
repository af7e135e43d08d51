//! How names, entries and notes are written in the tree.
//!
//! An entry is `_c_<id>-lock-<sequence>`, exactly as Curator's mutex writes it. A shared entry is
//! `_c_<id>-s-lock-<sequence>` and a permit `_c_<id>-p5-lock-<sequence>`: Curator sorts by what follows the last
//! `lock-`, so its mutex takes its place among them, and one listing of the children tells the whole line.

use std::borrow::Cow;

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

/// The path of an entry of `parent` without its end: the server adds the sequence.
pub(crate) fn stem(parent: &str, holder: HolderId, mode: Mode) -> String {
    let id = holder.to_hex();
    let (a, b, c, d, e) = (&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]);
    let mode = match mode {
        Mode::Exclusive => String::new(),
        mode => [&*written(mode), "-"].concat(),
    };
    [parent, "/", PROTECTED, a, "-", b, "-", c, "-", d, "-", e, "-", &mode, TAIL].concat()
}

fn written(mode: Mode) -> Cow<'static, str> {
    match mode {
        Mode::Exclusive => "x".into(),
        Mode::Shared => "s".into(),
        mode => mode.to_string().into(),
    }
}

/// A node that is to be made.
#[derive(Debug)]
pub(crate) struct Draft {
    /// The node of the name.
    pub(crate) parent: String,
    /// Its own path without its sequence.
    pub(crate) stem: String,
    pub(crate) data: Vec<u8>,
}

impl Draft {
    pub(crate) fn new(base: &str, request: &Request) -> Self {
        let parent = parent(base, &request.name);
        let stem = stem(&parent, request.holder, request.mode);
        Self { stem, parent, data: data(request.mode, request.note.as_str()) }
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
    pub(crate) fn node<'a>(&self, path: &'a str) -> &'a str {
        path.get(self.parent.len() + 1..).unwrap_or_default()
    }
}

/// An entry as its node's name tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) sequence: i64,
    /// `None` for what others write in another layout.
    pub(crate) holder: Option<HolderId>,
    /// What others write counts as exclusive.
    pub(crate) mode: Mode,
}

impl Node {
    /// Reads a child's name; `None` when it is no entry of any lock that sorts by `lock-`, nor one of kazoo's.
    pub(crate) fn read(name: &str) -> Option<Self> {
        let digits = |digits: &str| -> Option<i64> {
            let bare = digits.strip_prefix('-').unwrap_or(digits);
            let written = digits.len() >= 10 && bare.bytes().all(|b| b.is_ascii_digit());
            if written { digits.parse().ok() } else { None }
        };
        let ours = name.rsplit_once(TAIL).and_then(|(head, tail)| Some((head, digits(tail)?)));
        let theirs = || {
            KAZOO.iter().find_map(|mark| {
                let (head, tail) = name.rsplit_once(mark)?;
                let id = head.len() == 32 && head.bytes().all(|b| b.is_ascii_hexdigit());
                if id { Some((head, digits(tail)?)) } else { None }
            })
        };
        let (head, sequence) = ours.or_else(theirs)?;
        let (holder, mode) = match owner(head) {
            Some((holder, mode)) => (Some(holder), mode),
            None => (None, Mode::Exclusive),
        };
        Some(Self { name: name.to_owned(), sequence, holder, mode })
    }
}

fn owner(head: &str) -> Option<(HolderId, Mode)> {
    let rest = head.strip_prefix(PROTECTED)?;
    let (id, rest) = (rest.get(..ID)?, rest.get(ID..)?);
    let dashes = [8, 13, 18, 23];
    if !dashes.iter().all(|at| id.as_bytes()[*at] == b'-') {
        return None;
    }
    let holder = HolderId::from_hex(&id.split('-').collect::<String>())?;
    let mode = match rest {
        "-" => Mode::Exclusive,
        _ => {
            rest.strip_prefix('-')?.strip_suffix('-')?.parse().ok().filter(|mode| *mode != Mode::Exclusive)?
        }
    };
    Some((holder, mode))
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
        for mode in [Mode::Exclusive, Mode::Shared, Mode::permit(7).unwrap()] {
            for (text, sequence) in [
                ("0000000007", 7),
                ("2147483647", 2_147_483_647),
                ("-2147483648", -2_147_483_648),
                ("-000000001", -1),
            ] {
                let draft = Draft { parent: "/n".into(), stem: stem(mode), data: Vec::new() };
                let node = Node::read(draft.node(&draft.path(text))).unwrap();
                assert_eq!((node.holder, node.mode, node.sequence), (Some(holder), mode, sequence));
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
            let node = Node::read(foreign).unwrap();
            assert_eq!((node.holder, node.mode), (None, Mode::Exclusive), "{foreign}");
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
            assert_eq!(Node::read(none), None, "{none}");
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
