//! What one client asks by, and where the server notifies it.

use std::sync::atomic::{AtomicBool, Ordering};

use onelock_core::HolderId;
use tokio::sync::Notify;

use super::pool::Pool;
use super::sql::Schema;

pub(super) struct Client {
    pub(super) pool: Pool,
    pub(super) schema: Schema,
    pub(super) channel: Channel,
}

/// The channel of this client.
pub(super) struct Channel {
    pub(super) name: String,
    /// Whether a notification was seen to come through since the listener connected.
    pub(super) listens: AtomicBool,
    /// Notified when listening was tried for the first time.
    pub(super) tried: Notify,
}

impl Channel {
    pub(super) fn new(client: HolderId) -> Self {
        let name = format!("onelock_{}", client.to_hex());
        Self { name, listens: AtomicBool::new(false), tried: Notify::new() }
    }

    /// Where the server is to notify of a promotion: nowhere while nobody listens.
    pub(super) fn address(&self) -> &str {
        if self.listens() { &self.name } else { "" }
    }

    pub(super) fn listens(&self) -> bool {
        self.listens.load(Ordering::Acquire)
    }
}
