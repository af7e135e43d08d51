//! What a service needs around a lock, built over [`Locks`](crate::Locks) alone: it works on every store.

pub(crate) mod at_least;
pub mod blocking;
mod drain;
pub mod election;
pub mod fence;
#[cfg(feature = "tower")]
pub mod fence_layer;
pub mod hand_over;
pub mod health;
pub(crate) mod lazy;
pub mod observer;
pub mod progress;
pub mod risk;
pub mod sets;
pub mod testing;
