//! What a service needs around a lock, built over [`Locks`](crate::Locks) alone: it works on every store.

pub mod blocking;
pub mod election;
pub mod fence;
pub mod health;
pub mod risk;
pub mod sets;
