//! What changes a store by a person's word.

pub(crate) mod evict;
pub(crate) mod gates;
