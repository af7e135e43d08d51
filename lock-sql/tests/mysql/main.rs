//! The store on a real MariaDB server.

#[path = "../mysql_server/mod.rs"]
mod mysql_server;
mod support;

mod speed;
