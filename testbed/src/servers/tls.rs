//! A throw-away authority and certificates under it.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::verdict::Verdict;

/// The PEM files of an authority, and of a server's certificate for one host.
#[derive(Clone, Debug)]
pub struct Files {
    /// The authority's certificate.
    pub authority: PathBuf,
    /// The server's certificate.
    pub certificate: PathBuf,
    /// The server's key.
    pub key: PathBuf,
}

/// Makes an authority and a certificate for `host`, as files in `folder` that start with `label`.
///
/// # Errors
/// When they cannot be made or written.
pub fn authority(folder: &Path, label: &str, host: &str) -> Verdict<Files> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, format!("onelock {label}"));
    let key = KeyPair::generate()?;
    let own = params.self_signed(&key)?;
    let issuer = Issuer::new(params, key);
    let server_key = KeyPair::generate()?;
    let server = CertificateParams::new(vec![host.to_owned()])?.signed_by(&server_key, &issuer)?;
    let file = |part: &str| folder.join(format!("{label}-{part}.pem"));
    let files = Files { authority: file("ca"), certificate: file("cert"), key: file("key") };
    std::fs::write(&files.authority, own.pem())?;
    std::fs::write(&files.certificate, server.pem())?;
    std::fs::write(&files.key, server_key.serialize_pem())?;
    Ok(files)
}
