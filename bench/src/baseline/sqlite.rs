//! A row that is inserted, which waits for the disk, and deleted, which does not, by one connection to a file of its own.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock::toolkit::Mutex;
use rusqlite::Connection;
use tempfile::TempDir;

use super::{Pair, client};
use crate::data::{Kind, SubjectInfo};
use crate::subject::{Client, Failure, Need, Subject};
use crate::tap::Tap;

const SCHEMA: &str = "
    PRAGMA page_size = 1024;
    PRAGMA journal_mode = WAL;
    CREATE TABLE IF NOT EXISTS baseline (name TEXT PRIMARY KEY);
";

/// The driver on a file in a folder that lives as long as this.
pub struct File {
    info: SubjectInfo,
    folder: TempDir,
}

impl File {
    /// On a file that is not there yet, in the folder for temporary files.
    ///
    /// # Errors
    /// When there can be no such folder.
    pub fn new() -> Result<Self, Failure> {
        let info = SubjectInfo {
            id: "sqlite baseline".to_owned(),
            store: "sqlite".to_owned(),
            kind: Kind::Baseline,
            library: "rusqlite 0.43".to_owned(),
            server: None,
        };
        let folder = tempfile::Builder::new().prefix("onelock-baseline-").tempdir()?;
        Ok(Self { info, folder })
    }
}

#[async_trait]
impl Subject for File {
    fn info(&self) -> &SubjectInfo {
        &self.info
    }

    async fn connect(&self, _: Duration) -> Result<Arc<dyn Client>, Failure> {
        let connection = Connection::open(self.folder.path().join("locks.db"))?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.execute_batch(SCHEMA)?;
        Ok(client(Rows(Arc::new(Mutex::new(connection)))))
    }

    async fn connect_tapped(&self, _: Duration) -> Result<Option<(Arc<dyn Client>, Tap)>, Failure> {
        Ok(None)
    }

    fn lacks(&self, need: Need) -> Option<String> {
        (need != Need::Try)
            .then(|| "the two bare requests take a lock and give it back, and there is no server".to_owned())
    }
}

#[derive(Clone)]
struct Rows(Arc<Mutex<Connection>>);

impl Rows {
    fn execute(&self, sync: &str, sql: &str, name: &str) -> Result<bool, Failure> {
        let connection = self.0.lock();
        connection.execute_batch(sync)?;
        Ok(connection.prepare_cached(sql)?.execute([name])? == 1)
    }
}

impl Pair for Rows {
    type Kept = ();

    async fn take(&self, name: &str) -> Result<Option<()>, Failure> {
        let sql = "INSERT OR IGNORE INTO baseline VALUES (?1)";
        Ok(self.execute("PRAGMA synchronous = FULL", sql, name)?.then_some(()))
    }

    async fn give_back(&self, name: &str, (): ()) -> Result<bool, Failure> {
        self.execute("PRAGMA synchronous = NORMAL", "DELETE FROM baseline WHERE name = ?1", name)
    }

    async fn ping(&self) -> Result<bool, Failure> {
        Ok(false)
    }
}
