//! How-to pages: what to choose, and what to write, for what a service needs of a lock.

#[doc = include_str!("../docs/guide/tutorial.md")]
pub mod tutorial {}

#[doc = include_str!("../docs/guide/ttl.md")]
pub mod ttl {}

#[doc = include_str!("../docs/guide/fencing.md")]
pub mod fencing {}

#[doc = include_str!("../docs/guide/shutdown.md")]
pub mod shutdown {}

#[doc = include_str!("../docs/guide/testing.md")]
pub mod testing {}

#[doc = include_str!("../docs/guide/several.md")]
pub mod several {}

#[doc = include_str!("../docs/guide/leaders.md")]
pub mod leaders {}

#[doc = include_str!("../docs/guide/stores.md")]
pub mod stores {}
