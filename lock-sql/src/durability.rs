//! What an answer waits for.

use serde::{Deserialize, Serialize};

/// What an answer to a join or a renewal waits for: an option of the SQL stores. What it means when the server, or the
/// host, crashes is said on the page of each store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Durability {
    /// Until what it says is on the disk.
    #[default]
    Durable,
    /// For no disk. After a crash the last entries may be forgotten while their holders still believe in them, so two may
    /// hold for a while; their tokens still tell them apart.
    Relaxed,
}
