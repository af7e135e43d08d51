//! What the server says of an entry.

use onelock_core::{FencingToken, HolderId, Wake};

/// What a notification says, and a poll of one that holds; `schema/0001/3_promote.sql` and `7_evict.sql` send them. `h`, the holder and its number: it holds. `g` and the holder: it is gone.
pub(super) fn read_wake(payload: &str) -> Option<(HolderId, Wake)> {
    let (kind, rest) = payload.split_at_checked(1)?;
    let (holder, number) = rest.split_at_checked(32)?;
    let holder = HolderId::from_hex(holder)?;
    match kind {
        "h" => Some((holder, Wake::Held(FencingToken::new(number.parse().ok()?).ok()?))),
        "g" if number.is_empty() => Some((holder, Wake::Ask)),
        _ => None,
    }
}
