//! The seam between the client and a store: the verbs, what a store declares, its URL and its errors.

pub mod backend;
pub mod capabilities;
pub mod driver;
pub mod options;
pub mod url;
