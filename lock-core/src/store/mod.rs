#![doc = include_str!("tutorial.md")]

pub mod backend;
pub mod capabilities;
mod checked;
pub mod driver;
pub(crate) mod greeting;
pub mod options;
pub mod url;

pub use backend::{
    Backend, Busy, Grant, Info, Note, Place, Raise, Release, Renewal, Renewed, Request, Standing, Ticket,
    Wake,
};
pub use capabilities::Capabilities;
pub use checked::{Checked, undeclared};
pub use driver::{Context, Driver, Opening, opening};
