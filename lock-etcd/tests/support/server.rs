//! An etcd server as a child process.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use etcd_client::{Client, ConnectOptions, Permission};
use lock_conformance::servers::hosts::Hosts;
use lock_conformance::servers::tls::Files;
use lock_conformance::servers::{Program, Server, data_folder, free_port};
use lock_conformance::{Stop, Verdict};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PROGRAM: Program = Program { name: "etcd", package: "etcd-server" };

/// How long a server may take to elect itself.
const START: Duration = Duration::from_secs(30);

/// One member.
#[derive(Debug)]
pub(crate) struct Member {
    folder: TempDir,
    program: Program,
    arguments: Vec<OsString>,
    host: Ipv4Addr,
    port: u16,
    metrics: u16,
    tls: bool,
    /// The password of `root`, once it is asked for.
    root: OnceLock<String>,
    server: Mutex<Option<Server>>,
}

impl Member {
    /// A server of its own.
    pub(crate) async fn single(tls: Option<&Files>) -> Verdict<Self> {
        Self::with(tls, &[]).await
    }

    /// A server of its own with more arguments.
    pub(crate) async fn with(tls: Option<&Files>, more: &[String]) -> Verdict<Self> {
        let mut tries = 0;
        loop {
            let mut member = Self::prepared("one", free_port()?, None, tls)?;
            member.arguments.extend(more.iter().map(OsString::from));
            match member.launch().await {
                Ok(()) => return Ok(member),
                // Somebody else may have taken a port meanwhile.
                Err(_) if tries < 3 => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// The members of a cluster of three.
    pub(crate) async fn three() -> Verdict<Vec<Self>> {
        let peers = [free_port()?, free_port()?, free_port()?];
        let names = ["a", "b", "c"];
        let all: Vec<_> =
            names.iter().zip(peers).map(|(name, port)| format!("{name}=http://127.0.0.1:{port}")).collect();
        let mut members = Vec::new();
        for (name, port) in names.iter().zip(peers) {
            members.push(Self::prepared(name, port, Some(&all.join(",")), None)?);
        }
        Self::all_up(members).await
    }

    /// The members of a cluster of three, each on a host of its own.
    pub(crate) async fn three_on(hosts: &Hosts) -> Verdict<Vec<Self>> {
        let peer = free_port()?;
        let all: Vec<_> =
            (0..3).map(|i| format!("{}=http://{}:{peer}", hosts.name(i), hosts.address(i))).collect();
        let mut members = Vec::new();
        for i in 0..3 {
            let (name, at) = (hosts.name(i), hosts.address(i));
            let mut member = Self::prepared_at(at, &name, peer, Some(&all.join(",")), None)?;
            let words = ["netns", "exec", &name, PROGRAM.name].map(OsString::from);
            member.arguments.splice(0..0, words);
            member.program = Program { name: "ip", package: "iproute2" };
            members.push(member);
        }
        Self::all_up(members).await
    }

    async fn all_up(members: Vec<Self>) -> Verdict<Vec<Self>> {
        for member in &members {
            member.spawn()?;
        }
        for member in &members {
            member.ready().await?;
        }
        Ok(members)
    }

    fn prepared(name: &str, peer: u16, cluster: Option<&str>, tls: Option<&Files>) -> Verdict<Self> {
        Self::prepared_at(Ipv4Addr::LOCALHOST, name, peer, cluster, tls)
    }

    fn prepared_at(
        host: Ipv4Addr,
        name: &str,
        peer: u16,
        cluster: Option<&str>,
        tls: Option<&Files>,
    ) -> Verdict<Self> {
        let folder = data_folder()?;
        let (port, metrics) = (free_port()?, free_port()?);
        let scheme = if tls.is_some() { "https" } else { "http" };
        let peer = format!("http://{host}:{peer}");
        let alone = format!("{name}={peer}");
        let mut arguments: Vec<OsString> = Vec::new();
        let mut say = |key: &str, value: &str| arguments.push(format!("--{key}={value}").into());
        say("name", name);
        say("data-dir", &folder.path().join("data").display().to_string());
        say("listen-client-urls", &format!("{scheme}://{host}:{port}"));
        let known_as = if host.is_loopback() { "localhost".to_owned() } else { host.to_string() };
        say("advertise-client-urls", &format!("{scheme}://{known_as}:{port}"));
        say("listen-peer-urls", &peer);
        say("initial-advertise-peer-urls", &peer);
        say("initial-cluster", cluster.unwrap_or(&alone));
        say("initial-cluster-state", "new");
        say("listen-metrics-urls", &format!("http://{host}:{metrics}"));
        // The gateway would be a client of its own.
        say("enable-grpc-gateway", "false");
        say("heartbeat-interval", "50");
        say("election-timeout", "500");
        say("logger", "zap");
        say("log-level", "error");
        // The least there is: these passwords are no secrets.
        say("bcrypt-cost", "4");
        if let Some(files) = tls {
            say("cert-file", &files.certificate.display().to_string());
            say("key-file", &files.key.display().to_string());
        }
        Ok(Self {
            folder,
            program: PROGRAM,
            arguments,
            host,
            port,
            metrics,
            tls: tls.is_some(),
            root: OnceLock::new(),
            server: Mutex::new(None),
        })
    }

    fn spawn(&self) -> Verdict {
        let log = self.log();
        let server = Server::start(self.program, self.arguments.clone(), &log)?;
        *self.lock() = Some(server);
        Ok(())
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.path().join("server.log")
    }

    async fn launch(&self) -> Verdict {
        self.spawn()?;
        self.ready().await
    }

    /// Waits until it has a leader and serves.
    pub(crate) async fn ready(&self) -> Verdict {
        let end = Instant::now() + START;
        loop {
            if let Some(server) = self.lock().as_mut() {
                server.check()?;
            }
            match self.get("/health").await {
                Ok(answer) if answer.contains("\"true\"") => return Ok(()),
                _ if Instant::now() > end => {
                    return Err(Stop::failed(format!("etcd was not ready within {START:?}")));
                }
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    async fn get(&self, path: &str) -> Verdict<String> {
        let mut stream = TcpStream::connect((self.host, self.metrics)).await?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    /// What it counts, by the name of the counter and its labels.
    pub(crate) async fn metrics(&self) -> Verdict<Vec<(String, f64)>> {
        let text = self.get("/metrics").await?;
        let read = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Ok(text.lines().filter(|line| !line.starts_with('#')).filter_map(read).collect())
    }

    /// How many messages of clients it has received, streams included, by method.
    pub(crate) async fn received(&self) -> Verdict<Vec<(String, u64)>> {
        let method = |name: &str| {
            let rest = name.strip_prefix("grpc_server_msg_received_total{")?;
            Some(rest.split("grpc_method=\"").nth(1)?.split('"').next()?.to_owned())
        };
        let mut counts = BTreeMap::new();
        for (name, value) in self.metrics().await? {
            if let Some(method) = method(&name) {
                // Two services may have a method of one name.
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a counter")]
                let value = value as u64;
                *counts.entry(method).or_default() += value;
            }
        }
        Ok(counts.into_iter().collect())
    }

    /// How many connections clients have open.
    pub(crate) fn connections(&self) -> Verdict<u64> {
        let table = std::fs::read_to_string("/proc/net/tcp")?;
        let here = format!("0100007F:{:04X}", self.port);
        let open = |line: &&str| {
            let mut words = line.split_whitespace().skip(1);
            words.next() == Some(&here) && words.nth(1) == Some("01")
        };
        Ok(table.lines().filter(open).count() as u64)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (self.host, self.port).into()
    }

    pub(crate) fn url(&self) -> String {
        format!("etcd://{}", self.address())
    }

    /// Kills it.
    pub(crate) fn kill(&self) -> Verdict {
        match self.lock().take() {
            Some(mut server) => server.kill(),
            None => Ok(()),
        }
    }

    /// Kills it if it runs, and starts it on the same data and ports.
    pub(crate) async fn restart(&self) -> Verdict {
        self.kill()?;
        self.launch().await
    }

    /// Stops it where it is, or lets it go on; returns when it has come to a stand.
    pub(crate) async fn pause(&self, stopped: bool) -> Verdict {
        let id = match &*self.lock() {
            Some(server) => {
                server.signal(if stopped { Signal::STOP } else { Signal::CONT })?;
                server.id()
            }
            None => return Err(Stop::failed("the member does not run")),
        };
        // Its threads stop one by one, and until then it may still answer.
        while stopped && !stands(id)? {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// A client that is not ours, and may do everything.
    pub(crate) async fn admin(&self) -> Verdict<Client> {
        let root = self.root.get().map(|password| ConnectOptions::new().with_user("root", password));
        Ok(Client::connect([self.address().to_string()], root).await?)
    }

    /// Asks for passwords from now on: of `root`, and of these users, each with one right at most.
    pub(crate) async fn with_users(&self, password: &str, users: &[(&str, Option<Permission>)]) -> Verdict {
        let mut auth = self.admin().await?.auth_client();
        auth.user_add("root", password, None).await?;
        auth.role_add("root").await?;
        auth.user_grant_role("root", "root").await?;
        for (user, right) in users {
            auth.user_add(*user, password, None).await?;
            auth.role_add(*user).await?;
            if let Some(right) = right {
                auth.role_grant_permission(*user, right.clone()).await?;
            }
            auth.user_grant_role(*user, *user).await?;
        }
        auth.auth_enable().await?;
        self.root.set(password.to_owned()).map_err(|_| Stop::failed("it asks for passwords already"))
    }

    /// The same, with the one user `app` who has the right that locks need.
    pub(crate) async fn with_a_user(&self, password: &str) -> Verdict {
        self.with_users(password, &[("app", Some(Permission::read_write("onelock/").with_prefix()))]).await
    }

    fn lock(&self) -> MutexGuard<'_, Option<Server>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn stands(id: u32) -> Verdict<bool> {
    for thread in std::fs::read_dir(format!("/proc/{id}/task"))? {
        let state = std::fs::read_to_string(thread?.path().join("stat"))?;
        // The state follows the name, which is in brackets.
        if !state.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')) {
            return Ok(false);
        }
    }
    Ok(true)
}
