//! What tests do to a MariaDB server past the store, and a way to it that counts.

// Each test program uses a part of this.
#![allow(dead_code)]

pub(crate) mod counter;
pub(crate) mod running;

use async_trait::async_trait;
pub(crate) use onelock_conformance::servers::mariadb::MariaDb;
use onelock_conformance::verdict::{Context as _, Verdict};
use sqlx::mysql::{MySqlConnectOptions, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, MySqlConnection, Row as _};

/// What a user needs who only takes locks, by table: as on the store's page.
pub(crate) const RUN_TIME_RIGHTS: [(&str, &[&str]); 3] = [
    ("onelock_line", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("onelock_counter", &["SELECT", "UPDATE"]),
    ("onelock_store", &["SELECT", "UPDATE"]),
];

/// Past the store.
#[async_trait]
pub(crate) trait Admin: Sized {
    /// A connection past the store.
    async fn admin(&self) -> Verdict<MySqlConnection>;

    /// Makes the tables and a user `locker` without a password who may only take locks.
    async fn with_locker(self) -> Verdict<Self>;

    /// The store as that user.
    fn locker_url(&self) -> String;

    /// Runs statements past the store and gives their rows.
    async fn run(&self, sql: &str) -> Verdict<Vec<MySqlRow>>;

    /// The first column of the answer, as text.
    async fn texts(&self, sql: &str) -> Verdict<Vec<String>>;

    /// A number.
    async fn count(&self, sql: &str) -> Verdict<u64>;
}

#[async_trait]
impl Admin for MariaDb {
    async fn admin(&self) -> Verdict<MySqlConnection> {
        let options = MySqlConnectOptions::new().host("127.0.0.1").port(self.port()).username("root");
        Ok(options.disable_statement_logging().connect().await?)
    }

    async fn with_locker(self) -> Verdict<Self> {
        let file = include_str!("../../src/mysql/schema/0001.sql");
        self.run(&format!("USE locks; {file}")).await?;
        self.run("CREATE USER locker@'127.0.0.1'").await?;
        for (table, rights) in RUN_TIME_RIGHTS {
            let rights = rights.join(", ");
            self.run(&format!("GRANT {rights} ON locks.{table} TO locker@'127.0.0.1'")).await?;
        }
        Ok(self)
    }

    fn locker_url(&self) -> String {
        format!("mysql://locker@127.0.0.1:{}/locks", self.port())
    }

    async fn run(&self, sql: &str) -> Verdict<Vec<MySqlRow>> {
        let mut admin = self.admin().await?;
        Ok(sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut admin).await?)
    }

    async fn texts(&self, sql: &str) -> Verdict<Vec<String>> {
        let texts = |row: MySqlRow| -> Verdict<String> {
            let bytes: Vec<u8> = row.try_get_unchecked(0)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        self.run(sql).await?.into_iter().map(texts).collect()
    }

    async fn count(&self, sql: &str) -> Verdict<u64> {
        let texts = self.texts(sql).await?;
        Ok(texts.first().context("no row")?.parse()?)
    }
}
