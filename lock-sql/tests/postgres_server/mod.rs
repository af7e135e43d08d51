//! What tests do to a PostgreSQL server past the store.

pub(crate) mod harness;
pub(crate) mod pgbouncer;
pub(crate) mod running;
pub(crate) mod standby;

use async_trait::async_trait;
pub(crate) use onelock_conformance::servers::postgres::PostgresServer;
use onelock_conformance::verdict::Verdict;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _};

/// Past the store.
#[async_trait]
pub(crate) trait Admin {
    /// A connection that the counts leave out.
    async fn admin(&self) -> Verdict<PgConnection>;

    /// The same, in another database than the clients'.
    async fn admin_beside(&self) -> Verdict<PgConnection>;

    /// What clients have asked so far.
    fn asked(&self) -> Verdict<Vec<String>>;

    /// How many requests of clients were logged so far.
    fn requests(&self) -> Verdict<u64> {
        Ok(self.asked()?.len() as u64)
    }

    /// Makes the schema, and a role with the rights of the store's page.
    async fn migrate(&self, role: &str) -> Verdict {
        let sql = onelock_sql::postgres::migration("onelock")?;
        let grants = format!(
            "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA onelock TO {role}; \
             GRANT EXECUTE ON ALL ROUTINES IN SCHEMA onelock TO {role};"
        );
        self.admin().await?.execute(sqlx::raw_sql(AssertSqlSafe(sql + &grants))).await?;
        Ok(())
    }
}

#[async_trait]
impl Admin for PostgresServer {
    async fn admin(&self) -> Verdict<PgConnection> {
        Ok(connect(self.port(), "postgres", "admin").await?)
    }

    async fn admin_beside(&self) -> Verdict<PgConnection> {
        Ok(connect(self.port(), "template1", "admin").await?)
    }

    fn asked(&self) -> Verdict<Vec<String>> {
        let log = self.process.log();
        let asked = |line: &&str| {
            line.starts_with("onelock| ")
                && (line.contains("LOG:  execute ") || line.contains("LOG:  statement: "))
        };
        Ok(log.lines().filter(asked).map(str::to_owned).collect())
    }
}

/// A connection to a server or a pooler, by this name in the server's log.
pub(crate) async fn connect(port: u16, database: &str, by: &str) -> Result<PgConnection, sqlx::Error> {
    let options = PgConnectOptions::new_without_pgpass().host("127.0.0.1").port(port).username("postgres");
    // A pooler refuses what else the driver would send.
    let options = options.extra_float_digits(None).ssl_mode(PgSslMode::Disable);
    options.database(database).application_name(by).connect().await
}
