//! What a lock is: pure types and rules, without I/O.

pub mod clock;
pub mod holder;
pub mod lease;
pub mod line;
pub mod mode;
pub mod name;
pub mod snapshot;
pub mod token;
