//! The cases, one module per theme.

use crate::case::Case;

mod alone;
mod believing;
mod cancelling;
mod churning;
mod cost;
mod crashing;
mod crowds;
mod cutting;
mod handing;
mod holding;
mod hostile;
mod idle;
mod leading;
mod leases;
mod looking;
mod mangling;
mod numbers;
mod order;
mod sets;
mod severing;
mod trying;
mod verbs;
mod working;

/// The tables of all modules.
pub const ALL: &[&[Case]] = &[
    verbs::TABLE,
    order::TABLE,
    numbers::TABLE,
    leases::TABLE,
    looking::TABLE,
    hostile::TABLE,
    holding::TABLE,
    believing::TABLE,
    cost::TABLE,
    idle::TABLE,
    cancelling::TABLE,
    cutting::TABLE,
    severing::TABLE,
    mangling::TABLE,
    crashing::TABLE,
    crowds::TABLE,
    churning::TABLE,
    trying::TABLE,
    working::TABLE,
    sets::TABLE,
    leading::TABLE,
    handing::TABLE,
];
