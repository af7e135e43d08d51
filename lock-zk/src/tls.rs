//! TLS to the servers: the certificates, in the form the driver takes.

use std::path::PathBuf;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use onelock_core::{Host, Result};
use rustls::pki_types::ServerName;
use zookeeper_client as zk;

use crate::config::{ZkConfig, bad};
use crate::session::Servers;

/// Whether a certificate can be for this host. The driver panics when it has connected to another.
pub(crate) fn can_be_verified(host: &Host) -> bool {
    ServerName::try_from(&*host.host).is_ok()
}

/// Reads the files of TLS.
pub(crate) fn certificates(config: &ZkConfig) -> Result<Option<zk::TlsCerts>> {
    if !config.tls {
        return Ok(None);
    }
    // The driver takes rustls' default of the process, and panics where there is none and several are linked in. The
    // choice is the application's.
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        return Err(bad("TLS needs a cryptography provider of rustls, which the application chooses: call \
             rustls::crypto::ring::default_provider().install_default() before connecting, or another provider's"));
    }
    let read =
        |file: &PathBuf| std::fs::read_to_string(file).map_err(|e| bad(&format!("{}: {e}", file.display())));
    let ca = match &config.tls_ca {
        Some(file) => read(file)?,
        None => system_authorities()?,
    };
    let refused = |error: zk::Error| bad(&format!("the TLS files cannot be used: {error}"));
    let mut certs = zk::TlsCerts::builder().with_ca(zk::TlsCa::from_pem(&ca).map_err(refused)?);
    if let (Some(cert), Some(key)) = (&config.tls_cert, &config.tls_key) {
        let identity = zk::TlsIdentity::from_pem(&read(cert)?, &read(key)?);
        certs = certs.with_identity(identity.map_err(refused)?);
    }
    certs.build().map(Some).map_err(refused)
}

/// Reads them again, for the next connection of every session. Where they cannot be read, as by a process that has given up its rights
/// since, those of before stay.
pub(crate) async fn read_again(servers: &Servers) {
    let Some(tls) = &servers.tls else { return };
    let config = servers.config.clone();
    if let Ok(Ok(Some(certs))) = servers.runtime.spawn_blocking(move || certificates(&config)).await {
        tls.update(certs);
    }
}

/// The system's authorities, in the form the driver takes.
fn system_authorities() -> Result<String> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        return Err(bad("this system has no certificate authorities; name a file with tls_ca"));
    }
    Ok(found.certs.iter().map(|cert| pem(cert.as_ref())).collect())
}

fn pem(der: &[u8]) -> String {
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", BASE64_STANDARD.encode(der))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let chosen = rustls::crypto::ring::default_provider().install_default();
        assert!(chosen.is_ok(), "nobody else chooses in this process");
        let config = ZkConfig::from_url("zks://a?tls_ca=/nowhere/ca.pem".parse().unwrap()).unwrap();
        let missing = certificates(&config).unwrap_err();
        assert!(missing.to_string().contains("/nowhere/ca.pem"), "{missing}");
    }

    #[test]
    fn certificates_are_written_as_pem() {
        let text = pem(b"Many hands make light work.");
        assert!(text.contains("\nTWFueSBoYW5kcyBtYWtlIGxpZ2h0IHdvcmsu\n"), "{text}");
        assert!(pem(b"ab").contains("\nYWI=\n") && pem(b"a").contains("\nYQ==\n"));
    }
}
