//! An application with a provider of cryptography of its own, beside every store. Alone in its process, because a process has one.
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use onelock_conformance::harness::Certificates;
use onelock_testbed::servers::mariadb::MariaDb;
use onelock_testbed::servers::postgres::PostgresServer;
use onelock_testbed::servers::redis::{RedisServer, Setup};
use onelock_testbed::servers::zookeeper::{self, ZkServer};
use onelock_testbed::verdict::Verdict;
use onelock_testbed::{ensure, ensure_eq};
use rustls::crypto::{CryptoProvider, GetRandomFailed, SecureRandom, ring};

/// What tells this application's provider from any other: how often it was asked for a random number.
#[derive(Debug)]
struct Counted(AtomicUsize);

impl SecureRandom for Counted {
    fn fill(&self, buffer: &mut [u8]) -> Result<(), GetRandomFailed> {
        self.0.fetch_add(1, Ordering::Relaxed);
        ring::default_provider().secure_random.fill(buffer)
    }
}

static RANDOM: Counted = Counted(AtomicUsize::new(0));

async fn cycle(url: &str) -> onelock::Result<()> {
    let locks = onelock::connect(url).await?;
    let guard = locks.mutex("beside")?.acquire().await?;
    guard.release().await?;
    locks.close(std::time::Duration::from_secs(5)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_store_runs_beside_it() -> Verdict {
    let certificates = Certificates::for_name()?;
    let files = certificates.files();
    let ca = files.authority.display();
    let redis = RedisServer::start(Setup { tls: Some(files.clone()), ..Setup::default() }).await?;
    let postgres = PostgresServer::start_with_tls(files).await?;
    let mariadb = MariaDb::start_with_tls(files).await?;
    let setup = zookeeper::Setup { tls: Some(files.clone()), ..zookeeper::Setup::default() };
    let zookeeper = ZkServer::start(setup).await?;
    let patient = "connect_timeout=20s&request_timeout=20s";
    // And whether its handshakes are this application's provider's.
    let mut stores = vec![
        (format!("rediss://localhost:{}?tls_ca={ca}&{patient}", redis.address().port()), true),
        (
            format!(
                "postgres://postgres@localhost:{}/postgres?sslmode=verify-full&sslrootcert={ca}&{patient}",
                postgres.port()
            ),
            false,
        ),
        (
            format!(
                "mariadb://root@localhost:{}/locks?tls=verify-full&tls_ca={ca}&{patient}",
                mariadb.port()
            ),
            false,
        ),
    ];
    #[cfg(feature = "etcd")]
    let etcd = onelock_testbed::servers::etcd::Member::single(Some(files)).await?;
    #[cfg(feature = "etcd")]
    stores.push((format!("etcds://localhost:{}?tls_ca={ca}&{patient}", etcd.port()), true));
    for (url, _) in &stores {
        cycle(url).await?;
        ensure!(CryptoProvider::get_default().is_none(), "{url} has chosen for the process");
    }
    stores.push((format!("zks://localhost:{}?tls_ca={ca}&{patient}", zookeeper.tls_port()), true));
    let (url, _) = &stores[stores.len() - 1];
    let error = cycle(url).await.err().map(|error| error.kind());
    ensure_eq!(error, Some(onelock::ErrorKind::InvalidConfig), "{url} without a provider");
    ensure!(CryptoProvider::get_default().is_none(), "{url} has chosen for the process");

    let own = CryptoProvider { secure_random: &RANDOM, ..ring::default_provider() };
    ensure!(own.install_default().is_ok(), "the application may not choose");
    let installed = CryptoProvider::get_default().map(Arc::clone);
    for (url, by_us) in &stores {
        let before = RANDOM.0.load(Ordering::Relaxed);
        cycle(url).await?;
        let used = RANDOM.0.load(Ordering::Relaxed) > before;
        ensure_eq!(used, *by_us, "{url}: whether the application's provider was used");
        let now = CryptoProvider::get_default().map(Arc::clone);
        let same = now.zip(installed.clone()).is_some_and(|(now, then)| Arc::ptr_eq(&now, &then));
        ensure!(same, "{url} has changed the provider of the process");
    }
    // What panics where several providers are linked in and none is installed.
    let _settings = rustls::ClientConfig::builder();
    Ok(())
}
