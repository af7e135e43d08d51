//! Opens a connection to one server, from the configuration: address, socket options, TLS, credentials.

use std::sync::Arc;
use std::time::Duration;

use onelock_core::{Error, ErrorKind, Host, Result};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ProtocolVersion, RedisConnectionInfo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

#[cfg(feature = "tls")]
use super::tls;
use crate::config::RedisConfig;
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
    /// `None` where it is the driver that keeps and ends it.
    _task: Option<Arc<Task>>,
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
    if let Some(client) = &config.client {
        return by_client(client.get(), &settings).await;
    }
    let credentials = credentials(config, role).await?;
    let failed =
        |e: std::io::Error| Error::new(ErrorKind::Unavailable, format!("{host} cannot be reached: {e}"));
    if host.is_socket() {
        return speak(&credentials, local(host).await.map_err(failed)?, settings).await;
    }
    #[cfg(feature = "tls")]
    if config.tls {
        // What its settings lack is an error before any I/O.
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
    Ok(Socket { requests, _task: Some(Arc::new(Task(tokio::spawn(task).abort_handle()))) })
}

/// Connects as the application's client does, but in the protocol in which pushes come.
async fn by_client(client: &Client, settings: &AsyncConnectionConfig) -> Result<Socket> {
    let info = client.get_connection_info().clone();
    let spoken = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let connected = async {
        let client = Client::open(info.set_redis_settings(spoken))?;
        client.get_multiplexed_async_connection_with_config(settings).await
    };
    Ok(Socket { requests: connected.await.map_err(|e| error::from_redis(&e))?, _task: None })
}

async fn credentials(config: &RedisConfig, role: Role) -> Result<RedisConnectionInfo> {
    let (database, username, password) = match (role, &config.credentials) {
        (Role::Locker, Some(callback)) => {
            // A part of the time for connecting, so that the error is the callback's.
            let (user, password) = callback.get(config.connect_timeout / 2).await?;
            let password = Some(password).filter(|password| !password.reveal().is_empty());
            (config.database, Some(user).filter(|user| !user.is_empty()), password)
        }
        (Role::Locker, None) => (config.database, config.username.clone(), config.password.clone()),
        (Role::Seeker, _) => (0, config.sentinel_username.clone(), config.sentinel_password.clone()),
    };
    let mut settings =
        RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_db(i64::from(database));
    if let Some(user) = username {
        settings = settings.set_username(user);
    }
    if let Some(password) = password {
        settings = settings.set_password(password.reveal());
    }
    Ok(settings)
}

#[cfg(unix)]
async fn local(host: &Host) -> std::io::Result<tokio::net::UnixStream> {
    tokio::net::UnixStream::connect(&host.host).await
}

#[cfg(not(unix))]
async fn local(_: &Host) -> std::io::Result<TcpStream> {
    Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "this system has no Unix sockets"))
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
