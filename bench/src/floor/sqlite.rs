//! The statements of an acquire and of a release, by one connection to a file of its own. Each is a transaction of its own
//! here; this library puts those that wait for each other into one. Who waits is told in this process, at once.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock::{BootClock, Clock as _, HolderId};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Executor as _, Row as _};
use tempfile::TempDir;
use tokio::sync::Mutex;

use super::told::Told;
use crate::data::{Kind, SubjectInfo};
use crate::plain::{self, Plain};
use crate::subject::{Ask, Client, Failure, Lock, Need, Subject};
use crate::tap::Tap;

const SCHEMA: &str = include_str!("../../../lock-sql/migrations/sqlite/0001_line.sql");
const BEGIN: &str = include_str!("../../../lock-sql/src/sqlite/sql/begin.sql");
const REBOOT: &str = include_str!("../../../lock-sql/src/sqlite/sql/reboot.sql");
const FRONT: &str = include_str!("../../../lock-sql/src/sqlite/sql/front.sql");
const JOIN: &str = include_str!("../../../lock-sql/src/sqlite/sql/join.sql");
const PROMOTE: &str = include_str!("../../../lock-sql/src/sqlite/sql/promote.sql");
const COMMIT: &str = include_str!("../../../lock-sql/src/sqlite/sql/commit_number.sql");
const RELEASE: &str = include_str!("../../../lock-sql/src/sqlite/sql/release.sql");

const BOOT: &str = "floor";
const NOBODY: [u8; 16] = [0; 16];

/// The driver on a file in a folder that lives as long as this.
pub struct Floor {
    info: SubjectInfo,
    folder: TempDir,
    told: Arc<Told>,
}

struct File {
    connection: Arc<Mutex<SqliteConnection>>,
    /// By numbers.
    told: Arc<Told>,
    lease: i64,
}

impl Floor {
    /// On a file that is not there yet, in the folder for temporary files.
    ///
    /// # Errors
    /// When there can be no such folder.
    pub fn new() -> Result<Self, Failure> {
        let info = SubjectInfo {
            id: "sqlite floor".to_owned(),
            store: "sqlite".to_owned(),
            kind: Kind::Floor,
            library: "sqlx 0.9".to_owned(),
            server: None,
        };
        Ok(Self {
            info,
            folder: tempfile::Builder::new().prefix("onelock-floor-").tempdir()?,
            told: Arc::default(),
        })
    }
}

#[async_trait]
impl Subject for Floor {
    fn info(&self) -> &SubjectInfo {
        &self.info
    }

    async fn connect(&self, lease: Duration) -> Result<Arc<dyn Client>, Failure> {
        let path = self.folder.path().join("locks.db");
        let options = SqliteConnectOptions::new().filename(path).busy_timeout(Duration::from_secs(5));
        let mut connection = options.create_if_missing(true).disable_statement_logging().connect().await?;
        let tables: i64 =
            sqlx::query("SELECT count(*) FROM sqlite_schema").fetch_one(&mut connection).await?.try_get(0)?;
        if tables == 0 {
            connection.execute(sqlx::raw_sql(SCHEMA)).await?;
            sqlx::query("PRAGMA journal_mode = WAL").fetch_one(&mut connection).await?;
            connection.execute("BEGIN IMMEDIATE").await?;
            sqlx::query(REBOOT).bind(now()).bind(BOOT).execute(&mut connection).await?;
            connection.execute("COMMIT").await?;
        }
        let lease = i64::try_from(lease.as_nanos())?;
        let connection = Arc::new(Mutex::new(connection));
        Ok(Arc::new(File { connection, told: Arc::clone(&self.told), lease }))
    }

    async fn connect_tapped(&self, _: Duration) -> Result<Option<(Arc<dyn Client>, Tap)>, Failure> {
        Ok(None)
    }

    fn lacks(&self, need: Need) -> Option<String> {
        match need {
            Need::Ping => Some("there is nobody to ask".to_owned()),
            need => super::lacks_waiting(need),
        }
    }

    async fn served(&self) -> Result<Option<u64>, Failure> {
        Ok(None)
    }
}

#[async_trait]
impl Client for File {
    fn prepare(&self, ask: &Ask<'_>) -> Result<Arc<dyn Lock>, Failure> {
        let (connection, told) = (Arc::clone(&self.connection), Arc::clone(&self.told));
        Ok(plain::lock(Name { connection, told, lease: self.lease, name: ask.name.to_owned() }))
    }

    async fn close(&self) -> Result<(), Failure> {
        // The last handle ends it.
        Ok(())
    }
}

struct Name {
    connection: Arc<Mutex<SqliteConnection>>,
    told: Arc<Told>,
    lease: i64,
    name: String,
}

fn now() -> i64 {
    i64::try_from(BootClock.now().since_origin().as_nanos()).unwrap_or(i64::MAX)
}

/// As the store has it: a number is on the disk before it is given, all else may be lost with the power.
async fn sync(connection: &mut SqliteConnection, sql: &'static str) -> Result<(), Failure> {
    sqlx::query(sql).persistent(false).execute(connection).await?;
    Ok(())
}

/// How many hold, and whether somebody waits.
async fn front(
    connection: &mut SqliteConnection,
    name: &str,
    holder: Vec<u8>,
) -> Result<(i64, bool), Failure> {
    let row = sqlx::query(FRONT).bind(name.to_owned()).bind(holder).fetch_one(connection).await?;
    Ok((row.try_get(0)?, row.try_get::<Option<i64>, _>(3)?.is_some()))
}

impl Plain for Name {
    type Kept = Vec<u8>;

    async fn take(&self, wait: bool) -> Result<Option<Vec<u8>>, Failure> {
        let holder = HolderId::random()?.as_u128().to_be_bytes().to_vec();
        let mut connection = self.connection.lock().await;
        sync(&mut connection, "PRAGMA synchronous = FULL").await?;
        let now = now();
        let rows = sqlx::query(BEGIN).bind(now).bind(BOOT).fetch_all(&mut *connection).await?;
        // After the version of the schema.
        let last: i64 = rows.get(1).ok_or("no numbers")?.try_get(0)?;
        let (number, held) = (last + 1, front(&mut connection, &self.name, holder.clone()).await?.0 == 0);
        if !held && !wait {
            connection.execute("COMMIT").await?;
            return Ok(None);
        }
        let query = sqlx::query(JOIN).bind(number).bind(self.name.clone()).bind(holder.clone());
        let query = query.bind("x").bind(held).bind(now + self.lease).bind(now).bind(0_i64).bind("floor:1");
        query.execute(&mut *connection).await?;
        // Before anybody can see the entry.
        let told = (!held).then(|| self.told.expect(&number.to_string()));
        sqlx::query(COMMIT).bind(number).execute(&mut *connection).await?;
        drop(connection);
        if let Some(told) = told {
            told.await?;
        }
        Ok(Some(holder))
    }

    async fn give_back(&self, holder: Vec<u8>) -> Result<(), Failure> {
        let mut connection = self.connection.lock().await;
        sync(&mut connection, "PRAGMA synchronous = NORMAL").await?;
        sqlx::query(BEGIN).bind(now()).bind(BOOT).fetch_all(&mut *connection).await?;
        let query = sqlx::query(RELEASE).bind(self.name.clone()).bind(holder);
        let gone = query.fetch_all(&mut *connection).await?.len();
        let next = match front(&mut connection, &self.name, NOBODY.to_vec()).await? {
            (0, true) => {
                let query = sqlx::query(PROMOTE).bind(self.name.clone()).bind("x").bind(1_i64);
                Some(query.fetch_one(&mut *connection).await?.try_get::<i64, _>(0)?)
            }
            _ => None,
        };
        connection.execute("COMMIT").await?;
        if let Some(next) = next {
            self.told.tell(&next.to_string());
        }
        if gone == 1 { Ok(()) } else { Err("the lock was not held any more".into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::LEASE;

    #[tokio::test]
    async fn it_locks() -> Result<(), Failure> {
        let floor = Floor::new()?;
        let (one, two) = (floor.connect(LEASE).await?, floor.connect(LEASE).await?);
        let (one, two) = (one.prepare(&Ask::exclusive("a"))?, two.prepare(&Ask::exclusive("a"))?);
        let held = one.take().await?;
        assert!(two.try_take().await?.is_none());
        let (next, given) = tokio::join!(two.take(), held.release());
        given?;
        next?.release().await
    }
}
