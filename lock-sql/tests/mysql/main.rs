//! The store on a real MariaDB server.

#[path = "../mysql_server/mod.rs"]
mod mysql_server;
mod support;

mod against_the_line;
mod cost;
mod faults;
mod numbers;
mod server;
