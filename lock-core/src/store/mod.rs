#![doc = include_str!("tutorial.md")]

pub mod backend;
pub mod capabilities;
mod checked;
pub mod driver;
pub(crate) mod greeting;
pub mod options;
pub mod url;

pub use checked::{Checked, undeclared};
