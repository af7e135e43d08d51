//! What more than one store needs, for those who write a store.

pub mod human_time;
pub mod single_flight;
