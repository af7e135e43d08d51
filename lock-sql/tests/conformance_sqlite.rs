//! The shared suite on SQLite files.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use async_trait::async_trait;
use onelock_conformance::Verdict;
use onelock_conformance::harness::file::{File, Look};
use onelock_core::Capabilities;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, Row as _};

/// What the store must declare.
const CAPABILITIES: Capabilities = {
    let mut capabilities = Capabilities::full();
    capabilities.granularity = Duration::ZERO;
    capabilities
};

/// Looks into the file with a connection of its own.
struct Tables;

async fn column(file: &Path, query: &'static str) -> Verdict<Vec<String>> {
    let options = SqliteConnectOptions::new().filename(file).busy_timeout(Duration::from_secs(10));
    let mut connection = options.connect().await?;
    let rows = sqlx::query(query).fetch_all(&mut connection).await?;
    connection.close().await?;
    rows.into_iter().map(|row| Ok(row.try_get(0)?)).collect()
}

#[async_trait]
impl Look for Tables {
    async fn residue(&self, file: &Path) -> Verdict<Vec<String>> {
        column(file, "SELECT name FROM onelock_line ORDER BY token").await
    }

    async fn counters(&self, file: &Path) -> Verdict<u64> {
        Ok(column(file, "SELECT boot FROM onelock_meta").await?.len() as u64)
    }
}

fn main() -> ExitCode {
    onelock_conformance::run(File::new("sqlite", onelock_sql::SQLITE_DRIVER, CAPABILITIES, Tables))
}
