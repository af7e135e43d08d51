//! TLS to a server, with a provider of cryptography that is passed explicitly: nothing is installed for the process.

use std::path::Path;
use std::sync::Arc;

use onelock_core::{Error, ErrorKind, Host, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::socket::{tcp, unreachable};
use crate::config::{RedisConfig, bad};

/// Speaks TLS on a new connection to `host`. What the settings lack is an error before any I/O.
pub(super) async fn connect(config: &RedisConfig, host: &Host) -> Result<TlsStream<TcpStream>> {
    let connector = connector(config)?;
    let name = ServerName::try_from(host.host.clone())
        .map_err(|_| bad(format!("{:?} is no name that a certificate can have", host.host)))?;
    let stream = tcp(host).await.map_err(|e| unreachable(host, &e))?;
    let connected = connector.connect(name, stream).await;
    connected.map_err(|e| Error::new(ErrorKind::Unavailable, format!("no TLS with the server: {e}")))
}

/// The settings of a new connection. The files are read each time, so that new certificates are used.
fn connector(config: &RedisConfig) -> Result<TlsConnector> {
    let provider = provider()?;
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| bad(format!("the provider of cryptography cannot be used: {e}")))?
        .with_root_certificates(authorities(config)?);
    let mut settings = match (&config.tls_cert, &config.tls_key) {
        (Some(cert), Some(key)) => {
            let key = PrivateKeyDer::from_pem_file(key).map_err(|e| unreadable(key, &e))?;
            builder
                .with_client_auth_cert(certificates(cert)?, key)
                .map_err(|e| bad(format!("tls_cert and tls_key cannot be used: {e}")))?
        }
        _ => builder.with_no_client_auth(),
    };
    if config.tls_insecure {
        settings.enable_sni = false;
        settings.dangerous().set_certificate_verifier(Arc::new(Anybody(provider)));
    }
    Ok(TlsConnector::from(Arc::new(settings)))
}

/// The application's, else one that was compiled in.
fn provider() -> Result<Arc<CryptoProvider>> {
    if let Some(installed) = CryptoProvider::get_default() {
        return Ok(Arc::clone(installed));
    }
    #[cfg(feature = "tls-ring")]
    return Ok(Arc::new(rustls::crypto::ring::default_provider()));
    #[cfg(all(feature = "tls-aws-lc", not(feature = "tls-ring")))]
    return Ok(Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    #[cfg(not(any(feature = "tls-ring", feature = "tls-aws-lc")))]
    Err(crate::config::no_tls("a provider of cryptography for TLS, where the application installs none,"))
}

fn authorities(config: &RedisConfig) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match &config.tls_ca {
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|e| unreadable(path, &e))?;
            }
        }
        // Some systems have one that cannot be read; the others still count.
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found: Vec<_> =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(|e| unreadable(path, &e))?;
    if found.is_empty() {
        return Err(bad(format!("{} has no certificate", path.display())));
    }
    Ok(found)
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> Error {
    bad(format!("{} cannot be read: {error}", path.display()))
}

/// Takes any certificate, whatever its issuer: the option `tls_insecure`.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

type Signed = Result<HandshakeSignatureValid, rustls::Error>;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(&self, _: &[u8], _: &CertificateDer<'_>, _: &DigitallySignedStruct) -> Signed {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(&self, _: &[u8], _: &CertificateDer<'_>, _: &DigitallySignedStruct) -> Signed {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
