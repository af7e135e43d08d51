//! Several redis-servers that belong together: a master with replicas and sentinels, or a cluster.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use onelock_conformance::ensure;
use onelock_conformance::servers::free_port;
use onelock_conformance::servers::redis::{RedisServer, Setup};
use onelock_conformance::servers::resp::Resp;
use onelock_conformance::verdict::Verdict;

/// The name under which sentinels watch the master.
pub const MASTER: &str = "locks";

/// How a group is set up.
#[derive(Clone, Debug)]
pub struct Plan {
    /// A cluster of three masters; else one master, which three sentinels watch.
    cluster: bool,
    /// Replicas of each master.
    pub replicas: usize,
    /// How long a server may be silent before it is replaced.
    patience: Duration,
    /// What every server that keeps data has: password, TLS, lines of the configuration.
    pub servers: Setup,
}

const SENTINELS: usize = 3;

impl Plan {
    /// A master, a replica and three sentinels.
    #[must_use]
    pub fn sentinel(patience: Duration) -> Self {
        Self { cluster: false, replicas: 1, patience, servers: Setup::default() }
    }

    /// Three masters, each with so many replicas.
    #[must_use]
    pub fn cluster(replicas: usize, patience: Duration) -> Self {
        Self { cluster: true, replicas, patience, servers: Setup::default() }
    }

    fn masters(&self) -> usize {
        if self.cluster { 3 } else { 1 }
    }
}

/// A running group.
#[derive(Debug)]
pub struct Group {
    plan: Plan,
    /// The masters as they were at the start, then the replicas of the first, of the second, and so on.
    pub servers: Vec<RedisServer>,
    /// Who watches them, unless they are a cluster.
    pub sentinels: Vec<RedisServer>,
    /// Where the servers take commands without TLS, in the same order.
    pub admin: Vec<SocketAddr>,
}

impl Group {
    /// Starts one and waits until all of it agrees.
    ///
    /// # Errors
    /// When the program is not installed, or the group does not come up.
    pub async fn start(plan: Plan) -> Verdict<Self> {
        let mut group = Self { plan, servers: Vec::new(), sentinels: Vec::new(), admin: Vec::new() };
        if group.plan.cluster {
            group.form_cluster().await?
        } else {
            group.form_watched().await?
        }
        Ok(group)
    }

    async fn server(&mut self, lines: Vec<String>) -> Verdict<SocketAddr> {
        let mut setup = self.plan.servers.clone();
        setup.lines.extend(lines);
        setup.lines.push(format!("cluster-enabled {}", if self.plan.cluster { "yes" } else { "no" }));
        setup.lines.extend(setup.password.iter().map(|password| format!("masterauth {password}")));
        let plain = if setup.tls.is_some() {
            let port = free_port()?;
            setup.lines.extend([
                format!("port {port}"),
                "tls-cluster yes".into(),
                "tls-replication yes".into(),
            ]);
            Some(SocketAddr::from(([127, 0, 0, 1], port)))
        } else {
            None
        };
        let server = RedisServer::start(setup).await?;
        let address = server.address();
        self.admin.push(plain.unwrap_or(address));
        self.servers.push(server);
        Ok(address)
    }

    async fn form_watched(&mut self) -> Verdict {
        let at_once = "repl-diskless-sync-delay 0".to_owned();
        let master = self.server(vec![at_once.clone()]).await?;
        for _ in 0..self.plan.replicas {
            let lines = vec![format!("replicaof {} {}", master.ip(), master.port()), at_once.clone()];
            self.server(lines).await?;
        }
        let quorum = SENTINELS / 2 + 1;
        for _ in 0..SENTINELS {
            let patience = self.plan.patience.as_millis();
            let mut lines = vec![
                "appendonly no".to_owned(),
                format!("sentinel monitor {MASTER} {} {} {quorum}", master.ip(), master.port()),
                format!("sentinel down-after-milliseconds {MASTER} {patience}"),
                format!("sentinel failover-timeout {MASTER} {}", patience * 3),
            ];
            let own = self.plan.servers.password.iter();
            lines.extend(own.map(|password| format!("sentinel auth-pass {MASTER} {password}")));
            let tls = self.plan.servers.tls.clone();
            if tls.is_some() {
                lines.push("tls-replication yes".to_owned());
            }
            let setup = Setup { lines, tls, sentinel: true, ..Setup::default() };
            self.sentinels.push(RedisServer::start(setup).await?);
        }
        self.serves().await
    }

    async fn form_cluster(&mut self) -> Verdict {
        let mut buses = Vec::new();
        let count = self.plan.masters() * (1 + self.plan.replicas);
        for _ in 0..count {
            let bus = free_port()?;
            let patience = self.plan.patience.as_millis();
            let lines = vec![
                format!("cluster-port {bus}"),
                format!("cluster-node-timeout {patience}"),
                "repl-diskless-sync-delay 0".to_owned(),
            ];
            buses.push((self.server(lines).await?, bus));
        }
        let share = 16384 / self.plan.masters();
        for (i, address) in self.admin.iter().enumerate() {
            self.say(*address, &["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()]).await?;
            if i < self.plan.masters() {
                let last = if i + 1 == self.plan.masters() { 16383 } else { (i + 1) * share - 1 };
                let (first, last) = ((i * share).to_string(), last.to_string());
                self.say(*address, &["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await?;
            }
        }
        for (i, address) in self.admin.iter().enumerate() {
            let (other, bus) = buses[(i + 1) % count];
            let (port, bus) = (other.port().to_string(), bus.to_string());
            self.say(*address, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await?;
        }
        until("all nodes know each other", || async {
            for address in &self.admin {
                let nodes = self.say(*address, &["CLUSTER", "NODES"]).await?.concat();
                let known =
                    nodes.lines().filter(|line| line.contains(" connected") && !line.contains("handshake"));
                ensure!(known.count() >= count, "{address} knows only: {nodes}");
            }
            Ok(())
        })
        .await?;
        for i in self.plan.masters()..count {
            let master = (i - self.plan.masters()) / self.plan.replicas;
            let id = self.say(self.admin[master], &["CLUSTER", "MYID"]).await?.concat();
            self.say(self.admin[i], &["CLUSTER", "REPLICATE", &id]).await?;
        }
        self.serves().await
    }

    /// Waits until every node of a cluster serves, and every replica is in step.
    ///
    /// # Errors
    /// When that never comes.
    pub async fn serves(&self) -> Verdict {
        until("the group serves", || async {
            for address in &self.admin {
                if self.plan.cluster {
                    let info = self.say(*address, &["CLUSTER", "INFO"]).await?.concat();
                    let slots = self.say(*address, &["CLUSTER", "SLOTS"]).await?;
                    let here = slots.iter().filter(|text| *text == "127.0.0.1").count();
                    let serves = info.contains("cluster_state:ok") && here >= self.servers.len();
                    ensure!(serves, "{address} says: {info}");
                }
                let replication = self.say(*address, &["INFO", "replication"]).await?.concat();
                let apart =
                    replication.contains("role:slave") && !replication.contains("master_link_status:up");
                ensure!(!apart, "{address} is not in step");
                // A replica that is online gets nothing before it has acknowledged once, which it does once a second.
                let replicas = replication.matches(",state=").count().to_string();
                let mut master = self.connect(*address).await?;
                master.call(&["PUBLISH", "onelock-harness", "in step"]).await?;
                let acknowledged = master.call(&["WAIT", &replicas, "1000"]).await;
                let in_step =
                    acknowledged.map_or(replication.contains("role:slave"), |count| count == [replicas]);
                ensure!(in_step, "{address} has a replica that is not in step");
            }
            Ok(())
        })
        .await
    }

    /// Runs a command on one of the servers.
    ///
    /// # Errors
    /// When it fails, or with what the server says.
    pub async fn say(&self, server: SocketAddr, command: &[&str]) -> Verdict<Vec<String>> {
        self.connect(server).await?.call(command).await
    }

    /// A connection to one of them.
    async fn connect(&self, server: SocketAddr) -> Verdict<Resp> {
        let mut connection = Resp::connect(server).await?;
        if let Some(password) = &self.plan.servers.password {
            connection.call(&["AUTH", password]).await?;
        }
        Ok(connection)
    }

    /// Where those take commands that were masters at the start.
    #[must_use]
    pub fn masters(&self) -> &[SocketAddr] {
        &self.admin[..self.plan.masters()]
    }

    /// Those whose addresses stand in a URL: the sentinels, or the masters of the cluster.
    #[must_use]
    pub fn doors(&self) -> Vec<SocketAddr> {
        let doors = if self.plan.cluster { &self.servers[..self.plan.masters()] } else { &self.sentinels };
        doors.iter().map(RedisServer::address).collect()
    }

    /// A URL of the group where its doors are at other addresses; `user` is empty or ends with `@`.
    #[must_use]
    pub fn url_by(&self, doors: &[String], user: &str) -> String {
        let tls = if self.plan.servers.tls.is_some() { "s" } else { "" };
        let hosts = doors.join(",");
        if self.plan.cluster {
            format!("redis{tls}+cluster://{user}{hosts}")
        } else {
            format!("redis{tls}+sentinel://{user}{hosts}/{MASTER}")
        }
    }

    /// The URL of the group.
    #[must_use]
    pub fn url(&self) -> String {
        let doors: Vec<_> = self.doors().iter().map(ToString::to_string).collect();
        self.url_by(&doors, "")
    }

    /// Kills the masters and starts them again on the same data, before anybody replaces them.
    ///
    /// # Errors
    /// When they do not come back.
    pub async fn restart(&self) -> Verdict {
        for server in &self.servers[..self.plan.masters()] {
            server.restart().await?;
        }
        if self.plan.cluster { self.serves().await } else { Ok(()) }
    }

    /// Stops all servers where they are, or lets them go on.
    ///
    /// # Errors
    /// When one is gone.
    pub fn pause(&self, stopped: bool) -> Verdict {
        self.servers.iter().chain(&self.sentinels).try_for_each(|server| server.process.pause(stopped))
    }

    /// Empties it and waits until no client of an earlier user is connected; whether that came to be.
    ///
    /// # Errors
    /// When a server does not answer.
    pub async fn clean(&self) -> Verdict<bool> {
        let end = Instant::now() + Duration::from_secs(6);
        for address in &self.admin {
            let mut admin = self.connect(*address).await?;
            let own = format!(" addr={} ", admin.local());
            loop {
                let list = admin.call(&["CLIENT", "LIST"]).await?.concat();
                if !list.lines().any(|line| is_client(line) && !line.contains(&own)) {
                    break;
                }
                if Instant::now() > end {
                    return Ok(false);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        for address in self.masters() {
            self.say(*address, &["FLUSHALL"]).await?;
        }
        Ok(true)
    }
}

/// Waits until `reached` fails no more, for a minute: servers that are still coming up fail now and then.
async fn until<F: Future<Output = Verdict>>(what: &str, reached: impl Fn() -> F) -> Verdict {
    let end = Instant::now() + Duration::from_secs(60);
    while let Err(missing) = reached().await {
        if Instant::now() > end {
            return Err(missing.during(what));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Whether a line of `CLIENT LIST` is a client's, not a replica's, a master's, a sentinel's or a monitor's.
#[must_use]
pub fn is_client(line: &str) -> bool {
    !(line.contains(" name=sentinel-")
        || line.contains(" flags=S ")
        || line.contains(" flags=M ")
        || line.contains("cmd=monitor")
        || line.contains("cmd=replconf")
        || line.contains("cmd=psync"))
}
