//! What more than one store needs, for those who write a store.

pub mod checks;
mod credentials;
mod given;
pub mod human_time;
pub mod in_use;
mod layer;
mod lines;
mod mutex;
pub mod options;
mod single_flight;
mod sweep;
mod unanswered;

pub use credentials::Credentials;
pub use given::Given;
pub use layer::{Layer, Layered};
pub use lines::Lines;
pub use mutex::Mutex;
#[doc(inline)]
pub use options::options;
pub use single_flight::{Flights, SingleFlight};
pub(crate) use sweep::sweep;
pub use unanswered::Unanswered;
