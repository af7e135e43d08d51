//! A program that has a provider of cryptography of its own. Alone in its process, because a process has one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod common;

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{held, request};
use onelock_conformance::servers::redis::{RedisServer, Setup};
use onelock_conformance::servers::tls;
use onelock_core::Backend;
use onelock_redis::{RedisBackend, RedisConfig};
use rustls::crypto::{CryptoProvider, GetRandomFailed, SecureRandom, ring};

/// What tells this program's provider from any other.
#[derive(Debug)]
struct Counted(AtomicUsize);

impl SecureRandom for Counted {
    fn fill(&self, buffer: &mut [u8]) -> Result<(), GetRandomFailed> {
        self.0.fetch_add(1, Ordering::Relaxed);
        ring::default_provider().secure_random.fill(buffer)
    }
}

static RANDOM: Counted = Counted(AtomicUsize::new(0));

#[tokio::test]
async fn a_program_keeps_its_own_provider() {
    let folder = tempfile::tempdir().unwrap();
    let files = tls::authority(folder.path(), "right", "localhost").ok().unwrap();
    let setup = Setup { tls: Some(files.clone()), ..Setup::default() };
    let server = RedisServer::start(setup).await.ok().unwrap();
    let connect = async |lock: &str| {
        let mut config = RedisConfig::new("localhost", server.address().port());
        (config.tls, config.tls_ca) = (true, Some(files.authority.clone()));
        let backend = RedisBackend::connect(config).await.unwrap();
        held(backend.acquire(&request(lock, "x")).await.unwrap());
    };
    connect("before").await;
    assert!(CryptoProvider::get_default().is_none(), "a library has chosen for the program");
    let own = CryptoProvider { secure_random: &RANDOM, ..ring::default_provider() };
    own.install_default().expect("it is the program's to install one");
    connect("after").await;
    assert!(RANDOM.0.load(Ordering::Relaxed) > 0, "the program's provider is not used");
}

/// Two providers in the tree make `ClientConfig::builder()` panic in a program that relies on the one of its own.
#[test]
fn the_feature_of_the_store_brings_no_provider() {
    let providers = |features: &str| {
        let cargo = Command::new(env!("CARGO"))
            .args(["tree", "--offline", "--package", "onelock", "--features", features])
            .args(["--edges", "normal,features", "--prefix", "none"])
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
            .output()
            .unwrap();
        assert!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
        let tree = String::from_utf8(cargo.stdout).unwrap();
        ["ring", "aws-lc-rs", "aws_lc_rs"]
            .into_iter()
            .filter(|provider| tree.contains(&format!("rustls feature \"{provider}\"")))
            .collect::<Vec<_>>()
    };
    for none in ["redis", "redis,tls"] {
        assert_eq!(providers(none), Vec::<&str>::new(), "{none}");
    }
    assert_eq!(providers("redis,tls-ring"), ["ring"]);
}
