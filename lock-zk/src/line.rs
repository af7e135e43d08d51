//! The line of a name as one listing of its children tells it: who holds, and what a waiter watches.

use std::collections::HashMap;

use onelock_core::{HolderId, Mode};

use crate::follow::MOST;
use crate::layout::Node;

/// From here on the server's counter is near its end, or past it, and no longer tells the order.
const WORN: i64 = i32::MAX as i64 - 100_000;

/// The entries of a name, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    nodes: Vec<Node>,
    changed: i64,
}

/// What a waiter watches: the one node whose change may promote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// The last entry ahead that is not compatible: nothing can happen before it goes. `sure` when its going promotes;
    /// `few` when those ahead are few enough to follow them all.
    Gone { node: String, sure: bool, few: bool },
    /// The permit just ahead, which waits as well: when it goes, or marks that it was promoted, this one is the first.
    Mark { node: String },
    /// Any of the holders: the first permit that waits.
    Children,
}

/// How an entry stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stand {
    /// It holds. `followed` when a permit of its kind waits behind it.
    Held {
        followed: bool,
    },
    Waits(Watch),
}

impl Line {
    /// Reads the children of a name.
    ///
    /// # Errors
    /// The first child that is no entry.
    pub(crate) fn read(children: Vec<String>) -> Result<Self, String> {
        let mut nodes = Vec::with_capacity(children.len());
        for child in children {
            match Node::read(&child) {
                Some(node) => nodes.push(node),
                None => return Err(child),
            }
        }
        nodes.sort_by(|a, b| a.sequence.cmp(&b.sequence).then_with(|| a.name.cmp(&b.name)));
        Ok(Self { nodes, changed: 0 })
    }

    /// Notes the transaction that was the last to add or remove a node.
    pub(crate) fn changed_at(mut self, zxid: i64) -> Self {
        self.changed = zxid;
        self
    }

    /// The transaction that was the last to add or remove a node; 0 when it is not known.
    pub(crate) fn changed(&self) -> i64 {
        self.changed
    }

    /// Whether the sequences tell the order. Past 2^31 - 1 the counter turns negative or stands still, depending on
    /// how quickly the nodes come: then only the moment of creation does.
    pub(crate) fn is_ordered(&self) -> bool {
        self.nodes.iter().all(|node| (0..WORN).contains(&node.sequence))
    }

    /// Puts the entries in the order of their creation; those that are not known any more drop out.
    pub(crate) fn order_by(&mut self, created: &HashMap<String, i64>) {
        self.nodes.retain(|node| created.contains_key(&node.name));
        self.nodes.sort_by_key(|node| created.get(&node.name).copied());
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// How many entries hold.
    pub(crate) fn holders(&self) -> usize {
        onelock_core::mode::holders(self.nodes.iter().map(|node| node.mode))
    }

    /// Whether an entry of this mode would hold at once and pass nobody.
    pub(crate) fn admits(&self, mode: Mode) -> bool {
        self.holders() == self.nodes.len()
            && mode.fits(self.nodes.len(), self.nodes.first().map(|node| node.mode))
    }

    pub(crate) fn of(&self, holder: HolderId) -> Option<&Node> {
        self.nodes.iter().find(|node| node.holder == Some(holder))
    }

    /// The entries ahead with all of which gone this one holds; `None` for permits, which are counted.
    fn against(&self, at: usize) -> Option<impl Iterator<Item = &Node>> {
        let mode = self.nodes.get(at)?.mode;
        let beside = move |node: &&Node| mode == Mode::Shared && node.mode == Mode::Shared;
        let counted = matches!(mode, Mode::Permit(_));
        (!counted).then(|| self.nodes[..at].iter().filter(move |node| !beside(node)))
    }

    /// The names of those with all of whom gone the entry of this name holds, where they are few and need not be counted.
    pub(crate) fn ahead(&self, name: &str) -> Option<Vec<String>> {
        let at = self.nodes.iter().position(|node| node.name == name)?;
        let names: Vec<_> = self.against(at)?.take(MOST + 1).map(|node| node.name.clone()).collect();
        (names.len() <= MOST).then_some(names)
    }

    /// How the entry of this name stands; `None` when it is not in the line.
    pub(crate) fn stand(&self, name: &str) -> Option<Stand> {
        let at = self.nodes.iter().position(|node| node.name == name)?;
        let mode = self.nodes[at].mode;
        if at < self.holders() {
            let followed = self
                .nodes
                .get(at + 1)
                .is_some_and(|next| next.mode == mode && matches!(mode, Mode::Permit(_)));
            return Some(Stand::Held { followed });
        }
        let blocking = self.nodes[..at].iter().rposition(|node| node.mode != mode || mode == Mode::Exclusive);
        Some(Stand::Waits(match (blocking, mode) {
            (Some(i), _) => {
                let without = onelock_core::mode::holders(self.nodes[1..].iter().map(|node| node.mode));
                let few = self.against(at).is_some_and(|nodes| nodes.count() <= MOST);
                Watch::Gone { node: self.nodes[i].name.clone(), sure: i == 0 && at <= without, few }
            }
            (None, Mode::Permit(limit)) if at > limit.get() as usize => {
                Watch::Mark { node: self.nodes[at - 1].name.clone() }
            }
            (None, _) => Watch::Children,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(modes: &str) -> Line {
        let child = |(i, mode): (usize, &str)| {
            let holder = HolderId::from_u128(i as u128);
            format!("{}{i:010}", &crate::layout::stem("", holder, mode.parse().unwrap())[1..])
        };
        Line::read(modes.split(' ').enumerate().map(child).collect()).unwrap()
    }

    fn stand(modes: &str) -> Option<(usize, bool)> {
        let line = line(modes);
        let last = line.nodes.last().unwrap().name.clone();
        match line.stand(&last).unwrap() {
            Stand::Held { .. } => None,
            Stand::Waits(Watch::Gone { node, sure, .. }) => {
                Some((line.nodes.iter().position(|n| n.name == node).unwrap(), sure))
            }
            Stand::Waits(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_waiter_watches_the_last_that_blocks_it() {
        assert_eq!(stand("x"), None);
        assert_eq!(stand("s s"), None);
        assert_eq!(stand("x x"), Some((0, true)));
        assert_eq!(stand("x x x"), Some((1, false)));
        assert_eq!(stand("x s s"), Some((0, true)));
        assert_eq!(stand("x x s s"), Some((1, false)));
        assert_eq!(stand("s s x"), Some((1, false)));
        assert_eq!(stand("s x s"), Some((1, false)));
        assert_eq!(stand("x p2 p2"), Some((0, true)));
        assert_eq!(stand("x p2 p2 p2"), Some((0, false)));
        assert_eq!(stand("p3 p2"), Some((0, true)));
    }

    #[test]
    fn who_must_go_before_an_entry_holds() {
        let ahead = |modes: &str| {
            let line = line(modes);
            let ahead = line.ahead(&line.nodes.last().unwrap().name);
            let at = |name: &String| line.nodes.iter().position(|node| node.name == *name).unwrap();
            ahead.map(|names| names.iter().map(at).collect::<Vec<_>>())
        };
        assert_eq!(ahead("x s x"), Some(vec![0, 1]));
        assert_eq!(ahead("x s s"), Some(vec![0]));
        assert_eq!(ahead("s x p2 s"), Some(vec![1, 2]));
        assert_eq!(ahead("x p2"), None);
        assert_eq!(ahead(&["x"; MOST + 1].join(" ")).map(|ahead| ahead.len()), Some(MOST));
        assert_eq!(ahead(&["x"; MOST + 2].join(" ")), None);
        // With the last of them gone it holds, and not before.
        for modes in ["x s x", "x s s", "s x p2 s", "x x x x"] {
            let mut line = line(modes);
            let name = line.nodes.last().unwrap().name.clone();
            for node in line.ahead(&name).unwrap().iter().rev() {
                assert!(matches!(line.stand(&name), Some(Stand::Waits(_))), "{modes}");
                line.nodes.retain(|other| other.name != *node);
            }
            assert!(matches!(line.stand(&name), Some(Stand::Held { .. })), "{modes}");
        }
    }

    #[test]
    fn only_the_first_waiting_permit_watches_all_holders() {
        let line = line("p2 p2 p2 p2 p2");
        let stands: Vec<_> = line.nodes.iter().map(|n| line.stand(&n.name).unwrap()).collect();
        assert_eq!(stands[1], Stand::Held { followed: true });
        assert_eq!(stands[2], Stand::Waits(Watch::Children));
        assert_eq!(stands[3], Stand::Waits(Watch::Mark { node: line.nodes[2].name.clone() }));
        assert_eq!(stands[4], Stand::Waits(Watch::Mark { node: line.nodes[3].name.clone() }));
        assert_eq!(line.stand("x"), None);
    }

    #[test]
    fn a_worn_counter_does_not_tell_the_order() {
        assert!(line("x x").is_ordered());
        for worn in ["2147483647", "-2147483648", "-000000001"] {
            let mut line = Line::read(vec!["a-lock-0000000005".into(), format!("b-lock-{worn}")]).unwrap();
            assert!(!line.is_ordered());
            line.order_by(&HashMap::from([
                ("b-lock-".to_owned() + worn, 1),
                ("a-lock-0000000005".into(), 2),
                ("gone".into(), 0),
            ]));
            assert!(line.nodes[0].name.starts_with('b'));
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
        assert_eq!(Line::read(vec!["a-lock-0000000005".into(), "x".into()]).unwrap_err(), "x");
    }
}
