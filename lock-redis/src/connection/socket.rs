//! Opens a connection to one server, from the configuration: address, socket options, TLS, credentials.

use std::sync::Arc;
use std::time::Duration;

use onelock_core::{Error, ErrorKind, Result};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

#[cfg(feature = "tls")]
use super::tls;
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

/// An open connection of the driver, and the task that writes and reads. The last clone ends both.
#[derive(Clone, Debug)]
pub(crate) struct Socket {
    pub(crate) requests: MultiplexedConnection,
    _task: Arc<Task>,
}

#[derive(Debug)]
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Connects to the server at `host`.
pub(crate) async fn open(
    config: &RedisConfig,
    host: &Host,
    role: Role,
    settings: AsyncConnectionConfig,
) -> Result<Socket> {
    // Without its own timeouts: callers have some that include the rest of the work.
    let settings = settings.set_connection_timeout(None).set_response_timeout(None);
    let credentials = credentials(config, role);
    let failed =
        |e: std::io::Error| Error::new(ErrorKind::Unavailable, format!("{host} cannot be reached: {e}"));
    #[cfg(feature = "tls")]
    if config.tls {
        // What its settings lack is told before any I/O.
        let connector = tls::connector(config)?;
        let stream = dial(host).await.map_err(failed)?;
        return speak(&credentials, tls::connect(connector, &host.host, stream).await?, settings).await;
    }
    speak(&credentials, dial(host).await.map_err(failed)?, settings).await
}

/// Says who asks, on a stream that is open.
async fn speak<S>(
    credentials: &RedisConnectionInfo,
    stream: S,
    settings: AsyncConnectionConfig,
) -> Result<Socket>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connected = MultiplexedConnection::new_with_config(credentials, stream, settings).await;
    let (requests, task) = connected.map_err(|e| error::from_redis(&e))?;
    Ok(Socket { requests, _task: Arc::new(Task(tokio::spawn(task).abort_handle())) })
}

fn credentials(config: &RedisConfig, role: Role) -> RedisConnectionInfo {
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
    settings
}

/// The first address of the host that answers.
async fn dial(host: &Host) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect((host.host.as_str(), host.port)).await?;
    stream.set_nodelay(true)?;
    // Both find a peer that vanished while nothing is sent; what is sent has its own timeout.
    let keepalive =
        socket2::TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5));
    let socket = socket2::SockRef::from(&stream);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(Duration::from_secs(20)))?;
    Ok(stream)
}
