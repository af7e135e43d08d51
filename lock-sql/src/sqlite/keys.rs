//! How names and holders are written in the file.

use onelock_core::{HolderId, LockName, Ticket};

/// The key of an entry: the encoded name and the holder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) name: String,
    pub(super) holder: HolderId,
}

impl Key {
    pub(super) fn new(name: &LockName, holder: HolderId) -> Self {
        Self { name: name.encoded().into_owned(), holder }
    }

    /// The holder as it is stored.
    pub(super) fn blob(holder: HolderId) -> [u8; 16] {
        holder.as_u128().to_be_bytes()
    }

    /// The holder that was stored so.
    pub(super) fn holder(blob: [u8; 16]) -> HolderId {
        HolderId::from_u128(u128::from_be_bytes(blob))
    }
}

impl From<&Ticket> for Key {
    fn from(ticket: &Ticket) -> Self {
        Self::new(&ticket.name, ticket.holder)
    }
}

/// The first encoded name with this prefix, and the end of all of them.
pub(super) fn range(prefix: &str) -> (String, String) {
    let first = onelock_core::name::encode(prefix).into_owned();
    // Encoded names are of ASCII below 0x7F.
    let end = format!("{first}\u{7F}");
    (first, end)
}
