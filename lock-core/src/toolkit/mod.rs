//! What more than one store needs, for whoever writes a store.

pub mod single_flight;
