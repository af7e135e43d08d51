//! The scripts of a lock for who measures what the driver does without this crate. No promise is made about them.

use redis::Cmd;

use crate::scripts::{ACQUIRE, RELEASE};

/// What makes the server know them.
#[must_use]
pub fn load() -> [Cmd; 2] {
    [ACQUIRE.load(), RELEASE.load()]
}

/// Begins an acquire, as the backend does: its five keys come next.
#[must_use]
pub fn acquire() -> Cmd {
    ACQUIRE.call(5)
}

/// Begins a release, as the backend does: its four keys come next.
#[must_use]
pub fn release() -> Cmd {
    RELEASE.call(4)
}
