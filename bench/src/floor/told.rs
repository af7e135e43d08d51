//! Who waits for what a store tells.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The holders that a client's channel may name.
#[derive(Default)]
pub(super) struct Told(Mutex<HashMap<String, oneshot::Sender<()>>>);

impl Told {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, oneshot::Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before the request that may make it wait is sent: the message can be faster than the answer.
    pub(super) fn expect(&self, holder: &str) -> oneshot::Receiver<()> {
        let (tell, told) = oneshot::channel();
        self.lock().insert(holder.to_owned(), tell);
        told
    }

    /// It holds.
    pub(super) fn tell(&self, holder: &str) {
        if let Some(tell) = self.lock().remove(holder) {
            // Who was not made to wait does not listen.
            let _ = tell.send(());
        }
    }

    #[cfg(feature = "postgres")]
    pub(super) fn forget(&self, holder: &str) {
        self.lock().remove(holder);
    }
}
