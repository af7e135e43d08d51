//! The line of a name as one listing of its children tells it: who holds, and what a waiter watches.

use std::sync::Arc;

use onelock_core::{Error, ErrorKind, HolderId, LockName, Mode, Result, mode};
use zookeeper_client as zk;

use crate::error::failed;
use crate::keys::{self, Child};
use crate::session::Session;
use crate::sessions::Sessions;

/// From here on the server's counter is near its end, or past it, and no longer tells the order.
const WORN: i64 = i32::MAX as i64 - 100_000;

/// The entries of a name, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    /// The node of the name.
    parent: String,
    pub(crate) entries: Vec<Child>,
    /// The transaction that was the last to add or remove an entry; 0 where the name has no node.
    pub(crate) changed: i64,
}

/// How an entry stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stand {
    Held,
    /// It waits for something without which nothing can promote it, of which this node tells: the last entry ahead that cannot hold
    /// beside it. A permit with none such ahead waits for the one just ahead, which waits as well: when that goes, or marks that it
    /// was promoted, this one is the next. The first permit that waits watches the node of the name, for any of the holders to go.
    /// Permits are counted: they also have the transaction that was the last to change the line.
    Behind {
        watched: String,
        counted: Option<i64>,
    },
}

impl Line {
    /// Reads the children of a name.
    ///
    /// # Errors
    /// [`ErrorKind::Foreign`], naming the first child that is no entry.
    pub(crate) fn of(parent: &str, children: &[String], changed: i64) -> Result<Self> {
        let read = |child: &String| {
            Child::read(parent, child).ok_or_else(|| {
                let text = format!("{parent} has a child {child:?} that is no entry of a lock");
                Error::new(ErrorKind::Foreign, text)
            })
        };
        let mut entries = children.iter().map(read).collect::<Result<Vec<_>>>()?;
        entries.sort_by(|a, b| a.sequence.cmp(&b.sequence).then_with(|| a.path.cmp(&b.path)));
        Ok(Self { parent: parent.to_owned(), entries, changed })
    }

    /// The line in the listing of a name, whatever the server's counter does.
    async fn listed(
        session: &Session,
        parent: &str,
        (children, changed): (Vec<String>, i64),
    ) -> Result<Self> {
        let mut line = Self::of(parent, &children, changed)?;
        if !line.is_ordered() {
            line.entries = line.nodes(session).await?.into_iter().map(|node| node.entry).collect();
        }
        Ok(line)
    }

    /// The line as the session sees it.
    pub(crate) async fn read(session: &Session, parent: &str) -> Result<Self> {
        Self::listed(session, parent, session.children(parent).await?).await
    }

    /// The line with everything that any server has answered.
    pub(crate) async fn latest(session: &Arc<Session>, parent: &str) -> Result<Self> {
        Self::listed(session, parent, session.latest_children(parent).await?).await
    }

    /// Whether the sequences tell the order. Past 2^31 - 1 the counter turns negative or stops, depending on
    /// how quickly the nodes come: then only the moment of creation does.
    fn is_ordered(&self) -> bool {
        self.entries.iter().all(|entry| (0..WORN).contains(&entry.sequence))
    }

    /// How many entries hold.
    pub(crate) fn holders(&self) -> usize {
        mode::holders(self.entries.iter().map(|entry| entry.mode))
    }

    /// Whether an entry of this mode would hold at once and pass nobody.
    pub(crate) fn admits(&self, mode: Mode) -> bool {
        mode::holders(self.entries.iter().map(|entry| entry.mode).chain([mode])) > self.entries.len()
    }

    /// The line of a name, whether or not this client has an entry in it, and the session that has read it.
    pub(crate) async fn of_name(sessions: &Arc<Sessions>, name: &LockName) -> Result<(Self, Arc<Session>)> {
        let desk = sessions.desk().await?;
        let line = Self::latest(&desk, &keys::parent(&sessions.servers.base, name)).await?;
        Ok((line, desk))
    }

    /// The path of a holder's entry.
    pub(crate) fn by(&self, holder: HolderId) -> Option<&str> {
        let prefix = keys::prefix(&self.parent, holder);
        self.entries.iter().map(|entry| &*entry.path).find(|path| path.starts_with(&prefix))
    }

    /// How the entry at this path stands; `None` when it is not in the line.
    pub(crate) fn stand(&self, path: &str) -> Option<Stand> {
        let at = self.entries.iter().position(|entry| entry.path == path)?;
        let (mode, holders) = (self.entries[at].mode, self.holders());
        if at < holders {
            return Some(Stand::Held);
        }
        let blocks = |entry: &&Child| !mode.shares_with(entry.mode);
        let (watched, counted) = match self.entries[..at].iter().rfind(blocks) {
            Some(entry) => (&entry.path, None),
            None if at > holders => (&self.entries[at - 1].path, Some(self.changed)),
            None => (&self.parent, Some(self.changed)),
        };
        Some(Stand::Behind { watched: watched.clone(), counted })
    }

    /// The entries with their nodes, in the order of their creation; without those that are gone.
    pub(crate) async fn nodes(&self, session: &Session) -> Result<Vec<Read>> {
        let fail = |error| failed(error, "read the entries of", &self.parent);
        let client = session.ask(session.client()).await.map_err(fail)?;
        let mut nodes = Vec::with_capacity(self.entries.len());
        for entries in self.entries.chunks(CHUNK) {
            let mut reader = client.new_multi_reader();
            for entry in entries {
                reader.add_get_data(&entry.path).map_err(fail)?;
            }
            for (entry, result) in entries.iter().zip(session.ask(reader.commit()).await.map_err(fail)?) {
                match result {
                    zk::MultiReadResult::Data { data, stat } => {
                        nodes.push(Read { entry: entry.clone(), data, stat });
                    }
                    zk::MultiReadResult::Error { err: zk::Error::NoNode } => {}
                    zk::MultiReadResult::Error { err } => return Err(failed(err, "read", &entry.path)),
                    other => {
                        return Err(fail(zk::Error::UnexpectedError(format!("{other:?} for a node's data"))));
                    }
                }
            }
        }
        nodes.sort_by_key(|node| node.stat.czxid);
        Ok(nodes)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn line(modes: &str) -> Line {
        let child = |(i, mode): (usize, &str)| {
            let holder = HolderId::from_u128(i as u128);
            format!("{}{i:010}", &crate::keys::stem("", holder, mode.parse().unwrap())[1..])
        };
        Line::of("/n", &modes.split(' ').enumerate().map(child).collect::<Vec<_>>(), 7).unwrap()
    }

    fn ahead_of_last(modes: &str) -> Option<usize> {
        let line = line(modes);
        match line.stand(&line.entries.last().unwrap().path).unwrap() {
            Stand::Held => None,
            Stand::Behind { watched, counted: None } => {
                line.entries.iter().position(|entry| entry.path == watched)
            }
            other => panic!("{other:?}"),
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
        let stands: Vec<_> = line.entries.iter().map(|entry| line.stand(&entry.path).unwrap()).collect();
        assert_eq!(stands[1], Stand::Held);
        let behind = |watched: &str| Stand::Behind { watched: watched.to_owned(), counted: Some(7) };
        assert_eq!(stands[2], behind("/n"));
        assert_eq!(stands[3], behind(&line.entries[2].path));
        assert_eq!(stands[4], behind(&line.entries[3].path));
        assert_eq!(line.stand("x"), None);
    }

    #[test]
    fn a_worn_counter_does_not_tell_the_order() {
        assert!(line("x x").is_ordered());
        for worn in ["2147483647", "-2147483648", "-000000001"] {
            let children = ["a-lock-0000000005".into(), format!("b-lock-{worn}")];
            assert!(!Line::of("/n", &children, 0).unwrap().is_ordered());
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
        let error = Line::of("/n", &["a-lock-0000000005".into(), "x".into()], 0).unwrap_err();
        assert!(error.to_string().contains("/n has a child \"x\""), "{error}");
    }
}
