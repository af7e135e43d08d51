//! Two bare transactions for an acquire and a release, by one connection to a file of its own: a row is inserted, which waits for
//! the disk, and deleted, which does not. Who waits is told in this process, at once.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, TransactionBehavior};
use tempfile::TempDir;

use super::told::Told;
use crate::data::{Kind, SubjectInfo};
use crate::plain::{self, Plain};
use crate::subject::{Ask, Client, Failure, Lock, Need, Subject};
use crate::tap::Tap;

const SCHEMA: &str = "
    PRAGMA page_size = 1024;
    PRAGMA journal_mode = WAL;
    CREATE TABLE IF NOT EXISTS line (token INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL);
    CREATE INDEX IF NOT EXISTS line_name ON line (name);
";
const JOIN: &str = "INSERT INTO line (name) VALUES (?1)";
const FIRST: &str = "SELECT min(token) FROM line WHERE name = ?1";
const LEAVE: &str = "DELETE FROM line WHERE token = ?1";

/// The driver on a file in a folder that lives as long as this.
pub struct Floor {
    info: SubjectInfo,
    folder: TempDir,
    told: Arc<Told>,
}

struct File {
    connection: Arc<Mutex<Connection>>,
    /// By numbers.
    told: Arc<Told>,
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
            library: "rusqlite 0.43".to_owned(),
            server: None,
        };
        let folder = tempfile::Builder::new().prefix("onelock-floor-").tempdir()?;
        Ok(Self { info, folder, told: Arc::default() })
    }
}

#[async_trait]
impl Subject for Floor {
    fn info(&self) -> &SubjectInfo {
        &self.info
    }

    async fn connect(&self, _: Duration) -> Result<Arc<dyn Client>, Failure> {
        let connection = Connection::open(self.folder.path().join("locks.db"))?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.execute_batch(SCHEMA)?;
        let connection = Arc::new(Mutex::new(connection));
        Ok(Arc::new(File { connection, told: Arc::clone(&self.told) }))
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
        Ok(plain::lock(Name { connection, told, name: ask.name.to_owned() }))
    }

    async fn close(&self) -> Result<(), Failure> {
        // The last handle ends it.
        Ok(())
    }
}

struct Name {
    connection: Arc<Mutex<Connection>>,
    told: Arc<Told>,
    name: String,
}

impl Name {
    /// One transaction. As the store has it: a number is on the disk before it is given, all else may be lost with the power.
    fn transact<T>(
        &self,
        sync: &str,
        run: impl FnOnce(&Connection) -> Result<T, rusqlite::Error>,
    ) -> Result<T, Failure> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        connection.execute_batch(sync)?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let done = run(&transaction)?;
        transaction.commit()?;
        Ok(done)
    }
}

impl Plain for Name {
    type Kept = i64;

    async fn take(&self, wait: bool) -> Result<Option<i64>, Failure> {
        let taken = self.transact("PRAGMA synchronous = FULL", |sql| {
            let first: Option<i64> = sql.prepare_cached(FIRST)?.query_row([&self.name], |row| row.get(0))?;
            if first.is_some() && !wait {
                return Ok(None);
            }
            sql.prepare_cached(JOIN)?.execute([&self.name])?;
            let token = sql.last_insert_rowid();
            // Before anybody can see the entry.
            Ok(Some((token, first.map(|_| self.told.expect(&token.to_string())))))
        })?;
        let Some((token, told)) = taken else { return Ok(None) };
        if let Some(told) = told {
            told.await?;
        }
        Ok(Some(token))
    }

    async fn give_back(&self, token: i64) -> Result<(), Failure> {
        let next = self.transact("PRAGMA synchronous = NORMAL", |sql| {
            sql.prepare_cached(LEAVE)?.execute([token])?;
            sql.prepare_cached(FIRST)?.query_row([&self.name], |row| row.get::<_, Option<i64>>(0))
        })?;
        if let Some(next) = next {
            self.told.tell(&next.to_string());
        }
        Ok(())
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
