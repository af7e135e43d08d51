//! Stores that ask for a password, and stores behind TLS.

use std::path::Path;

use tempfile::TempDir;

use crate::servers::{data_folder, tls};
use crate::verdict::Verdict;

/// The password that a store of [`Store::with_password`](super::Store::with_password) asks for.
pub const PASSWORD: &str = "correct-h0rse-battery";
const WRONG: &str = "wr0ng-h0rse-battery";

/// What a store with a password gives.
pub struct Credentials {
    /// Keeps the server.
    pub keep: Box<dyn Send + Sync>,
    /// With the right password.
    pub good: String,
    /// With a wrong one.
    pub bad: String,
    /// What must never be printed.
    pub secrets: Vec<String>,
}

impl Credentials {
    /// Of a `server` that asks for [`PASSWORD`]; `url` is where a client finds it that has this password.
    pub fn of<S: Send + Sync + 'static>(server: S, url: impl Fn(&S, &str) -> String) -> Self {
        Self {
            good: url(&server, PASSWORD),
            bad: url(&server, WRONG),
            secrets: vec![PASSWORD.to_owned(), WRONG.to_owned()],
            keep: Box::new(server),
        }
    }
}

/// What a store behind TLS gives.
pub struct Tls {
    /// Keeps the server.
    pub keep: Box<dyn Send + Sync>,
    /// A URL that works.
    pub good: String,
    /// URLs that must be refused, and what is wrong with them.
    pub bad: Vec<(String, &'static str)>,
}

impl Tls {
    /// Of a `server` that shows the certificate of `certificates`. `url` is where a client finds it by the name of a host
    /// and with the last options: how long it may take to connect and then, unless it is to trust whom the system trusts,
    /// `option` (as in `&tls_ca=`) with the file of an authority.
    pub fn of<S: Send + Sync + 'static>(
        server: S,
        certificates: Certificates,
        option: &str,
        url: impl Fn(&S, &str, &str) -> String,
    ) -> Self {
        let (host, stranger) = certificates.hosts;
        let limit = "connect_timeout=2s";
        let trusting = |authority: &Path| format!("{option}{}", authority.display());
        let right = trusting(&certificates.right.authority);
        let other = trusting(&certificates.other.authority);
        // The first handshake of a server that others keep busy takes seconds.
        let patient = format!("connect_timeout=20s{right}");
        let (right, other) = (format!("{limit}{right}"), format!("{limit}{other}"));
        Self {
            good: url(&server, host, &patient),
            bad: vec![
                (url(&server, host, &other), "an authority that did not sign the certificate"),
                (url(&server, stranger, &right), "a host the certificate is not for"),
                (url(&server, host, limit), "an authority the system does not know"),
            ],
            keep: Box::new((server, certificates)),
        }
    }
}

/// A certificate for a host, by an authority that no system knows, and another such authority.
pub struct Certificates {
    right: tls::Files,
    other: tls::Files,
    /// The one it is for, and another name of the same host.
    hosts: (&'static str, &'static str),
    /// Keeps the files.
    _folder: TempDir,
}

impl Certificates {
    /// For this host by its name and not by its address.
    ///
    /// # Errors
    /// When they cannot be made or written.
    pub fn for_name() -> Verdict<Self> {
        Self::new(("localhost", "127.0.0.1"))
    }

    /// For this host by its address and not by its name: servers tell each other's addresses.
    ///
    /// # Errors
    /// When they cannot be made or written.
    pub fn for_address() -> Verdict<Self> {
        Self::new(("127.0.0.1", "localhost"))
    }

    fn new(hosts: (&'static str, &'static str)) -> Verdict<Self> {
        let folder = data_folder()?;
        Ok(Self {
            right: tls::authority(folder.path(), "right", hosts.0)?,
            other: tls::authority(folder.path(), "other", hosts.0)?,
            hosts,
            _folder: folder,
        })
    }

    /// What the server shows.
    #[must_use]
    pub fn files(&self) -> &tls::Files {
        &self.right
    }
}
