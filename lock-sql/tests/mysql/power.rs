//! What survives when the server's machine loses its power.

use std::sync::Arc;

use async_trait::async_trait;
use onelock_conformance::power::{Powered, nothing_answered_is_lost};
use onelock_conformance::servers::Place;
use onelock_conformance::servers::mariadb::mysqld;
use onelock_conformance::verdict::Verdict;
use onelock_core::Backend;

use crate::mysql_server::MariaDb;
use crate::support::connect;

struct Store(MariaDb, &'static str);

#[async_trait]
impl Powered for Store {
    async fn cut_power(&self) -> Verdict {
        self.0.process.cut_power().await?;
        self.0.restart().await
    }

    async fn connect(&self) -> Verdict<Arc<dyn Backend>> {
        Ok(Arc::new(connect(&format!("{}{}", self.0.url(), self.1)).await))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_takes_nothing_that_was_answered() {
    let mut settings: Vec<&[&str]> = vec![&[], &["--log-bin=binlog", "--server-id=1", "--sync-binlog=1"]];
    if mysqld().is_none() {
        // MySQL knows no 3.
        settings.push(&[
            "--log-bin=binlog",
            "--server-id=1",
            "--sync-binlog=0",
            "--innodb-flush-log-at-trx-commit=3",
        ]);
    }
    for settings in settings {
        let server = MariaDb::start_in(Place::Power, settings).await.unwrap();
        nothing_answered_is_lost(&Store(server, ""), 2).await.unwrap();
    }
}

/// What `durable` refuses does lose holds and numbers: the cut is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_are_refused_lose_what_was_answered() {
    let settings: [&[&str]; 2] =
        [&["--log-bin=binlog", "--server-id=1", "--sync-binlog=0"], &["--innodb-flush-log-at-trx-commit=2"]];
    for settings in settings {
        let server = MariaDb::start_in(Place::Power, settings).await.unwrap();
        // The first cut that comes before the server writes by itself is enough.
        let lost = nothing_answered_is_lost(&Store(server, "?durability=relaxed"), 8).await.unwrap_err();
        println!("{settings:?}: {lost}");
        // A hold is gone, or a number was given again.
        let lost = lost.to_string();
        assert!(lost.contains("is lost") || lost.contains("token"), "{settings:?}: {lost}");
    }
}
