//! The two requests of a cycle as the store sends them, on as many connections as a client of this library has. Who waits polls
//! every 2 ms.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock::HolderId;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _, Row as _};
use tokio::sync::OwnedSemaphorePermit;

use super::mysql_text::{ask, filled, hexadecimal};
use super::pool::Pool;
use crate::networked::Way;
use crate::plain::{self, Plain};
use crate::subject::{Ask, Client, Failure, Lock, Need};

/// As many as a client of this library has unless told otherwise.
const CONNECTIONS: usize = 8;
const PAUSE: Duration = Duration::from_millis(2);

const SESSION: &str = include_str!("../../../lock-sql/src/mysql/sql/session.sql");
const ACQUIRE: &str = include_str!("../../../lock-sql/src/mysql/sql/acquire.sql");
const BUSY: &str = include_str!("../../../lock-sql/src/mysql/sql/busy.sql");
const POLL: &str = include_str!("../../../lock-sql/src/mysql/sql/poll.sql");
const RELEASE: &str = include_str!("../../../lock-sql/src/mysql/sql/release.sql");

pub(super) struct Floor;

struct Shared {
    pool: Pool<MySqlConnection>,
    options: MySqlConnectOptions,
    /// Whether the server takes several statements as one block, which it answers once.
    blocks: bool,
    lease: String,
}

/// What does not change from name to name.
const SAME: [(&str, &str); 5] =
    [(":mode", "x'78'"), (":room", "1"), (":weight", "1"), (":note", "x'666c6f6f723a31'"), (":epoch", "0")];

struct Connections(Arc<Shared>);

#[async_trait]
impl Way for Floor {
    async fn open(&self, server: SocketAddr, lease: Duration) -> Result<Arc<dyn Client>, Failure> {
        let options = options(server);
        let lease = lease.as_micros().to_string();
        let mut shared = Shared { pool: Pool::new(CONNECTIONS), options, blocks: false, lease };
        let mut connection = shared.connect().await?;
        let version: String = ask(&mut connection, "SELECT VERSION()").await?.try_get(0)?;
        shared.blocks = version.contains("MariaDB");
        shared.pool.take_back(connection);
        Ok(Arc::new(Connections(Arc::new(shared))))
    }

    fn lacks(&self, need: Need) -> Option<String> {
        super::lacks_waiting(need)
    }
}

/// How to reach the server that was started for a run.
pub(super) fn options(server: SocketAddr) -> MySqlConnectOptions {
    MySqlConnectOptions::new()
        .host(&server.ip().to_string())
        .port(server.port())
        .username("root")
        .database("locks")
        .ssl_mode(MySqlSslMode::Disabled)
        .pipes_as_concat(false)
        .no_engine_substitution(false)
        .timezone(None)
        .set_names(false)
        .disable_statement_logging()
}

impl Shared {
    async fn connect(&self) -> Result<MySqlConnection, Failure> {
        let mut connection = self.options.connect().await?;
        connection.execute(sqlx::raw_sql(AssertSqlSafe(filled(SESSION, &[(":lock_wait", "1")])))).await?;
        Ok(connection)
    }

    async fn lend(&self) -> Result<(OwnedSemaphorePermit, MySqlConnection), Failure> {
        let (permit, free) = self.pool.lend().await?;
        match free {
            Some(connection) => Ok((permit, connection)),
            None => Ok((permit, self.connect().await?)),
        }
    }
}

#[async_trait]
impl Client for Connections {
    fn prepare(&self, ask: &Ask<'_>) -> Result<Arc<dyn Lock>, Failure> {
        let shared = Arc::clone(&self.0);
        let name = hexadecimal(ask.name.as_bytes());
        // What does not change is filled in once.
        let values = [(":waiter_lease", &*shared.lease), (":lease", &shared.lease), (":name", &name)];
        let acquire = filled(&filled(ACQUIRE, &values), &SAME);
        let acquire = if shared.blocks { format!("BEGIN NOT ATOMIC\n{acquire}END") } else { acquire };
        let (busy, poll) = (filled(BUSY, &[(":name", &name)]), filled(POLL, &[]));
        let release = filled(RELEASE, &[(":name", &name)]);
        Ok(plain::lock(Name { shared, acquire, busy, poll, release }))
    }

    async fn ping(&self) -> Result<bool, Failure> {
        let (_permit, mut connection) = self.0.lend().await?;
        ask(&mut connection, "SELECT 1").await?;
        self.0.pool.take_back(connection);
        Ok(true)
    }

    async fn close(&self) -> Result<(), Failure> {
        self.0.pool.close().await
    }
}

struct Name {
    shared: Arc<Shared>,
    acquire: String,
    /// What only a try asks for.
    busy: String,
    poll: String,
    release: String,
}

impl Plain for Name {
    /// The holder as it stands in a text.
    type Kept = String;

    async fn take(&self, wait: bool) -> Result<Option<String>, Failure> {
        let holder = hexadecimal(&HolderId::random()?.as_u128().to_be_bytes());
        let (queue, busy) = if wait { ("1", "NULL") } else { ("0", &*self.busy) };
        let sql = self.acquire.replace(":holder", &holder).replace(":queue", queue).replace(":busy", busy);
        let (permit, mut connection) = self.shared.lend().await?;
        let row = ask(&mut connection, &sql).await?;
        self.shared.pool.take_back(connection);
        drop(permit);
        if row.try_get::<Option<i64>, _>(0)?.is_none() {
            return Ok(None);
        }
        let whose: Vec<u8> = row.try_get(2)?;
        let mut holds = whose.len() == 16;
        let poll = self.poll.replace(":holders", &holder);
        while !holds {
            tokio::time::sleep(PAUSE).await;
            let (_permit, mut connection) = self.shared.lend().await?;
            holds = ask(&mut connection, &poll).await?.try_get::<i64, _>(2)? == 0;
            self.shared.pool.take_back(connection);
        }
        Ok(Some(holder))
    }

    async fn give_back(&self, holder: String) -> Result<(), Failure> {
        let (_permit, mut connection) = self.shared.lend().await?;
        let sql = self.release.replace(":holder", &holder);
        let gone = connection.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await?.rows_affected();
        self.shared.pool.take_back(connection);
        if gone == 1 { Ok(()) } else { Err("the lock was not held any more".into()) }
    }
}
