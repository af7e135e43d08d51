//! TLS in an application that has a cryptography provider of its own.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use onelock_conformance::ctx::{exclusive, held, leased, name, renewal, ticket};
use onelock_conformance::servers::zookeeper::{Setup, ZkServer};
use onelock_conformance::servers::{data_folder, tls};
use onelock_conformance::verdict::{Context as _, Verdict};
use onelock_conformance::{ensure, ensure_eq, expect};
use onelock_core::{Backend, ErrorKind, Renewed};
use rustls::crypto::{CryptoProvider, aws_lc_rs};

use crate::eventually;
use crate::support::harness::open;

/// The store chooses no provider for the process: without one it says what to do, and the application's own is used.
#[tokio::test(flavor = "multi_thread")]
async fn the_provider_is_the_applications() -> Verdict {
    let folder = data_folder()?;
    let files = tls::authority(folder.path(), "server", "localhost")?;
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
    // This process has a provider now.
    exchanged_certificates_are_read_again(folder.path(), &server, &client).await
}

/// The authority is exchanged, and what it has certified: sessions go on, and others are opened.
async fn exchanged_certificates_are_read_again(
    folder: &Path,
    server: &ZkServer,
    client: &Arc<dyn Backend>,
) -> Verdict {
    let kept = leased(exclusive(&name("kept")?)?, Duration::from_secs(60));
    let token = held(client, &kept).await?.token;
    tls::authority(folder, "server", "localhost")?;
    server.restart().await?;
    let renewed = eventually("its session goes on", async || {
        Ok(client.renew(&[renewal(&kept, token)]).await.pop().and_then(Result::ok))
    });
    expect!(renewed.await?, Renewed::Held(_) => (), "what is held");
    held(client, &leased(exclusive(&name("next")?)?, kept.lease * 2)).await?;
    Ok(())
}
