//! Servers of MariaDB; or of MySQL, with `ONELOCK_MYSQLD` set to the path of its `mysqld`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::{Signal, geteuid};
use tempfile::TempDir;

use super::process::{Process, until};
use super::{Once, Place, data_folder, free_port, printed, run, tls};
use crate::ensure;
use crate::verdict::{Context as _, Verdict};

/// The server program of MySQL to use, if any.
#[must_use]
pub fn mysqld() -> Option<&'static str> {
    static PATH: OnceLock<Option<String>> = OnceLock::new();
    PATH.get_or_init(|| std::env::var("ONELOCK_MYSQLD").ok()).as_deref()
}

/// The log of InnoDB, small, because every server gets a copy.
fn log_size() -> &'static str {
    if mysqld().is_some() { "--innodb-redo-log-capacity=16M" } else { "--innodb-log-file-size=8M" }
}

/// MySQL makes root for the socket only.
const INIT: &str = "CREATE USER IF NOT EXISTS root@'127.0.0.1';\n\
                    GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n";

/// A running server with a database `locks` and a user `root` without a password.
#[derive(Debug)]
pub struct MariaDb {
    port: u16,
    settings: Vec<String>,
    /// Its process.
    pub process: Process,
}

/// Dropping root's rights would also drop the parent-death signal, so a server of root stays one of root.
fn as_root() -> Option<&'static str> {
    geteuid().is_root().then_some("--user=root")
}

fn option(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(format!("--{name}="));
    option.push(path);
    option
}

/// The system tables; the servers get copies.
static TEMPLATE: Once<TempDir> = Once::new(|| {
    let folder = data_folder()?;
    let (program, options) = match mysqld() {
        Some(path) => (path, ["--initialize-insecure", "--skip-log-bin"]),
        None => ("mariadb-install-db", ["--auth-root-authentication-method=normal", "--skip-test-db"]),
    };
    let mut install = Command::new(program);
    install
        .arg("--no-defaults")
        .args(as_root())
        .arg(option("datadir", &folder.path().join("data")))
        .args(options)
        .arg(log_size())
        // Servers that share a folder for temporary tables remove each other's: this one, too.
        .env("TMPDIR", folder.path());
    run(&mut install).context("apt-get install mariadb-server")?;
    Ok(folder)
});

impl MariaDb {
    /// Starts one with further settings and waits until it answers.
    ///
    /// # Errors
    /// When it is not installed, or does not come up.
    pub async fn start(settings: &[&str]) -> Verdict<Self> {
        Self::start_in(Place::Memory, settings).await
    }

    /// The same with its data in this place.
    ///
    /// # Errors
    /// When it is not installed, or does not come up.
    pub async fn start_in(place: Place, settings: &[&str]) -> Verdict<Self> {
        let process = Process::new(place, "data")?;
        let template = TEMPLATE.as_ref().map_err(Clone::clone)?.path().join("data");
        run(Command::new("cp").arg("-r").args([template, process.data()]))?;
        let settings = settings.iter().map(|&setting| setting.to_owned()).collect();
        let server = Self { port: free_port()?, settings, process };
        server.launch().await?;
        server.say("CREATE DATABASE locks").await?;
        Ok(server)
    }

    /// Starts one that speaks TLS with this certificate.
    ///
    /// # Errors
    /// When it is not installed, or does not come up.
    pub async fn start_with_tls(files: &tls::Files) -> Verdict<Self> {
        let settings = [
            format!("--ssl-ca={}", files.authority.display()),
            format!("--ssl-cert={}", files.certificate.display()),
            format!("--ssl-key={}", files.key.display()),
        ];
        Self::start(&settings.each_ref().map(String::as_str)).await
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its Unix socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.process.data().join("socket")
    }

    /// Its URL, for a user with all rights.
    #[must_use]
    pub fn url(&self) -> String {
        format!("mysql://root@127.0.0.1:{}/locks", self.port)
    }

    /// Runs a statement by the server's own client; the rows in lines, their values between tabs.
    ///
    /// # Errors
    /// When it does not answer, or with what it says.
    pub async fn say(&self, sql: &str) -> Verdict<String> {
        let mut client = tokio::process::Command::new("mariadb");
        let port = format!("--port={}", self.port);
        let at = ["--no-defaults", "--host=127.0.0.1", &port, "--user=root", "--skip-ssl"];
        printed(client.args(at).args(["--skip-column-names", "--batch", "--execute", sql])).await
    }

    /// Kills it and starts it again on the same port and data.
    ///
    /// # Errors
    /// When it does not come back.
    pub async fn restart(&self) -> Verdict {
        self.process.kill()?;
        self.launch().await
    }

    /// Ends it by this signal, waits until it is gone, and starts it again on the same port and data.
    ///
    /// # Errors
    /// When it does not come back.
    pub async fn restart_after(&self, signal: Signal) -> Verdict {
        self.process.signal(signal)?;
        until("the end of a server", || async {
            ensure!(self.process.check().is_err(), "it runs");
            Ok(())
        })
        .await?;
        self.launch().await
    }

    async fn launch(&self) -> Verdict {
        let data = self.process.data();
        let mut arguments = vec![OsString::from("--no-defaults")];
        arguments.extend(as_root().map(OsString::from));
        arguments.extend([
            option("datadir", &data),
            // Servers that share a folder for temporary tables remove each other's.
            option("tmpdir", &data),
            option("socket", &data.join("socket")),
            option("pid-file", &data.join("pid")),
            format!("--port={}", self.port).into(),
            log_size().into(),
        ]);
        if mysqld().is_some() {
            let init = self.process.folder().join("init.sql");
            std::fs::write(&init, INIT)?;
            arguments.extend([option("init-file", &init), "--mysqlx=OFF".into()]);
        }
        let common = [
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--skip-log-bin",
            "--performance-schema=OFF",
            "--innodb-buffer-pool-size=64M",
            "--innodb-temp-data-file-path=ibtmp1:12M:autoextend",
            "--max-connections=400",
            // A killed server is started again at once.
            "--innodb-flush-log-at-trx-commit=1",
        ];
        arguments.extend(common.map(OsString::from));
        arguments.extend(self.settings.iter().map(OsString::from));
        self.process.start(Vec::new(), mysqld().unwrap_or("mariadbd"), arguments)?;
        self.process.until(|| async { self.say("DO 0").await.is_ok() }).await
    }
}
