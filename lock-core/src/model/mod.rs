//! What a lock is: pure types and rules, without I/O. Imports nothing of the other folders.

pub mod clock;
pub mod error;
pub mod holder;
pub mod lease;
pub mod line;
pub mod loss;
pub mod mode;
pub mod name;
pub mod request;
pub mod snapshot;
pub mod token;
