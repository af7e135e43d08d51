//! Who is called with events, as the settings of a client say.

use std::sync::Arc;

use super::event::Event;
use crate::toolkit::Given;

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
    /// Called in the task that the event happens in, with no lock of the library held: it must not block. A panic of it ends nothing
    /// but this call.
    fn on_event(&self, event: &Event<'_>);
}

pub(super) type Group = Given<Box<dyn Fn(&str) -> String + Send + Sync>>;

/// Who observes, as the settings say.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Wanted {
    pub(super) observer: Option<Given<Arc<dyn Observer>>>,
    pub(super) group: Option<Group>,
}
