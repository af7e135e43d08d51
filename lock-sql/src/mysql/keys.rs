//! How names and tables are spelled in the database.

use onelock_core::LockName;
use onelock_core::name::encode;

/// The tables, without the prefix.
pub(super) const TABLES: [&str; 3] = ["counter", "line", "store"];

/// A name as the tables have it.
pub(super) fn key(name: &LockName) -> String {
    name.encoded().into_owned()
}

/// The name that the tables have so.
pub(super) fn name(key: &str) -> Option<LockName> {
    LockName::decode(key)
}

/// The keys of the names that begin with `prefix`: from the first to below the second.
pub(super) fn range(prefix: &str) -> (String, String) {
    let from = encode(prefix).into_owned();
    // Keys are ASCII without this character.
    let until = format!("{from}\u{7f}");
    (from, until)
}

/// The rows of the counters of these keys, as in acquire.sql: a list for `IN`.
pub(super) fn buckets(keys: &[&str]) -> String {
    let bucket = |key: &&str| format!("CRC32(x'{}') % 1024", hex::encode(key));
    keys.iter().map(bucket).collect::<Vec<_>>().join(",")
}
