//! A pooler in front of a PostgreSQL server.

use onelock_conformance::Verdict;
use onelock_conformance::servers::postgres::{USER, say, shared};
use onelock_conformance::servers::process::Process;
use onelock_conformance::servers::{Place, as_user, free_port};

/// A running pooler in front of one server; it asks for no passwords.
#[derive(Debug)]
pub(crate) struct PgBouncer {
    port: u16,
    _process: Process,
}

impl PgBouncer {
    /// Starts one in this pool mode with further settings and waits until it answers.
    ///
    /// # Errors
    /// When it is not installed, or does not come up.
    pub(crate) async fn start(server: u16, mode: &str, settings: &[&str]) -> Verdict<Self> {
        let (process, port) = (shared(Place::Memory)?, free_port()?);
        let folder = process.folder();
        let path = folder.display();
        let users: String = ["postgres", "app"].map(|user| format!("\"{user}\" \"\"\n")).concat();
        std::fs::write(folder.join("users"), users)?;
        let file = folder.join("pgbouncer.ini");
        // A server that restarts is asked for again soon; else as a pooler is set up by default.
        let lines = format!(
            "[databases]\n* = host=127.0.0.1 port={server}\n[pgbouncer]\nlisten_addr=127.0.0.1\n\
             listen_port={port}\nunix_socket_dir=\nauth_type=trust\nauth_file={path}/users\npool_mode={mode}\n\
             max_client_conn=1000\nserver_login_retry=1\n"
        );
        std::fs::write(&file, lines + &settings.join("\n"))?;
        process.start(as_user(USER), "pgbouncer", vec![file.into()])?;
        process.until(|| async { say(port, "").await.is_ok() }).await?;
        Ok(Self { port, _process: process })
    }

    /// Where it listens.
    #[must_use]
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The server's URL by way of it, for a user.
    #[must_use]
    pub(crate) fn url(&self, user: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/postgres", self.port)
    }
}
