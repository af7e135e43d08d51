//! How names and tables are spelled in the database.

use onelock_core::LockName;

/// A name as the tables have it.
pub(super) fn key(name: &LockName) -> Vec<u8> {
    name.encoded().into_owned().into_bytes()
}

/// The rows of the counters of these keys, as in acquire.sql: a list for `IN`.
pub(super) fn buckets(keys: &[Vec<u8>]) -> String {
    let bucket = |key: &Vec<u8>| format!("CRC32(x'{}') % 1024", hex::encode(key));
    keys.iter().map(bucket).collect::<Vec<_>>().join(",")
}
