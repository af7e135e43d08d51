//! The connection to the cluster: one endpoint is used at a time, and the next takes over when it fails.
//!
//! The driver would spread requests over all endpoints and does not leave out one that has stopped answering, so every
//! endpoint has a client of its own here.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use etcd_client::proto::PbTxnResponse;
use etcd_client::{Client, ConnectOptions, KvClient, Txn};
use onelock_core::toolkit::{Mutex, SingleFlight};
use onelock_core::{Error, ErrorKind, Result};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::config::{EtcdConfig, read};
use crate::error::{Failure, OLD, failure, is_unasked};

/// Idle time before a connection with open streams is asked for a sign of life. etcd refuses clients that ask more
/// often than every five seconds.
const PING_EVERY: Duration = Duration::from_secs(6);

/// How many joins, and how many readings of waiters, are under way at once. A thousand that are sent at once keep a busy server from
/// answering any of it in time.
const TURNS: usize = 128;

/// The largest answer that is read: a line of some hundred thousand entries.
const LARGEST_ANSWER: usize = 64 << 20;

/// How many readings go into one transaction: as many operations as etcd takes by default.
const READINGS: usize = 128;

#[derive(Default)]
struct Endpoint {
    /// Shared, because to clone a driver's client is to clone one for each service of etcd.
    client: Mutex<Option<Arc<Client>>>,
    connecting: SingleFlight<Result<Arc<Client>, Failure>>,
}

pub(crate) struct Cluster {
    /// Where the work of this client is done.
    pub(crate) runtime: Handle,
    config: EtcdConfig,
    endpoints: Vec<Endpoint>,
    /// The endpoint in use; `None` once closed.
    pub(crate) current: watch::Sender<Option<usize>>,
    /// How many readings go into one transaction: fewer once the server has refused so many.
    pub(crate) batch: AtomicUsize,
    /// The right to send a join.
    pub(crate) joins: Arc<Semaphore>,
    /// The right to send a waiter's read: the next in line does not wait for joins.
    pub(crate) readings: Arc<Semaphore>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("address", &self.config.address()).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Sees that the certificates and the password can be read; connects to nobody yet. It will, on `runtime`.
    pub(crate) async fn new(config: EtcdConfig, runtime: Handle) -> Result<Arc<Self>> {
        config.check()?;
        if let Some(file) = &config.password_file {
            read(file).await?;
        }
        #[cfg(feature = "tls")]
        crate::tls::options(&config).await?;
        // Clients begin at different endpoints, so that they share the work.
        let random = getrandom::u32().unwrap_or_default();
        let current = usize::try_from(random).unwrap_or_default() % config.hosts.len();
        Ok(Arc::new(Self {
            runtime,
            endpoints: config.hosts.iter().map(|_| Endpoint::default()).collect(),
            config,
            current: watch::Sender::new(Some(current)),
            batch: AtomicUsize::new(READINGS),
            joins: Arc::new(Semaphore::new(TURNS)),
            readings: Arc::new(Semaphore::new(TURNS)),
        }))
    }

    /// The endpoint in use, unless this client is closed.
    pub(crate) fn current(&self) -> Result<usize> {
        self.current.borrow().ok_or_else(closed)
    }

    /// How long one try may take, so that others can follow within the time for the whole request.
    pub(crate) fn try_time(&self) -> Duration {
        let parts = u32::try_from(self.config.hosts.len().min(3)).unwrap_or(1);
        self.config.request_timeout / parts
    }

    /// How long connecting and one try may take together.
    pub(crate) fn connect_time(&self) -> Duration {
        self.config.connect_timeout + self.try_time()
    }

    pub(crate) fn close(&self) {
        self.current.send_replace(None);
        for endpoint in &self.endpoints {
            endpoint.client.lock().take();
        }
    }

    /// The client of an endpoint.
    pub(crate) async fn client(self: &Arc<Self>, at: usize) -> Result<Arc<Client>, Failure> {
        let known = self.endpoints[at].client.lock().clone();
        if let Some(client) = known {
            return Ok(client);
        }
        let connected = self.endpoints[at].connecting.join(&self.runtime, || {
            let this = Arc::clone(self);
            async move {
                let client = this.connect(at).await?;
                let mut known = this.endpoints[at].client.lock();
                this.current()?;
                Ok(Arc::clone(known.insert(client)))
            }
        });
        connected.await.unwrap_or_else(|| Err(runtime_gone().into()))
    }

    /// The user and the password as it is now.
    async fn credentials(&self) -> Result<Option<(String, String)>> {
        if let Some(callback) = &self.config.credentials {
            // A part of the time for connecting, so that the error is the callback's.
            let (user, password) = callback.get(self.config.connect_timeout / 2).await?;
            return Ok(Some((user, password.reveal().to_owned())));
        }
        let Some(user) = self.config.username.clone() else { return Ok(None) };
        let password = match (&self.config.password, &self.config.password_file) {
            (Some(password), _) => password.reveal().to_owned(),
            (None, Some(file)) => {
                read(file).await.map_err(exchanged)?.trim_end_matches(['\r', '\n']).to_owned()
            }
            (None, None) => return Ok(None),
        };
        Ok(Some((user, password)))
    }

    async fn connect(&self, at: usize) -> Result<Arc<Client>, Failure> {
        let user = self.credentials().await?;
        #[cfg_attr(not(feature = "tls"), expect(unused_mut))]
        let mut options = self.options();
        #[cfg(feature = "tls")]
        if let Some(tls) = crate::tls::options(&self.config).await.map_err(exchanged)? {
            options = options.with_tls(tls);
        }
        // The driver's own limit is for the connection, and not for the login on it.
        let limit = self.config.connect_timeout + self.config.request_timeout;
        let connected = async {
            let mut client = match &self.config.client {
                Some(given) => given.get().clone(),
                None => {
                    let tls = if self.config.tls { "s" } else { "" };
                    Client::connect([format!("http{tls}://{}", self.config.hosts[at])], Some(options)).await?
                }
            };
            if user.is_some()
                && let Err(error) = client.update_user(user).await
            {
                if !is_unasked(&error) {
                    return Err(error);
                }
                // An application's client shares its token, which is not good any more.
                client.update_user(None).await?;
            }
            Ok(client)
        };
        match timeout(limit, connected).await {
            Ok(client) => client.map(Arc::new).map_err(|error| self.failure(error)),
            Err(_) => Err(Self::late(limit).into()),
        }
    }

    fn options(&self) -> ConnectOptions {
        ConnectOptions::new()
            .with_connect_timeout(self.config.connect_timeout)
            .with_keep_alive(PING_EVERY, self.config.connect_timeout.min(self.config.request_timeout))
            .with_keep_alive_while_idle(false)
            .with_require_leader(true)
    }

    /// Leaves what has failed, so that the next try does better: a client whose token is not good any more, or an endpoint.
    pub(crate) fn leave(&self, at: usize, client: Option<&Arc<Client>>, failure: Failure) -> Failure {
        match failure {
            // A user known by a certificate has no token: users or roles have changed while the request was under way.
            Failure::StaleToken(text)
                if self.config.username.is_some()
                    || self.config.credentials.is_some()
                    || (self.config.client.is_none() && OLD.iter().any(|old| text.contains(old))) =>
            {
                self.forget(at, client);
                Error::new(ErrorKind::Unavailable, text).unsent().into()
            }
            Failure::Other(error) => {
                if error.is_retryable() {
                    // The driver tries to connect again with the certificates that it has, which may have ended.
                    if self.config.tls && error.to_string().contains("transport") {
                        self.forget(at, client);
                    }
                    self.fail_over(at);
                }
                error.into()
            }
            failure => failure,
        }
    }

    /// Connects anew for the next request, unless somebody has meanwhile.
    fn forget(&self, at: usize, client: Option<&Arc<Client>>) {
        let mut known = self.endpoints[at].client.lock();
        known.take_if(|known| client.is_some_and(|client| Arc::ptr_eq(client, known)));
    }

    /// Reads an error of the driver.
    pub(crate) fn failure(&self, error: etcd_client::Error) -> Failure {
        failure(error, &self.config.namespace)
    }

    pub(crate) fn late(limit: Duration) -> Error {
        Error::new(ErrorKind::Timeout, format!("etcd did not answer within {limit:?}"))
    }

    /// Goes over to the next endpoint, unless somebody did already.
    pub(crate) fn fail_over(&self, at: usize) {
        let next = (at + 1) % self.config.hosts.len();
        self.current.send_if_modified(|current| {
            let moves = *current == Some(at) && next != at;
            if moves {
                *current = Some(next);
            }
            moves
        });
    }

    /// Sends a transaction in its turn, and says whether an earlier try may have done it. In a task of its own, so that a caller
    /// that nobody polls keeps no turn; it is aborted when the caller is dropped.
    pub(crate) async fn send_in_turn(
        self: &Arc<Self>,
        turns: &Arc<Semaphore>,
        txn: Txn,
    ) -> (Result<PbTxnResponse, Failure>, bool) {
        let (this, turns, mut task) = (Arc::clone(self), Arc::clone(turns), JoinSet::new());
        let send = async move {
            let _turn = turns.acquire().await;
            let mut unclear = false;
            let answer = this.send(&txn, &mut unclear).await;
            (answer, unclear)
        };
        task.spawn_on(send, &self.runtime);
        let answered = task.join_next().await.and_then(std::result::Result::ok);
        // Only the end of the runtime ends the task.
        answered.unwrap_or_else(|| (Err(runtime_gone().into()), true))
    }

    /// Sends a transaction. It may be sent again; `unclear` becomes true when an earlier try may have done it.
    pub(crate) async fn send(
        self: &Arc<Self>,
        txn: &Txn,
        unclear: &mut bool,
    ) -> Result<PbTxnResponse, Failure> {
        let call = |client: Arc<Client>| {
            let txn = txn.clone();
            async move { kv(&client).txn(txn).await }
        };
        Ok(self.request(unclear, call).await?.0)
    }

    /// A request that may be made more than once; `unclear` becomes true when a try that failed may have been done. An endpoint
    /// that fails is left.
    pub(crate) async fn request<T, F>(
        self: &Arc<Self>,
        unclear: &mut bool,
        call: impl Fn(Arc<Client>) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>> + Send,
    {
        let ends = Instant::now() + self.config.request_timeout;
        let (mut tries, mut pause) = (self.config.hosts.len().max(2), Duration::from_millis(10));
        loop {
            let limit = self.try_time().min(ends.saturating_duration_since(Instant::now()));
            let (at, mut client) = (self.current()?, None);
            // In a place of its own: the driver's calls are large, and a caller keeps room for the largest it may ever make.
            let work = Box::pin(async {
                let client = client.insert(self.client(at).await?);
                call(Arc::clone(client)).await.map_err(|error| self.failure(error))
            });
            let answer = timeout(limit, work).await.unwrap_or_else(|_| Err(Self::late(limit).into()));
            let Err(failure) = answer else { return answer };
            let failure = self.leave(at, client.as_ref(), failure);
            let Failure::Other(error) = &failure else { return Err(failure) };
            *unclear |= error.is_unclear();
            tries -= 1;
            if !error.is_retryable() || tries == 0 || Instant::now() + pause >= ends {
                return Err(failure);
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }
}

pub(crate) fn kv(client: &Client) -> KvClient {
    client.kv_client().max_decoding_message_size(LARGEST_ANSWER)
}

/// A file that could be read when the client was made is being exchanged.
fn exchanged(error: Error) -> Error {
    Error::new(ErrorKind::Unavailable, error.to_string()).unsent()
}

pub(crate) fn runtime_gone() -> Error {
    Error::new(ErrorKind::Closed, "the runtime this client was made in is gone")
}

pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "this etcd client has been closed")
}
