//! The cases, one module per theme.

use crate::case::Case;

mod leases;
mod numbers;
mod order;
mod verbs;

/// The tables of all modules.
pub const ALL: &[&[Case]] = &[verbs::TABLE, order::TABLE, numbers::TABLE, leases::TABLE];
