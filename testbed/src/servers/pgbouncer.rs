//! A pooler in front of a PostgreSQL server.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::postgres::{USER, shared_folder, text};
use super::postgres_wire::Wire;
use super::{Place, Program, Server, as_user, free_port};
use crate::verdict::{Stop, Verdict};

/// A running pooler in front of one server; it asks for no passwords.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    _server: Server,
    _folder: TempDir,
}

impl PgBouncer {
    /// Starts one in this pool mode with further settings and waits until it answers.
    ///
    /// # Errors
    /// When it is not installed, or does not come up.
    pub async fn start(server: u16, mode: &str, settings: &[&str]) -> Verdict<Self> {
        let (folder, port) = (shared_folder(Place::Memory)?, free_port()?);
        let path = folder.path().display();
        let users: String = ["postgres", "app"].map(|user| format!("\"{user}\" \"\"\n")).concat();
        std::fs::write(folder.path().join("users"), users)?;
        let file = folder.path().join("pgbouncer.ini");
        // A server that restarts is asked for again soon; else as a pooler is set up by default.
        let mut lines = format!(
            "[databases]\n* = host=127.0.0.1 port={server}\n[pgbouncer]\nlisten_addr=127.0.0.1\n\
             listen_port={port}\nunix_socket_dir=\nauth_type=trust\nauth_file={path}/users\npool_mode={mode}\n\
             max_client_conn=1000\nserver_login_retry=1\n"
        );
        for setting in settings {
            lines.push_str(setting);
            lines.push('\n');
        }
        std::fs::write(&file, lines)?;
        // As with the server: the user is changed before the parent-death signal is asked for.
        let mut words = as_user(USER)?;
        words.extend(["setpriv", "--pdeathsig", "KILL", "--"].map(OsString::from));
        words.extend(["/usr/sbin/pgbouncer", text(&file)?].map(OsString::from));
        if !std::path::Path::new("/usr/sbin/pgbouncer").is_file() {
            return Err(Stop::failed("the suite needs the program `pgbouncer`: apt-get install pgbouncer"));
        }
        let program = Program { name: "setpriv", package: "util-linux" };
        let mut process = Server::start(program, words, &folder.path().join("log"))?;
        let end = Instant::now() + Duration::from_secs(30);
        while Wire::connect(port, "postgres", "pgbouncer-probe").await.is_err() {
            process.check()?;
            if Instant::now() > end {
                return Err(Stop::failed("pgbouncer did not answer"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(Self { port, _server: process, _folder: folder })
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's URL by way of it, for a user.
    #[must_use]
    pub fn url(&self, user: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/postgres", self.port)
    }
}
