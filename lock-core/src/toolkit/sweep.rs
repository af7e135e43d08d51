//! Maps of what ends without a word.

use std::collections::HashMap;
use std::hash::Hash;

/// Forgets what has ended when the map is full, and makes room for as many again as live: so it holds about twice as many at most.
pub(crate) fn sweep<K: Eq + Hash, V>(map: &mut HashMap<K, V>, mut lives: impl FnMut(&V) -> bool) {
    if map.len() == map.capacity() {
        map.retain(|_, value| lives(value));
        map.reserve(map.len());
    }
}
