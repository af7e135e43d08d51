//! What the state of an entry is guarded and its changes are notified with. `tests/guard_races` compiles `entry` over another such module,
//! whose threads it schedules itself.

pub(super) use tokio::sync::Notify;

pub(super) use crate::toolkit::Mutex;
