//! The shared suite on MariaDB servers, as a user who has the run-time rights of the store's page and no other.

mod mysql_server;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use lock_conformance::Need;
use lock_conformance::faults::{Link, Proxy};
use lock_conformance::harness::redis::open_by;
use lock_conformance::harness::{Credentials, Harness, Store, Tls};
use lock_conformance::servers::{data_folder, free_port, tls};
use lock_conformance::verdict::Verdict;
use lock_core::{Backend, Capabilities};
use mysql_server::counter::Counter;
use mysql_server::{Admin as _, MariaDb};

/// What the store must declare on a server that flushes its log at every commit.
const CAPABILITIES: Capabilities = Capabilities::full();

/// A server per case.
struct MySql;

#[async_trait]
impl Harness for MySql {
    fn name(&self) -> &'static str {
        "mysql"
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn unit(&self) -> Duration {
        Duration::from_millis(500)
    }

    fn lacks(&self, need: Need) -> Option<String> {
        let why = match need {
            Need::Connections => {
                "a client has a fixed number of connections and not one; the store's own tests count them"
            }
            Need::Foreign => {
                "constraints keep rows that are not ours out of the tables, and tables that are not ours are refused \
                 when a client connects; the store's own tests show both"
            }
            _ => return None,
        };
        Some(why.to_owned())
    }

    async fn start(&self) -> Verdict<Box<dyn Store>> {
        let server = MariaDb::start(&[]).await?.with_locker().await?;
        let counter = Counter::start((Ipv4Addr::LOCALHOST, server.port()).into())?;
        Ok(Box::new(Running { counter, proxies: Mutex::default(), server }))
    }

    async fn open(&self, url: &str) -> lock_core::Result<Arc<dyn Backend>> {
        open_by(&lock_sql::MYSQL_DRIVER, url).await
    }
}

struct Running {
    counter: Counter,
    proxies: Mutex<Vec<Proxy>>,
    server: MariaDb,
}

#[async_trait]
impl Store for Running {
    async fn connect(&self) -> Verdict<Arc<dyn Backend>> {
        Ok(open_by(&lock_sql::MYSQL_DRIVER, &self.url()?).await?)
    }

    fn url(&self) -> Verdict<String> {
        // What is encrypted cannot be counted.
        Ok(format!("mysql://locker@127.0.0.1:{}/locks?tls=off", self.counter.port()))
    }

    /// Verbs and what sets up connections. Looks for waiters and house-keeping are bounded by time, not by verbs: the
    /// store's own tests count them.
    async fn requests(&self) -> Verdict<u64> {
        Ok(self.counter.verbs())
    }

    async fn url_by(&self, link: &Arc<Link>) -> Verdict<String> {
        let target: SocketAddr = (Ipv4Addr::LOCALHOST, self.server.port()).into();
        let proxy = Proxy::start(target, link).await?;
        // Short, so that a case with lost replies does not take minutes.
        let by =
            format!("mysql://locker@{}/locks?request_timeout=500ms&connect_timeout=500ms", proxy.address());
        self.proxies.lock().unwrap_or_else(PoisonError::into_inner).push(proxy);
        Ok(by)
    }

    async fn connect_by(&self, link: &Arc<Link>) -> Verdict<Arc<dyn Backend>> {
        Ok(open_by(&lock_sql::MYSQL_DRIVER, &self.url_by(link).await?).await?)
    }

    async fn restart(&self) -> Verdict {
        self.server.restart().await
    }

    async fn pause(&self, stopped: bool) -> Verdict {
        self.server.pause(stopped)
    }

    async fn residue(&self) -> Verdict<Vec<String>> {
        self.server.texts("SELECT CONCAT(name, ' ', number) FROM locks.onelock_line").await
    }

    /// Names stay for a few seconds after their last use; what is there after that stays for ever.
    async fn counters(&self) -> Verdict<u64> {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let names = self.server.count("SELECT COUNT(*) FROM locks.onelock_name").await?;
            if names == 0 || Instant::now() > end {
                return Ok(1 + names);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn unreachable_url(&self) -> Verdict<String> {
        Ok(format!(
            "mysql://root@127.0.0.1:{}/locks?connect_timeout=300ms&request_timeout=300ms",
            free_port()?
        ))
    }

    async fn with_password(&self) -> Verdict<Credentials> {
        let (right, wrong) = ("correct-h0rse-battery", "wr0ng-h0rse-battery");
        let server = MariaDb::start(&[]).await?;
        server.run(&format!("CREATE USER secret@'127.0.0.1' IDENTIFIED BY '{right}'")).await?;
        server.run("GRANT CREATE, SELECT, INSERT, UPDATE, DELETE ON locks.* TO secret@'127.0.0.1'").await?;
        let with = |password: &str| format!("mysql://secret:{password}@127.0.0.1:{}/locks", server.port());
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
        let by = |host: &str, authority: &std::path::Path| {
            let authority = authority.display();
            format!("mysql://root@{host}:{port}/locks?connect_timeout=2s&tls=verify-full&tls_ca={authority}")
        };
        Ok(Tls {
            good: by("localhost", &right.authority),
            bad: vec![
                (by("localhost", &other.authority), "an authority that did not sign the certificate"),
                (by("127.0.0.1", &right.authority), "a host the certificate is not for"),
                (
                    format!("mysql://root@localhost:{port}/locks?connect_timeout=2s&tls=verify-full"),
                    "an authority the system does not know",
                ),
            ],
            keep: Box::new((server, folder)),
        })
    }
}

fn main() -> ExitCode {
    lock_conformance::run(MySql)
}
