//! Opens a connection to one server, from the configuration: address, socket options, TLS, credentials.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use onelock_core::{Error, ErrorKind, Host, Result};
use redis::aio::{AsyncStream, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, ProtocolVersion, RedisConnectionInfo};
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::timeout;

#[cfg(feature = "tls")]
use super::tls;
use crate::config::RedisConfig;
use crate::error;

/// How long an address of a name may answer nothing before the next one is tried, too.
const HEAD_START: Duration = Duration::from_millis(250);

/// An open connection of the driver, and the task that writes and reads. The last clone ends both.
#[derive(Clone, Debug)]
pub(crate) struct Socket {
    pub(crate) requests: MultiplexedConnection,
    /// Empty where it is the driver that keeps and ends it.
    _task: Arc<JoinSet<()>>,
}

/// Connects to the server at `host`.
pub(crate) async fn open(
    config: &RedisConfig,
    host: &Host,
    settings: AsyncConnectionConfig,
) -> Result<Socket> {
    // Without its own timeouts: callers have some that include the rest of the work.
    let settings = settings.set_connection_timeout(None).set_response_timeout(None);
    let failed = |e| error::from_redis(&e);
    let mut task = JoinSet::new();
    let requests = if let Some(client) = &config.client {
        // As the application's client connects, but in the protocol in which pushes come.
        let info = client.get().get_connection_info().clone();
        let spoken = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.set_redis_settings(spoken)).map_err(failed)?;
        client.get_multiplexed_async_connection_with_config(&settings).await.map_err(failed)?
    } else {
        let credentials = credentials(config).await?;
        let stream: Pin<Box<dyn AsyncStream + Send>> = match config.tls {
            #[cfg(feature = "tls")]
            true => Box::pin(tls::connect(config, host).await?),
            #[cfg(unix)]
            _ if host.is_socket() => {
                Box::pin(UnixStream::connect(&host.host).await.map_err(|e| unreachable(host, &e))?)
            }
            #[cfg(not(unix))]
            _ if host.is_socket() => {
                return Err(Error::new(ErrorKind::Unsupported, "this system has no Unix sockets"));
            }
            _ => Box::pin(tcp(host).await.map_err(|e| unreachable(host, &e))?),
        };
        let connected = MultiplexedConnection::new_with_config(&credentials, stream, settings).await;
        let (requests, driver) = connected.map_err(failed)?;
        task.spawn(driver);
        requests
    };
    Ok(Socket { requests, _task: Arc::new(task) })
}

async fn credentials(config: &RedisConfig) -> Result<RedisConnectionInfo> {
    let (username, password) = match &config.credentials {
        Some(callback) => {
            // A part of the time for connecting, so that the error is the callback's.
            let (user, password) = callback.get(config.connect_timeout / 2).await?;
            let password = Some(password).filter(|password| !password.reveal().is_empty());
            (Some(user).filter(|user| !user.is_empty()), password)
        }
        None => (config.username.clone(), config.password.clone()),
    };
    let mut settings = RedisConnectionInfo::default()
        .set_protocol(ProtocolVersion::RESP3)
        .set_db(i64::from(config.database));
    if let Some(user) = username {
        settings = settings.set_username(user);
    }
    if let Some(password) = password {
        settings = settings.set_password(password.reveal());
    }
    Ok(settings)
}

pub(super) fn unreachable(host: &Host, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{host} cannot be reached: {error}"))
}

/// The first address of the host that answers.
pub(super) async fn tcp(host: &Host) -> std::io::Result<TcpStream> {
    let stream = first(lookup_host((host.host.as_str(), host.port)).await?).await?;
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

/// The address of a name that answers first. The next one is tried when one fails, or answers nothing for a moment: as where
/// IPv6 leads nowhere, it would use up the time of all (RFC 8305, section 5).
async fn first(mut addresses: impl Iterator<Item = SocketAddr>) -> std::io::Result<TcpStream> {
    let mut tries = FuturesUnordered::new();
    let mut failed = Err(std::io::ErrorKind::AddrNotAvailable.into());
    loop {
        tries.extend(addresses.next().map(TcpStream::connect));
        match timeout(HEAD_START, tries.next()).await {
            Ok(Some(Ok(stream))) => return Ok(stream),
            Ok(Some(tried)) => failed = tried,
            Ok(None) => return failed,
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use socket2::{Domain, Socket, Type};

    use super::*;

    #[tokio::test]
    async fn an_address_that_does_not_answer_keeps_no_other() {
        let listen = |backlog| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
            socket.listen(backlog).unwrap();
            let address = socket.local_addr().unwrap().as_socket().unwrap();
            (socket, address)
        };
        let ((_full, silent), (_there, good)) = (listen(0), listen(8));
        // It takes no more connections, and does not answer a request for one.
        let mut taken = Vec::new();
        while let Ok(stream) = std::net::TcpStream::connect_timeout(&silent, Duration::from_millis(300)) {
            taken.push(stream);
        }
        let refused = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let found = timeout(Duration::from_secs(30), first([silent, refused, good].into_iter()));
        assert_eq!(found.await.expect("one that answers").unwrap().peer_addr().unwrap(), good);
        assert!(first([refused].into_iter()).await.is_err() && first([].into_iter()).await.is_err());
    }
}
