//! What the shared suite is told about session locks of PostgreSQL.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lock_conformance::Verdict;
use lock_conformance::case::Need;
use lock_conformance::faults::{Link, Proxy};
use lock_conformance::harness::redis::open_by;
use lock_conformance::harness::{Credentials, Harness, Store, Tls};
use lock_conformance::servers::{data_folder, free_port, tls};
use lock_core::{Backend, Capabilities};
use lock_sql::POSTGRES_SESSION_DRIVER;
use sqlx::{AssertSqlSafe, Executor as _, Row as _};

use crate::postgres_server::{Admin as _, PostgresServer};

/// What the store must declare.
const CAPABILITIES: Capabilities = {
    let mut caps = Capabilities::full();
    caps.permits = false;
    caps.fifo = false;
    caps.push = false;
    caps.raise = false;
    caps.delay = false;
    caps.list = false;
    caps.durable = false;
    caps.resume = false;
    caps.min_lease = Duration::from_millis(200);
    caps.max_lease = Duration::from_secs(24 * 24 * 3600);
    caps
};

/// A server for each case. The clients' role has the rights of the store's page and no other.
pub(crate) struct PostgresSession;

#[async_trait]
impl Harness for PostgresSession {
    fn name(&self) -> &'static str {
        "postgres-session"
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn unit(&self) -> Duration {
        Duration::from_millis(500)
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
                "what others lock under our keys is a lock; the store's own tests show what is refused"
            }
            Need::WaiterLease => "nobody waits in a line",
            _ => return None,
        };
        Some(why.to_owned())
    }

    async fn start(&self) -> Verdict<Box<dyn Store>> {
        let server = start(&[]).await?;
        let port = server.port();
        let url =
            format!("postgres+session://onelock@127.0.0.1:{port}/postgres?migrate=false&connections=150");
        Ok(Box::new(Running { server, url, port, proxies: Mutex::default() }))
    }

    async fn open(&self, url: &str) -> lock_core::Result<Arc<dyn Backend>> {
        open_by(&POSTGRES_SESSION_DRIVER, url).await
    }
}

/// A server with the schema, and a role `onelock` with the rights of the store's page.
pub(crate) async fn start(settings: &[&str]) -> Verdict<PostgresServer> {
    // A session's name says what it holds: it is told by its user, in the log that counts the requests.
    let all: Vec<_> =
        ["log_line_prefix=%u| ", "max_connections=600"].into_iter().chain(settings.iter().copied()).collect();
    let server = PostgresServer::start(&all).await?;
    let sql = lock_sql::session::postgres::migration("onelock_session")?;
    let grants = "CREATE ROLE onelock LOGIN; GRANT USAGE ON SCHEMA onelock_session TO onelock; \
                  GRANT USAGE ON SEQUENCE onelock_session.number TO onelock; \
                  GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA onelock_session TO onelock;";
    server.admin().await?.execute(sqlx::raw_sql(AssertSqlSafe(sql + grants))).await?;
    Ok(server)
}

struct Running {
    server: PostgresServer,
    /// Where the clients go.
    url: String,
    port: u16,
    proxies: Mutex<Vec<Proxy>>,
}

#[async_trait]
impl Store for Running {
    async fn connect(&self) -> Verdict<Arc<dyn Backend>> {
        Ok(open_by(&POSTGRES_SESSION_DRIVER, &self.url).await?)
    }

    fn url(&self) -> Verdict<String> {
        Ok(self.url.clone())
    }

    async fn requests(&self) -> Verdict<u64> {
        self.server.requests()
    }

    async fn url_by(&self, link: &Arc<Link>) -> Verdict<String> {
        let proxy = Proxy::start(([127, 0, 0, 1], self.port).into(), link).await?;
        // Short, so that a case with lost replies does not take minutes.
        let by = self.url.replace(&format!(":{}/", self.port), &format!(":{}/", proxy.address().port()));
        let by = format!("{by}&sslmode=disable&request_timeout=1s&connect_timeout=2s");
        self.proxies.lock().unwrap_or_else(PoisonError::into_inner).push(proxy);
        Ok(by)
    }

    async fn connect_by(&self, link: &Arc<Link>) -> Verdict<Arc<dyn Backend>> {
        Ok(open_by(&POSTGRES_SESSION_DRIVER, &self.url_by(link).await?).await?)
    }

    async fn restart(&self) -> Verdict {
        self.server.restart().await
    }

    async fn pause(&self, stopped: bool) -> Verdict {
        self.server.pause(stopped)
    }

    async fn residue(&self) -> Verdict<Vec<String>> {
        let locks = "SELECT a.application_name FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid) \
                     WHERE l.locktype = 'advisory'";
        let rows = self.server.admin().await?.fetch_all(locks).await?;
        rows.into_iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    async fn counters(&self) -> Verdict<u64> {
        Ok(1)
    }

    fn unreachable_url(&self) -> Verdict<String> {
        Ok(format!(
            "postgres+session://127.0.0.1:{}/db?connect_timeout=300ms&request_timeout=300ms",
            free_port()?
        ))
    }

    async fn with_password(&self) -> Verdict<Credentials> {
        let (right, wrong) = ("correct-h0rse-battery", "wr0ng-h0rse-battery");
        let server = PostgresServer::start(&[]).await?;
        let mut admin = server.admin().await?;
        admin.execute("CREATE ROLE secret LOGIN SUPERUSER PASSWORD 'correct-h0rse-battery'").await?;
        let with = |password: &str| {
            format!("postgres+session://secret:{password}@127.0.0.1:{}/postgres", server.port())
        };
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
        let server = PostgresServer::start_with_tls(&right).await?;
        let by = |host: &str, rest: &str| {
            let port = server.port();
            format!("postgres+session://postgres@{host}:{port}/postgres?connect_timeout=2s&sslmode={rest}")
        };
        let authority = |file: &std::path::Path| format!("verify-full&sslrootcert={}", file.display());
        Ok(Tls {
            good: by("localhost", &authority(&right.authority)),
            bad: vec![
                (
                    by("localhost", &authority(&other.authority)),
                    "an authority that did not sign the certificate",
                ),
                (by("127.0.0.1", &authority(&right.authority)), "a host the certificate is not for"),
                (by("localhost", "verify-full"), "an authority the system does not know"),
            ],
            keep: Box::new((server, folder)),
        })
    }
}
