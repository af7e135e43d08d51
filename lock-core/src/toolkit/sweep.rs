//! Maps whose entries end without being removed.

use std::collections::HashMap;
use std::hash::Hash;

/// Removes the entries that have ended when the map is full, and reserves room for as many as live. So the map holds about twice as
/// many entries as live, and keeps those that have ended until it is full again.
pub(crate) fn sweep<K: Eq + Hash, V>(map: &mut HashMap<K, V>, mut lives: impl FnMut(&V) -> bool) {
    if map.len() == map.capacity() {
        map.retain(|_, value| lives(value));
        map.reserve(map.len());
    }
}
