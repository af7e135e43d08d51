//! A resource that checks fencing tokens, with a twin that does not.
//!
//! Each write replaces the whole list by the one that was read with an item added, as somebody would who trusts the
//! lock. A list is a chain of nodes, so that neither reading nor writing copies it.

use std::collections::HashSet;

use onelock_core::toolkit::Mutex;

/// The resource and its twin: a list each.
#[derive(Debug, Default)]
pub struct Fenced(Mutex<Lists>);

#[derive(Debug, Default)]
struct Lists {
    largest: i64,
    /// Each an item and the node before it; node 0 is the empty list.
    nodes: Vec<(u64, usize)>,
    fenced: usize,
    unfenced: usize,
    refused: u64,
}

impl Lists {
    fn push(&mut self, item: u64, after: usize) -> usize {
        self.nodes.push((item, after));
        self.nodes.len()
    }

    fn items(&self, mut node: usize) -> HashSet<u64> {
        let mut items = HashSet::new();
        while let Some((item, before)) = node.checked_sub(1).and_then(|i| self.nodes.get(i)) {
            items.insert(*item);
            node = *before;
        }
        items
    }
}

impl Fenced {
    /// Both lists as they are. Reading shows the token, too: else a late write could slip in between another's read and
    /// its first write.
    pub fn read(&self, token: i64) -> (usize, usize) {
        let mut lists = self.0.lock();
        lists.largest = lists.largest.max(token);
        (lists.fenced, lists.unfenced)
    }

    /// Writes back both lists as they were read, with one item more; whether the one that checks tokens took it.
    pub fn write(&self, token: i64, item: u64, read: (usize, usize)) -> bool {
        let mut lists = self.0.lock();
        lists.unfenced = lists.push(item, read.1);
        if token < lists.largest {
            lists.refused += 1;
            return false;
        }
        lists.largest = token;
        lists.fenced = lists.push(item, read.0);
        true
    }

    /// How many writes were refused so far.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.0.lock().refused
    }

    /// The items in the list that checks tokens, and those in its twin.
    #[must_use]
    pub fn contents(&self) -> (HashSet<u64>, HashSet<u64>) {
        let lists = self.0.lock();
        (lists.items(lists.fenced), lists.items(lists.unfenced))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fenced_resource_refuses_what_is_late() {
        let resource = Fenced::default();
        let empty = resource.read(2);
        assert!(resource.write(2, 1, empty));
        let read = resource.read(2);
        assert!(resource.write(2, 2, read));
        assert!(!resource.write(1, 3, empty));
        assert_eq!(resource.contents(), ([1, 2].into(), [3].into()));
        resource.read(5);
        assert!(!resource.write(4, 4, empty), "a read shows its token, too");
        assert_eq!((resource.contents().0, resource.refused()), ([1, 2].into(), 2));
    }
}
