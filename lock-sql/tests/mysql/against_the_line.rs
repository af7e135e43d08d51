//! Random verbs on the server and on the executable specification give the same answers.
//!
//! The server's clock is the real one, so time is moved by moving what the tables say. Leases and steps of time are whole
//! multiples of a unit that is longer than the test, so the time it takes decides nothing.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_conformance::differential::{Numbers, Subject, Times, play};
use onelock_conformance::rng::Rng;
use onelock_conformance::servers::mariadb::mysqld;
use onelock_conformance::verdict::Verdict;
use onelock_core::Backend;

use crate::mysql_server::{Admin as _, MariaDb};
use crate::support::connect;

const UNIT: Duration = Duration::from_secs(600);

/// A time below so many units.
fn units(rng: &mut Rng, end: u64) -> Duration {
    Duration::from_secs(UNIT.as_secs() * rng.below(end))
}

struct Tables {
    server: MariaDb,
    clients: Vec<Arc<dyn Backend>>,
}

impl Tables {
    /// One client with blocks, and one with several statements.
    async fn of(server: MariaDb, url: &str) -> Self {
        let mut clients: Vec<Arc<dyn Backend>> = Vec::new();
        for options in ["", "?blocks=false"] {
            clients.push(Arc::new(connect(&format!("{url}{options}")).await));
        }
        Self { server, clients }
    }

    async fn clear(&self) -> Verdict {
        self.server
            .run("DELETE FROM locks.onelock_line; UPDATE locks.onelock_counter SET number = 0")
            .await?;
        Ok(())
    }
}

#[async_trait]
impl Subject for Tables {
    fn clients(&self) -> &[Arc<dyn Backend>] {
        &self.clients
    }

    fn numbers(&self) -> Numbers {
        Numbers::Growing
    }

    fn times(&self, rng: &mut Rng) -> Times {
        Times { lease: UNIT + units(rng, 8), waiter_lease: UNIT + units(rng, 4), delay: units(rng, 3) }
    }

    fn pause(&self, rng: &mut Rng) -> Duration {
        units(rng, 4)
    }

    async fn advance(&self, time: Duration) -> Verdict {
        let micros = time.as_micros();
        let sql = format!("UPDATE locks.onelock_line SET ends = ends - {micros}, joined = joined - {micros}");
        self.server.run(&sql).await?;
        Ok(())
    }

    // What passes during the test is far less than a unit, and makes what is left shorter and ages longer.
    fn left(&self, time: Duration) -> Duration {
        UNIT * u32::try_from(time.as_nanos().div_ceil(UNIT.as_nanos())).unwrap()
    }

    fn age(&self, time: Duration) -> Duration {
        Duration::from_secs(time.as_secs() / UNIT.as_secs() * UNIT.as_secs())
    }

    /// In a batch an entry's own renewal may come before or after the look at the leases ahead: only whether there is one.
    fn left_after_renewal(&self, _: Duration) -> Duration {
        Duration::ZERO
    }
}

/// Two clients in turn: each must see at once what the other did.
#[tokio::test]
async fn random_verbs_give_the_same_answers() -> Verdict {
    let server = MariaDb::start(&[]).await?;
    let url = server.url();
    let tables = Tables::of(server, &url).await;
    for seed in 1..=6 {
        tables.clear().await?;
        play(&tables, seed, 300).await?;
    }
    Ok(())
}

/// A server with strange defaults: every one of them changes what a careless statement does.
#[tokio::test]
async fn strange_defaults_change_nothing() -> Verdict {
    let mut settings = vec![
        "--default-time-zone=-07:30",
        "--sql-mode=ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,HIGH_NOT_PRECEDENCE",
        "--character-set-server=latin1",
        "--collation-server=latin1_german1_ci",
        "--transaction-isolation=SERIALIZABLE",
        // For users without special rights.
        "--init-connect=SET autocommit = 0, completion_type = 'RELEASE', sql_select_limit = 1, sql_safe_updates = 1, \
         sql_auto_is_null = 1, sql_big_selects = 0, max_join_size = 1, innodb_lock_wait_timeout = 1",
    ];
    if mysqld().is_none() {
        // MySQL keeps the one from its first start and does not know the other.
        settings.extend(["--lower-case-table-names=1", "--skip-character-set-client-handshake"]);
    }
    let server = MariaDb::start(&settings).await?.with_locker().await?;
    let url = server.locker_url();
    let tables = Tables::of(server, &url).await;
    for seed in 1..=2 {
        tables.clear().await?;
        play(&tables, 100 + seed, 200).await?;
    }
    Ok(())
}
