//! How names and tables are spelled in the database.

use onelock_core::LockName;

/// A name as the tables have it.
pub(super) fn key(name: &LockName) -> String {
    name.encoded().into_owned()
}

/// The rows of the counters of these keys, as in acquire.sql: a list for `IN`.
pub(super) fn buckets(keys: &[String]) -> String {
    let bucket = |key: &String| format!("CRC32(x'{}') % 1024", hex::encode(key));
    keys.iter().map(bucket).collect::<Vec<_>>().join(",")
}
