//! The seam between the client and a store: the verbs, what a store declares, its URL and its errors.

pub mod backend;
pub mod capabilities;
mod checked;
pub mod driver;
pub(crate) mod greeting;
pub mod options;
pub mod url;

pub use checked::{Checked, undeclared};
