//! What more than one store needs, for those who write a store.

pub mod human_time;
pub mod in_use;
pub mod options;
pub mod single_flight;

#[doc(inline)]
pub use options::options;
