//! Servers of PostgreSQL.

use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::process::{Process, until};
use super::{Once, Place, as_user, data_folder, free_port, pause_process, printed, run, tls};
use crate::verdict::{Context as _, Verdict};

/// Who runs it when root starts it.
pub const USER: &str = "postgres";

/// A running server. User `postgres` needs no password on it, user `secret` needs one.
#[derive(Debug)]
pub struct PostgresServer {
    port: u16,
    settings: Vec<String>,
    /// Its process.
    pub process: Process,
}

/// Where Debian puts the programs of the newest version there is.
fn programs() -> Verdict<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").context("apt-get install postgresql")?;
    let mut folders: Vec<_> = versions.filter_map(|v| Some(v.ok()?.path().join("bin"))).collect();
    folders.sort();
    folders.pop().context("apt-get install postgresql")
}

/// A program that the server's user runs.
fn by_user(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(as_user(USER)).arg(program);
    command
}

/// A process to be, in a folder that the server's user may use.
///
/// # Errors
/// When there is no folder.
pub fn shared(place: Place) -> Verdict<Process> {
    let process = Process::new(place, "data")?;
    share(process.folder())?;
    Ok(process)
}

fn share(folder: &Path) -> Verdict {
    Ok(std::fs::set_permissions(folder, Permissions::from_mode(0o777))?)
}

/// A cluster; the servers get copies.
static TEMPLATE: Once<TempDir> = Once::new(|| {
    let folder = data_folder()?;
    share(folder.path())?;
    let options = ["-U", "postgres", "--auth=trust", "-E", "UTF8", "--locale=C", "--no-sync", "-D"];
    run(by_user(programs()?.join("initdb")).args(options).arg(folder.path().join("data")))?;
    Ok(folder)
});

/// Runs a statement on a server or a pooler, by the server's own client; the rows in lines, without their heads.
///
/// # Errors
/// When it does not answer, or with what it says.
pub async fn say(port: u16, sql: &str) -> Verdict<String> {
    let mut client = tokio::process::Command::new(programs()?.join("psql"));
    let at = ["-X", "-At", "-h", "127.0.0.1", "-U", "postgres", "-p", &port.to_string(), "-c", sql];
    printed(client.args(at)).await
}

impl PostgresServer {
    /// Starts one with further `-c` settings and waits until it answers.
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
        let process = shared(place)?;
        let template = TEMPLATE.as_ref().map_err(Clone::clone)?.path().join("data");
        run(by_user("cp").arg("-r").args([template, process.data()]))?;
        Self::start_on(process, settings).await
    }

    /// Starts one on the data in the folder.
    async fn start_on(process: Process, settings: &[&str]) -> Verdict<Self> {
        let access = "local all all trust\nhost all secret 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n\
                      host replication all 127.0.0.1/32 trust\n";
        std::fs::write(process.folder().join("access"), access)?;
        let settings = settings.iter().map(|&setting| setting.to_owned()).collect();
        let server = Self { port: free_port()?, settings, process };
        server.launch().await?;
        Ok(server)
    }

    /// A streaming standby of this one.
    ///
    /// # Errors
    /// When it is not installed, or does not come up.
    pub async fn standby(&self) -> Verdict<Self> {
        let process = shared(Place::Memory)?;
        let port = self.port.to_string();
        let from = ["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-R", "-c", "fast", "-D"];
        run(by_user(programs()?.join("pg_basebackup")).args(from).arg(process.data()))?;
        Self::start_on(process, &[]).await
    }

    /// Starts one that speaks TLS with this certificate.
    ///
    /// # Errors
    /// When it is not installed, or does not come up.
    pub async fn start_with_tls(files: &tls::Files) -> Verdict<Self> {
        // The key must be the server user's own.
        let folder = files.key.parent().context("a folder")?;
        share(folder)?;
        std::fs::set_permissions(&files.key, Permissions::from_mode(0o644))?;
        let own = folder.join("own-key.pem");
        run(by_user("install").args(["-m", "600"]).args([&files.key, &own]))?;
        let settings = [
            "ssl=on".to_owned(),
            format!("ssl_cert_file={}", files.certificate.display()),
            format!("ssl_key_file={}", own.display()),
        ];
        Self::start(&settings.each_ref().map(String::as_str)).await
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its URL, for a user with all rights.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Runs a statement that the counts leave out; its rows in lines.
    ///
    /// # Errors
    /// When it does not answer, or with what it says.
    pub async fn say(&self, sql: &str) -> Verdict<String> {
        say(self.port, sql).await
    }

    /// Kills it and starts it again on the same data and port.
    ///
    /// # Errors
    /// When it does not come back.
    pub async fn restart(&self) -> Verdict {
        self.process.kill()?;
        self.start_again().await
    }

    /// Has it end at once, all its sessions with it, and starts it again on the same data, at this port.
    ///
    /// # Errors
    /// When it does not come back.
    pub async fn restart_at(&mut self, port: u16) -> Verdict {
        self.quit();
        self.port = port;
        self.start_again().await
    }

    /// Its immediate shutdown.
    fn quit(&self) {
        if self.process.signal(rustix::process::Signal::QUIT).is_ok() {
            let end = Instant::now() + Duration::from_secs(15);
            while self.process.check().is_ok() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    async fn start_again(&self) -> Verdict {
        // Its children end when they notice.
        let pid = self.process.data().join("postmaster.pid");
        until("the end of its children", || async {
            self.launch().await.inspect_err(|_| drop(std::fs::remove_file(&pid)))
        })
        .await
    }

    /// Stops it and its children where they are, or lets them go on.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pause(&self, stopped: bool) -> Verdict {
        let id = self.process.id()?;
        let children = || std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        // The kernel's list misses some while others end: it is whole while all stall.
        let standing = children()?;
        // First the one that makes children, and until it stands: it may be making one.
        pause_process(id, stopped)?;
        let children = if stopped { children()? } else { standing };
        for child in children.split_whitespace() {
            let child = child.parse().context("a process id")?;
            // One may have ended meanwhile.
            if let Err(failed) = pause_process(child, stopped)
                && Path::new(&format!("/proc/{child}")).exists()
            {
                return Err(failed);
            }
        }
        Ok(())
    }

    async fn launch(&self) -> Verdict {
        let hba = format!("hba_file={}/access", self.process.folder().display());
        // The log counts what clients ask for.
        let common = [
            "listen_addresses=127.0.0.1",
            "log_statement=all",
            "log_line_prefix=%a| ",
            "max_connections=300",
            &hba,
        ];
        let mut arguments: Vec<OsString> = vec!["-D".into(), self.process.data().into()];
        arguments.extend(["-p", &self.port.to_string(), "-k", ""].map(OsString::from));
        for setting in common.into_iter().chain(self.settings.iter().map(String::as_str)) {
            arguments.extend(["-c", setting].map(OsString::from));
        }
        self.process.start(as_user(USER), programs()?.join("postgres"), arguments)?;
        self.process.until(|| async { self.say("").await.is_ok() }).await
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // At once, but by its own hand: killed it would leave shared memory behind.
        self.quit();
    }
}
