//! Opens a connection to one server, from the configuration: address, socket options, TLS, credentials.

use std::sync::Arc;
use std::time::Duration;

use onelock_core::{Error, ErrorKind, Host, Result};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ProtocolVersion, RedisConnectionInfo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

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
    /// Empty where it is the driver that keeps and ends it.
    _task: Arc<JoinSet<()>>,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Connects to the server at `host`.
pub(crate) async fn open(
    config: &RedisConfig,
    host: &Host,
    role: Role,
    settings: AsyncConnectionConfig,
) -> Result<Socket> {
    // Without its own timeouts: callers have some that include the rest of the work.
    let settings = settings.set_connection_timeout(None).set_response_timeout(None);
    let failed = |e| error::from_redis(&e);
    let mut task = JoinSet::new();
    if let Some(client) = &config.client {
        let requests = by_client(client.get(), &settings).await.map_err(failed)?;
        return Ok(Socket { requests, _task: Arc::new(task) });
    }
    let credentials = credentials(config, role).await?;
    let stream = dial(config, host).await?;
    let connected = MultiplexedConnection::new_with_config(&credentials, stream, settings).await;
    let (requests, driver) = connected.map_err(failed)?;
    task.spawn(driver);
    Ok(Socket { requests, _task: Arc::new(task) })
}

/// Connects as the application's client does, but in the protocol in which pushes come.
async fn by_client(
    client: &Client,
    settings: &AsyncConnectionConfig,
) -> redis::RedisResult<MultiplexedConnection> {
    let info = client.get_connection_info().clone();
    let spoken = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let client = Client::open(info.set_redis_settings(spoken))?;
    client.get_multiplexed_async_connection_with_config(settings).await
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

/// The socket of this path, or the first address of the host that answers, with TLS where it is asked for.
#[cfg_attr(
    not(feature = "tls"),
    expect(unused_variables, reason = "without the feature TLS was refused before")
)]
async fn dial(config: &RedisConfig, host: &Host) -> Result<Box<dyn Stream>> {
    let failed =
        |e: std::io::Error| Error::new(ErrorKind::Unavailable, format!("{host} cannot be reached: {e}"));
    if host.is_socket() {
        #[cfg(unix)]
        return Ok(Box::new(tokio::net::UnixStream::connect(&host.host).await.map_err(failed)?));
        #[cfg(not(unix))]
        return Err(Error::new(ErrorKind::Unsupported, "this system has no Unix sockets"));
    }
    // What its settings lack is an error before any I/O.
    #[cfg(feature = "tls")]
    let connector = config.tls.then(|| tls::connector(config)).transpose()?;
    let stream = tcp(host).await.map_err(failed)?;
    #[cfg(feature = "tls")]
    if let Some(connector) = connector {
        return Ok(Box::new(tls::connect(connector, &host.host, stream).await?));
    }
    Ok(Box::new(stream))
}

async fn tcp(host: &Host) -> std::io::Result<TcpStream> {
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
