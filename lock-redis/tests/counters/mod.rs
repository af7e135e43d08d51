//! What stays in the store for ever.
#![allow(unreachable_pub, reason = "shared by test files")]

/// The counter of a bucket of names: `prefix:{bucket}:n`.
pub fn is_counter(key: &str) -> bool {
    let bucket = key.strip_prefix("onelock:{").and_then(|rest| rest.strip_suffix("}:n"));
    bucket.is_some_and(|bucket| bucket.parse::<u32>().is_ok())
}
