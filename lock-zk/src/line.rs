//! The line of a name as one listing of its children tells it: who holds, and what a waiter watches.

use futures_util::join;
use onelock_core::{Error, ErrorKind, HolderId, Mode, Result, mode};
use zookeeper_client as zk;

use crate::error::failed;
use crate::keys::{self, Child};
use crate::session::Session;

/// From here on the server's counter is near its end, or past it, and no longer tells the order.
const WORN: i64 = i32::MAX as i64 - 100_000;

/// The entries of a name, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    entries: Vec<Child>,
    /// The transaction that was the last to add or remove an entry.
    pub(crate) changed: i64,
}

/// What a waiter waits for: nothing else can promote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ahead {
    /// The last entry ahead that cannot hold beside it: nothing can happen before it goes.
    Entry(String),
    /// The permit just ahead, which waits as well: when it goes, or marks that it was promoted, this one is the next.
    Permit(String),
    /// Any of the holders: the first permit that waits.
    Holders,
}

impl Ahead {
    /// The node that changes, in the line below `parent`.
    pub(crate) fn path(&self, parent: &str) -> String {
        match self {
            Self::Entry(name) | Self::Permit(name) => [parent, "/", name].concat(),
            Self::Holders => parent.to_owned(),
        }
    }
}

/// How an entry stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stand {
    /// It holds. `followed` when a permit is right behind a permit.
    Held {
        followed: bool,
    },
    Waits(Ahead),
}

impl Line {
    /// Reads the children of a name.
    ///
    /// # Errors
    /// [`ErrorKind::Foreign`], naming the first child that is no entry.
    pub(crate) fn of(parent: &str, children: Vec<String>, changed: i64) -> Result<Self> {
        let mut entries = Vec::with_capacity(children.len());
        for child in children {
            entries.push(Child::read(child).map_err(|child| {
                let text = format!("{parent} has a child {child:?} that is no entry of a lock");
                Error::new(ErrorKind::Foreign, text)
            })?);
        }
        entries.sort_by(|a, b| a.sequence.cmp(&b.sequence).then_with(|| a.name.cmp(&b.name)));
        Ok(Self { entries, changed })
    }

    /// The line in the listing of a name, whatever the server's counter does; `None` where the name has no node.
    pub(crate) async fn listed(
        session: &Session,
        parent: &str,
        listed: Result<(Vec<String>, zk::Stat), zk::Error>,
    ) -> Result<Option<Self>> {
        let (children, stat) = match listed {
            Ok(listed) => listed,
            Err(zk::Error::NoNode) => return Ok(None),
            Err(error) => return Err(failed(error, "list", parent)),
        };
        let mut line = Self::of(parent, children, stat.pzxid)?;
        if !line.is_ordered() {
            line.entries =
                read_all(session, parent, &line).await?.into_iter().map(|read| read.entry).collect();
        }
        Ok(Some(line))
    }

    /// The line as the session sees it.
    pub(crate) async fn read(session: &Session, parent: &str) -> Result<Self> {
        let listed = session.children(parent).await;
        Ok(Self::listed(session, parent, listed).await?.unwrap_or_default())
    }

    /// The line with everything that any server has answered; `None` when nobody ever asked for the name, or all have gone.
    pub(crate) async fn latest(session: &Session, parent: &str) -> Result<Option<Self>> {
        // A single server answers what it knows.
        if session.servers.standalone.get() == Some(&true) {
            return Self::listed(session, parent, session.children(parent).await).await;
        }
        Self::synced(session, parent).await
    }

    /// The same, behind every request of this session.
    pub(crate) async fn synced(session: &Session, parent: &str) -> Result<Option<Self>> {
        // One after the other on one connection: the listing is no older than the answer to the first.
        let (passed, children) = join!(session.barrier(), session.children(parent));
        passed.map_err(|error| failed(error, "list", parent))?;
        Self::listed(session, parent, children).await
    }

    /// Whether the sequences tell the order. Past 2^31 - 1 the counter turns negative or stands still, depending on
    /// how quickly the nodes come: then only the moment of creation does.
    fn is_ordered(&self) -> bool {
        self.entries.iter().all(|entry| (0..WORN).contains(&entry.sequence))
    }

    pub(crate) fn entries(&self) -> &[Child] {
        &self.entries
    }

    /// How many entries hold.
    pub(crate) fn holders(&self) -> usize {
        mode::holders(self.entries.iter().map(|entry| entry.mode))
    }

    /// Whether an entry of this mode would hold at once and pass nobody.
    pub(crate) fn admits(&self, mode: Mode) -> bool {
        mode::holders(self.entries.iter().map(|entry| entry.mode).chain([mode])) > self.entries.len()
    }

    pub(crate) fn by(&self, holder: HolderId) -> Option<&Child> {
        let id = keys::id(holder);
        self.entries.iter().find(|entry| entry.is_of(&id))
    }

    /// How the entry of this name stands; `None` when it is not in the line.
    pub(crate) fn stand(&self, name: &str) -> Option<Stand> {
        let at = self.entries.iter().position(|entry| entry.name == name)?;
        let (mode, holders) = (self.entries[at].mode, self.holders());
        let permit = |mode| !matches!(mode, Mode::Exclusive | Mode::Shared);
        if at < holders {
            let followed = permit(mode) && self.entries.get(at + 1).is_some_and(|next| permit(next.mode));
            return Some(Stand::Held { followed });
        }
        let beside = |other| mode != Mode::Exclusive && (other == mode || (permit(mode) && permit(other)));
        Some(Stand::Waits(match self.entries[..at].iter().rfind(|entry| !beside(entry.mode)) {
            Some(entry) => Ahead::Entry(entry.name.clone()),
            None if at > holders => Ahead::Permit(self.entries[at - 1].name.clone()),
            None => Ahead::Holders,
        }))
    }
}

/// How many nodes one request reads: answers stay far below the megabyte that servers allow.
const CHUNK: usize = 500;

/// An entry with its node.
pub(crate) struct Read {
    pub(crate) entry: Child,
    pub(crate) data: Vec<u8>,
    pub(crate) stat: zk::Stat,
}

/// The entries of a line with their nodes, in the order of their creation; without those that are gone.
pub(crate) async fn read_all(session: &Session, parent: &str, line: &Line) -> Result<Vec<Read>> {
    let fail = |error| failed(error, "read the entries of", parent);
    let client = session.client().map_err(fail)?;
    let mut read = Vec::with_capacity(line.entries.len());
    for entries in line.entries.chunks(CHUNK) {
        let mut reader = client.new_multi_reader();
        for entry in entries {
            reader.add_get_data(&[parent, "/", &entry.name].concat()).map_err(fail)?;
        }
        let results = session.ask(reader.commit()).await.map_err(fail)?;
        for (entry, result) in entries.iter().zip(results) {
            match result {
                zk::MultiReadResult::Data { data, stat } => {
                    read.push(Read { entry: entry.clone(), data, stat })
                }
                zk::MultiReadResult::Error { err: zk::Error::NoNode } => {}
                zk::MultiReadResult::Error { err } => return Err(fail(err)),
                other => {
                    return Err(fail(zk::Error::UnexpectedError(format!("{other:?} for a node's data"))));
                }
            }
        }
    }
    read.sort_by_key(|read| read.stat.czxid);
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(modes: &str) -> Line {
        let child = |(i, mode): (usize, &str)| {
            let holder = HolderId::from_u128(i as u128);
            format!("{}{i:010}", &crate::keys::stem("", holder, mode.parse().unwrap())[1..])
        };
        Line::of("/n", modes.split(' ').enumerate().map(child).collect(), 0).unwrap()
    }

    fn ahead_of_last(modes: &str) -> Option<usize> {
        let line = line(modes);
        match line.stand(&line.entries.last().unwrap().name).unwrap() {
            Stand::Held { .. } => None,
            Stand::Waits(Ahead::Entry(name)) => line.entries.iter().position(|entry| entry.name == name),
            Stand::Waits(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_waiter_watches_the_last_that_blocks_it() {
        assert_eq!(ahead_of_last("x"), None);
        assert_eq!(ahead_of_last("s s"), None);
        assert_eq!(ahead_of_last("x x"), Some(0));
        assert_eq!(ahead_of_last("x x x"), Some(1));
        assert_eq!(ahead_of_last("x s s"), Some(0));
        assert_eq!(ahead_of_last("x x s s"), Some(1));
        assert_eq!(ahead_of_last("s s x"), Some(1));
        assert_eq!(ahead_of_last("s x s"), Some(1));
        assert_eq!(ahead_of_last("x p2 p2"), Some(0));
        assert_eq!(ahead_of_last("s x p2 p2 p2"), Some(1));
    }

    #[test]
    fn only_the_first_waiting_permit_watches_all_holders() {
        let line = line("p2 p2 p2 p2 p2");
        let stands: Vec<_> = line.entries.iter().map(|entry| line.stand(&entry.name).unwrap()).collect();
        assert_eq!(stands[1], Stand::Held { followed: true });
        assert_eq!(stands[2], Stand::Waits(Ahead::Holders));
        assert_eq!(stands[3], Stand::Waits(Ahead::Permit(line.entries[2].name.clone())));
        assert_eq!(stands[4], Stand::Waits(Ahead::Permit(line.entries[3].name.clone())));
        assert_eq!(line.stand("x"), None);
    }

    #[test]
    fn a_worn_counter_does_not_tell_the_order() {
        assert!(line("x x").is_ordered());
        for worn in ["2147483647", "-2147483648", "-000000001"] {
            let children = vec!["a-lock-0000000005".into(), format!("b-lock-{worn}")];
            assert!(!Line::of("/n", children, 0).unwrap().is_ordered());
        }
    }

    #[test]
    fn a_try_passes_nobody() {
        let shared = Mode::Shared;
        assert!(Line::default().admits(shared));
        assert!(line("s").admits(shared));
        assert!(!line("s x").admits(shared));
        assert!(!line("s").admits(Mode::Exclusive));
        assert!(!line("p1").admits(Mode::permit(1).unwrap()));
        assert!(line("p2").admits(Mode::permit(2).unwrap()));
    }

    #[test]
    fn what_is_no_entry_is_named() {
        let error = Line::of("/n", vec!["a-lock-0000000005".into(), "x".into()], 0).unwrap_err();
        assert!(error.to_string().contains("/n has a child \"x\""), "{error}");
    }
}
