//! TLS in an application that has a cryptography provider of its own.

use std::sync::Arc;

use onelock_conformance::ctx::{exclusive, held, name, ticket};
use onelock_conformance::harness::Certificates;
use onelock_conformance::servers::zookeeper::{Setup, ZkServer};
use onelock_conformance::verdict::{Context as _, Verdict};
use onelock_conformance::{ensure, ensure_eq, expect};
use onelock_core::ErrorKind;
use rustls::crypto::{CryptoProvider, aws_lc_rs};

use crate::support::harness::open;

/// The store chooses no provider for the process: without one it says what to do, and the application's own is used.
#[tokio::test(flavor = "multi_thread")]
async fn the_provider_is_the_applications() -> Verdict {
    let certificates = Certificates::for_name()?;
    let files = certificates.files();
    let server = ZkServer::start(Setup { tls: Some(files.clone()), ..Setup::default() }).await?;
    let port = server.tls_port();
    let url = format!(
        "zks://localhost:{port}/own?tick=200ms&connect_timeout=20s&tls_ca={}",
        files.authority.display()
    );
    let error = expect!(open(&url).await, Err(error) => error, "TLS without a provider");
    ensure_eq!(error.kind(), ErrorKind::InvalidConfig, "TLS without a provider: {error}");
    ensure!(error.to_string().contains("install_default"), "what to do: {error}");
    ensure!(CryptoProvider::get_default().is_none(), "somebody else has chosen");
    ensure!(aws_lc_rs::default_provider().install_default().is_ok(), "the application's choice was refused");
    let chosen = Arc::clone(CryptoProvider::get_default().context("a provider")?);
    let client = open(&url).await?;
    let request = exclusive(&name("secret")?)?;
    let token = held(&client, &request).await?.token;
    client.release(&ticket(&request, token)).await?;
    let now = CryptoProvider::get_default().context("a provider")?;
    ensure!(Arc::ptr_eq(&chosen, now), "another provider was chosen");
    Ok(())
}
