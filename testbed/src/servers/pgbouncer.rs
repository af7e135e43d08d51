//! A pooler in front of a PostgreSQL server.

use super::postgres::{USER, say, shared};
use super::process::Process;
use super::{Place, as_user, free_port};
use crate::verdict::Verdict;

/// A running pooler in front of one server; it asks for no passwords.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    _process: Process,
}

impl PgBouncer {
    /// Starts one in this pool mode with further settings and waits until it answers.
    ///
    /// # Errors
    /// When it is not installed, or does not come up.
    pub async fn start(server: u16, mode: &str, settings: &[&str]) -> Verdict<Self> {
        let (process, port) = (shared(Place::Memory)?, free_port()?);
        let folder = process.folder();
        let path = folder.display();
        let users: String = ["postgres", "app"].map(|user| format!("\"{user}\" \"\"\n")).concat();
        std::fs::write(folder.join("users"), users)?;
        let file = folder.join("pgbouncer.ini");
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
        process.start(as_user(USER), "pgbouncer", vec![file.into()])?;
        process.until(|| async { say(port, "").await.is_ok() }).await?;
        Ok(Self { port, _process: process })
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
