//! What the shared suite is told about session locks of MySQL and MariaDB.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lock_conformance::Verdict;
use lock_conformance::case::Need;
use lock_conformance::faults::{Link, Proxy};
use lock_conformance::harness::redis::open_by;
use lock_conformance::harness::{Credentials, Harness, Store, Tls};
use lock_conformance::servers::mariadb::mysqld;
use lock_conformance::servers::{data_folder, free_port, tls};
use lock_core::{Backend, Capabilities};
use lock_sql::MYSQL_SESSION_DRIVER;

use crate::mysql_server::counter::Counter;
use crate::mysql_server::{Admin as _, MariaDb};

/// What the store must declare.
const CAPABILITIES: Capabilities = {
    let mut caps = Capabilities::full();
    caps.shared = false;
    caps.permits = false;
    caps.fifo = false;
    caps.push = false;
    caps.raise = false;
    caps.delay = false;
    caps.list = false;
    caps.durable = false;
    caps.resume = false;
    caps.min_lease = Duration::from_secs(1);
    caps.lease_step = Duration::from_secs(1);
    caps.max_lease = Duration::from_secs(24 * 24 * 3600);
    caps
};

/// A server for each case. The clients' user has the rights of the store's page and no other.
pub(crate) struct MySqlSession;

#[async_trait]
impl Harness for MySqlSession {
    fn name(&self) -> &'static str {
        "mysql-session"
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn unit(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn lacks(&self, need: Need) -> Option<String> {
        let why = match need {
            Need::Connections => "each lock has a connection of its own",
            Need::Thousands => "each lock has a connection of its own, and a server has no thousands",
            Need::Reconnect => {
                "a lock ends with its connection, and each end learns it for itself: two may believe, and \
                 tokens tell them apart"
            }
            Need::Foreign => {
                "what others lock under our names is a lock; the store's own tests show what is refused"
            }
            Need::WaiterLease => "nobody waits in a line",
            _ => return None,
        };
        Some(why.to_owned())
    }

    async fn start(&self) -> Verdict<Box<dyn Store>> {
        let server = start(&[]).await?;
        let counter = Counter::start((Ipv4Addr::LOCALHOST, server.port()).into())?;
        Ok(Box::new(Running { server, counter, proxies: Mutex::default() }))
    }

    async fn open(&self, url: &str) -> lock_core::Result<Arc<dyn Backend>> {
        open_by(&MYSQL_SESSION_DRIVER, url).await
    }
}

/// A server with the table, a user `locker` with the rights of the store's page, and something that shows who holds which lock.
pub(crate) async fn start(settings: &[&str]) -> Verdict<MariaDb> {
    let seen =
        if mysqld().is_some() { "--performance-schema=ON" } else { "--plugin-load-add=metadata_lock_info" };
    let all: Vec<_> = ["--max-connections=600", seen].into_iter().chain(settings.iter().copied()).collect();
    let server = MariaDb::start(&all).await?;
    let file = include_str!("../../migrations/mysql_session/0001.sql");
    server.run(&format!("SET autocommit = 1; USE locks; {file}")).await?;
    server.run("CREATE USER locker@'127.0.0.1'").await?;
    server.run("GRANT SELECT, UPDATE ON locks.onelock_session TO locker@'127.0.0.1'").await?;
    Ok(server)
}

/// The locks of all sessions.
pub(crate) async fn locks(server: &MariaDb) -> Verdict<Vec<String>> {
    let sql = if mysqld().is_some() {
        "SELECT CONCAT(OBJECT_NAME, ' ', LOCK_STATUS) FROM performance_schema.metadata_locks \
         WHERE OBJECT_TYPE = 'USER LEVEL LOCK'"
    } else {
        "SELECT CONCAT(TABLE_SCHEMA, ' ', THREAD_ID) FROM information_schema.METADATA_LOCK_INFO \
         WHERE LOCK_TYPE = 'User lock'"
    };
    server.texts(sql).await
}

struct Running {
    server: MariaDb,
    counter: Counter,
    proxies: Mutex<Vec<Proxy>>,
}

#[async_trait]
impl Store for Running {
    async fn connect(&self) -> Verdict<Arc<dyn Backend>> {
        Ok(open_by(&MYSQL_SESSION_DRIVER, &self.url()?).await?)
    }

    fn url(&self) -> Verdict<String> {
        // What is encrypted cannot be counted.
        let port = self.counter.port();
        Ok(format!("mysql+session://locker@127.0.0.1:{port}/locks?tls=off&connections=150"))
    }

    async fn requests(&self) -> Verdict<u64> {
        Ok(self.counter.verbs())
    }

    async fn url_by(&self, link: &Arc<Link>) -> Verdict<String> {
        let target: SocketAddr = (Ipv4Addr::LOCALHOST, self.server.port()).into();
        let proxy = Proxy::start(target, link).await?;
        // Short, so that a case with lost replies does not take minutes.
        let by = format!(
            "mysql+session://locker@{}/locks?connections=150&tls=off&request_timeout=1s&connect_timeout=2s",
            proxy.address()
        );
        self.proxies.lock().unwrap_or_else(PoisonError::into_inner).push(proxy);
        Ok(by)
    }

    async fn connect_by(&self, link: &Arc<Link>) -> Verdict<Arc<dyn Backend>> {
        Ok(open_by(&MYSQL_SESSION_DRIVER, &self.url_by(link).await?).await?)
    }

    async fn restart(&self) -> Verdict {
        self.server.restart().await
    }

    async fn pause(&self, stopped: bool) -> Verdict {
        self.server.pause(stopped)
    }

    async fn residue(&self) -> Verdict<Vec<String>> {
        locks(&self.server).await
    }

    async fn counters(&self) -> Verdict<u64> {
        self.server.count("SELECT COUNT(*) FROM locks.onelock_session").await
    }

    fn unreachable_url(&self) -> Verdict<String> {
        Ok(format!(
            "mysql+session://root@127.0.0.1:{}/locks?connect_timeout=300ms&request_timeout=300ms",
            free_port()?
        ))
    }

    async fn with_password(&self) -> Verdict<Credentials> {
        let (right, wrong) = ("correct-h0rse-battery", "wr0ng-h0rse-battery");
        let server = MariaDb::start(&[]).await?;
        server.run(&format!("CREATE USER secret@'127.0.0.1' IDENTIFIED BY '{right}'")).await?;
        server.run("GRANT CREATE, INSERT, SELECT, UPDATE ON locks.* TO secret@'127.0.0.1'").await?;
        let with =
            |password: &str| format!("mysql+session://secret:{password}@127.0.0.1:{}/locks", server.port());
        Ok(Credentials {
            good: with(right),
            bad: with(wrong),
            secrets: vec![right.to_owned(), wrong.to_owned()],
            keep: Box::new(server),
        })
    }

    async fn with_tls(&self) -> Verdict<Tls> {
        let folder = data_folder()?;
        let right = tls::authority(folder.path(), "right", "localhost")?;
        let other = tls::authority(folder.path(), "other", "localhost")?;
        let server = MariaDb::start_with_tls(&right).await?;
        let port = server.port();
        let by = |host: &str, rest: &str| {
            format!("mysql+session://root@{host}:{port}/locks?connect_timeout=2s&tls=verify-full{rest}")
        };
        let authority = |file: &std::path::Path| format!("&tls_ca={}", file.display());
        Ok(Tls {
            good: by("localhost", &authority(&right.authority)),
            bad: vec![
                (
                    by("localhost", &authority(&other.authority)),
                    "an authority that did not sign the certificate",
                ),
                (by("127.0.0.1", &authority(&right.authority)), "a host the certificate is not for"),
                (by("localhost", ""), "an authority the system does not know"),
            ],
            keep: Box::new((server, folder)),
        })
    }
}
