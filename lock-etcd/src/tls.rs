//! TLS to the members: the certificates, and who does the cryptography.

use etcd_client::{Certificate, Identity, TlsOptions};
use onelock_core::Result;

use crate::config::{EtcdConfig, no_tls, read};

/// What the driver needs, where the configuration wants TLS. No I/O but that of the files.
pub(crate) async fn options(config: &EtcdConfig) -> Result<Option<TlsOptions>> {
    if !config.tls {
        return Ok(None);
    }
    provider()?;
    let mut options = TlsOptions::new();
    options = match &config.tls_ca {
        Some(file) => options.ca_certificate(Certificate::from_pem(read(file).await?)),
        None => options.with_native_roots(),
    };
    if let (Some(cert), Some(key)) = (&config.tls_cert, &config.tls_key) {
        options = options.identity(Identity::from_pem(read(cert).await?, read(key).await?));
    }
    if let Some(name) = &config.tls_name {
        options = options.domain_name(name.clone());
    }
    Ok(Some(options))
}

/// The driver takes the provider that the application has installed, else the one that was compiled in; without either it
/// would panic, or install one for the whole process.
fn provider() -> Result<()> {
    let any = cfg!(any(feature = "tls-ring", feature = "tls-aws-lc"));
    if any || rustls::crypto::CryptoProvider::get_default().is_some() {
        return Ok(());
    }
    let what = "a provider of cryptography for TLS, where the application installs none,";
    Err(no_tls(what))
}
