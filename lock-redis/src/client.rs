//! The driver's client for one server, from the configuration: address, TLS, credentials, socket options.

use std::time::Duration;

use lock_core::{Error, ErrorKind, Result};
use redis::io::tcp::TcpSettings;
use redis::{Client, ConnectionAddr, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo};

use crate::config::{Host, RedisConfig};
use crate::error;

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    /// A user of locks, of a server that keeps them.
    Locker,
    /// Somebody who looks for the master, of a sentinel.
    Seeker,
}

/// The driver's client of the server at `host`: it connects to nothing yet.
pub(crate) fn new(config: &RedisConfig, host: &Host, role: Role) -> Result<Client> {
    let (host, port) = (host.host.clone(), host.port);
    let addr = if config.tls {
        // Several crates may bring a provider of cryptography; without a choice the driver would panic.
        let _already_chosen = rustls::crypto::ring::default_provider().install_default();
        ConnectionAddr::TcpTls { host, port, insecure: config.tls_insecure, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    };
    // Both find a peer that vanished while nothing is sent; what is sent has its own timeout.
    let keepalive =
        socket2::TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5));
    let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(Duration::from_secs(20));
    let (database, username, password) = match role {
        Role::Locker => (config.database, &config.username, &config.password),
        Role::Seeker => (0, &config.sentinel_username, &config.sentinel_password),
    };
    let mut settings =
        RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_db(i64::from(database));
    if let Some(user) = username {
        settings = settings.set_username(user);
    }
    if let Some(password) = password {
        settings = settings.set_password(password.reveal());
    }
    let broken = |e: &redis::RedisError| {
        Error::new(ErrorKind::InvalidConfig, format!("the connection cannot be set up: {e}"))
    };
    let info = addr.into_connection_info().map_err(|e| broken(&e))?;
    let info = info.set_tcp_settings(tcp).set_redis_settings(settings);
    if config.tls_ca.is_none() && config.tls_cert.is_none() {
        return Client::open(info).map_err(|e| error::from_redis(&e));
    }
    let read = |path: &std::path::Path| {
        std::fs::read(path).map_err(|e| {
            Error::new(ErrorKind::InvalidConfig, format!("{} cannot be read: {e}", path.display()))
        })
    };
    let root_cert = config.tls_ca.as_deref().map(read).transpose()?;
    let client_tls = match (&config.tls_cert, &config.tls_key) {
        (Some(cert), Some(key)) => {
            Some(redis::ClientTlsConfig { client_cert: read(cert)?, client_key: read(key)? })
        }
        _ => None,
    };
    Client::build_with_tls(info, redis::TlsCertificates { client_tls, root_cert }).map_err(|e| broken(&e))
}
