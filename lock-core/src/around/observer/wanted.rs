//! Who is called with events, as the settings of a client say.

use std::fmt;
use std::sync::Arc;

use super::event::Event;

/// Is called with what happens to the locks of a client; see [`Settings::observer`](crate::Settings::observer).
///
/// ```
/// # use std::sync::{Arc, atomic::{AtomicU32, Ordering}};
/// # use onelock::{Event, Observer};
/// #[derive(Default)]
/// struct Losses(AtomicU32);
///
/// impl Observer for Losses {
///     fn on_event(&self, event: &Event<'_>) {
///         if let Event::Ended { reason, .. } = event && reason.is_loss() {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
/// let losses = Arc::new(Losses::default());
/// let settings = onelock::Settings::default().observer(losses.clone());
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Called in the task that the event happens in, with no lock of the library held: it must neither block nor panic.
    fn on_event(&self, event: &Event<'_>);
}

pub(super) type Group = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// Who observes, as the settings say.
#[derive(Clone, Default)]
pub(crate) struct Wanted {
    pub(super) observer: Option<Arc<dyn Observer>>,
    pub(super) group: Option<Group>,
}

/// Two are the same when they are the same objects.
impl PartialEq for Wanted {
    fn eq(&self, other: &Self) -> bool {
        let pointer = |wanted: &Self| {
            let observer = wanted.observer.as_ref().map(|observer| Arc::as_ptr(observer).cast::<()>());
            (observer, wanted.group.as_ref().map(|group| Arc::as_ptr(group).cast::<()>()))
        };
        pointer(self) == pointer(other)
    }
}

impl fmt::Debug for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Wanted").field(&self.observer.is_some()).field(&self.group.is_some()).finish()
    }
}
