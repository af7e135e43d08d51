//! A redis-server.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};

use super::process::Process;
use super::resp::Resp;
use super::tls::Files;
use super::{Place, free_port};
use crate::verdict::Verdict;

/// The server's program: `ONELOCK_REDIS_SERVER`, such as `valkey-server`, or `redis-server`.
fn program() -> OsString {
    let named = std::env::var_os("ONELOCK_REDIS_SERVER").filter(|name| !name.is_empty());
    named.unwrap_or_else(|| "redis-server".into())
}

/// The folder of its append-only log.
const LOG: &str = "appendonlydir";

/// How a server is set up.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// The password of the default user.
    pub password: Option<String>,
    /// Lines of the configuration, such as `user …`.
    pub lines: Vec<String>,
    /// Speaks TLS, with this certificate.
    pub tls: Option<Files>,
    /// Is a sentinel.
    pub sentinel: bool,
    /// Where it keeps its data.
    pub place: Place,
}

/// A running server. Its data is on an append-only file, so that it comes back after [`RedisServer::restart`].
#[derive(Debug)]
pub struct RedisServer {
    setup: Setup,
    port: u16,
    /// Its process.
    pub process: Process,
}

impl RedisServer {
    /// Starts one and waits until it answers.
    ///
    /// # Errors
    /// When the program is not installed, or does not come up.
    pub async fn start(setup: Setup) -> Verdict<Self> {
        let process = Process::new(setup.place, LOG)?;
        let server = Self { setup, port: free_port()?, process };
        server.launch().await?;
        Ok(server)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Kills it and starts it again on the same port and data.
    ///
    /// # Errors
    /// When it does not come back.
    pub async fn restart(&self) -> Verdict {
        self.process.kill()?;
        self.launch().await
    }

    async fn launch(&self) -> Verdict {
        let (setup, folder, port) = (&self.setup, self.process.folder(), self.port);
        let mut lines = vec![
            "bind 127.0.0.1".to_owned(),
            format!("dir {}", folder.display()),
            "daemonize no".to_owned(),
            "save \"\"".to_owned(),
            "appendonly yes".to_owned(),
            // Else a reply goes out before the log is written, for as long as a sync of it is under way.
            "appendfsync always".to_owned(),
            "maxmemory-policy noeviction".to_owned(),
            "maxclients 5000".to_owned(),
        ];
        match &setup.tls {
            None => lines.push(format!("port {port}")),
            Some(files) => lines.extend([
                "port 0".to_owned(),
                format!("tls-port {port}"),
                "tls-auth-clients no".to_owned(),
                format!("tls-ca-cert-file {}", files.authority.display()),
                format!("tls-cert-file {}", files.certificate.display()),
                format!("tls-key-file {}", files.key.display()),
            ]),
        }
        lines.extend(setup.password.iter().map(|password| format!("requirepass {password}")));
        lines.extend(setup.lines.iter().cloned());
        let config = folder.join("redis.conf");
        std::fs::write(&config, lines.join("\n"))?;
        let mut arguments = vec![OsString::from(config)];
        if setup.sentinel {
            arguments.push("--sentinel".into());
        }
        self.process.start(Vec::new(), program(), arguments)?;
        self.process.until(|| self.answers()).await
    }

    async fn answers(&self) -> bool {
        let Ok(mut connection) = Resp::connect(self.address()).await else { return false };
        if self.setup.tls.is_some() {
            // It listens; a handshake is the driver's to make.
            return true;
        }
        match connection.call(&["PING"]).await {
            Ok(_) => true,
            // While it loads its data it answers with an error.
            Err(error) => error.to_string().contains("NOAUTH"),
        }
    }
}
