//! One session: calls that end, and since when the leader must know that the session lives.
//!
//! The leader ends a session that it has not heard of for the session's timeout. A follower reports which sessions it has
//! heard of only when the leader asks, twice in a tick. So an answered request does not prove that the leader has heard
//! of the session. Nor does a committed write: a leader that was stopped for longer than the timeout commits the writes
//! that waited for it, and ends the session a moment later.
//!
//! A lease therefore counts from a *beat*, a `sync`, which only the leader answers. A beat is proven for a write when
//!
//! - another beat was sent at least a tick after its answer, and has been answered. If the leader ran in between, it has
//!   asked the followers since and knows of the session;
//! - the write was sent at least a quarter of a tick after that second answer, and was committed. If the leader was
//!   stopped in between, it has ended the session by then or knows of it.
//!
//! A new leader starts the time of every session anew, so a write that it commits proves no less.

use std::future::Future;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures_util::join;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use onelock_core::toolkit::{Flights, Mutex};
use onelock_core::{Clock, Error, ErrorKind, Release, Result, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use zookeeper_client as zk;

use crate::batch::{Batch, Write, Written, barrier};
use crate::config::ZkConfig;
use crate::contact::{BEATS, Beat, Contact, capacity};
use crate::epoch::Epochs;
use crate::error::failed;

/// The most bytes that the paths of a session's nodes have. At a session's end the server writes one record with all of
/// them, and no server reads a record of two megabytes back: it would never start again (ZOOKEEPER-4306). And the driver, where
/// the paths that it watches take a second request when it connects again, takes the second answer for an error: from 128 KiB on
/// no connection would stand. A waiter watches one path, which is little more than a third longer than its own at most.
const MOST_PATHS: usize = 100_000;

/// How many tries to open a session begin, of several servers, in the time for it while none has ended. One that the driver gives up
/// begins another.
const TRIES: u32 = 8;

/// How to reach the servers, and what every session needs.
pub(crate) struct Servers {
    pub(crate) config: ZkConfig,
    /// The path above all names; empty for the root.
    pub(crate) base: String,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) runtime: Handle,
    #[cfg(feature = "zk-tls")]
    pub(crate) tls: Option<zk::TlsDynamicCerts>,
    /// Whether there is one server only, which then knows everything there is to know.
    pub(crate) standalone: OnceLock<bool>,
}

impl Servers {
    /// The access list of everything this client creates.
    pub(crate) fn acls(&self) -> zk::Acls<'static> {
        if self.config.password.is_some() { zk::Acls::creator_all() } else { zk::Acls::anyone_all() }
    }

    /// The node above all names.
    pub(crate) fn root(&self) -> &str {
        if self.base.is_empty() { "/" } else { &self.base }
    }

    async fn connect(&self, ask: Duration) -> Result<zk::Client, zk::Error> {
        // A connection that says nothing for so long is given up. The driver's own limit, two fifths of the session, is far too
        // long for long sessions. Where there are other servers several may be tried within a lease, and the driver, which takes them
        // in any order, may come upon one that stalls four times in a row.
        let mut silence = self.config.request_timeout;
        if self.config.hosts.len() > 1 {
            silence = silence.min((ask / 12).max(Duration::from_secs(1)));
        }
        let connector = zk::Client::connector().with_session_timeout(ask);
        let mut connector = connector.with_connection_timeout(silence.min(ask * 2 / 5));
        if let (Some(user), Some(password)) = (&self.config.username, &self.config.password) {
            connector = connector.with_auth("digest", format!("{user}:{}", password.reveal()).as_bytes());
        }
        let cluster = self.config.cluster();
        #[cfg(feature = "zk-tls")]
        if let Some(tls) = &self.tls {
            let options = zk::TlsOptions::new().with_certs(tls.clone());
            return connector.with_tls(options).secure_connect(&cluster).await;
        }
        connector.connect(&cluster).await
    }
}

/// A session, and room in it for the path of a node, which is given back when it is dropped.
pub(crate) type Room = (Arc<Session>, OwnedSemaphorePermit);

/// A session and its connection.
pub(crate) struct Session {
    pub(crate) servers: Arc<Servers>,
    /// Nothing once it is closed.
    client: Mutex<Option<Arc<zk::Client>>>,
    /// The timeout that was asked for.
    pub(crate) ask: Duration,
    /// What the server gave.
    pub(crate) timeout: Duration,
    contact: Mutex<Contact>,
    /// Of so many bytes of paths as its nodes may still have.
    room: Arc<Semaphore>,
    /// What it knows of token epochs.
    pub(crate) epochs: Epochs,
    /// Its writes that share requests.
    batch: Batch,
    /// Listings under way, by path.
    listings: Flights<String, Result<(Vec<String>, i64)>>,
}

impl Session {
    /// Opens a session with at least this timeout, if the server gives so much; it may give more or less.
    pub(crate) async fn open(servers: &Arc<Servers>, ask: Duration) -> Result<Arc<Self>> {
        #[cfg(feature = "zk-tls")]
        crate::tls::read_again(servers).await;
        let sent = servers.clock.now();
        let (limit, address) = (servers.config.connect_timeout, servers.config.address());
        let pause = if servers.config.hosts.len() > 1 { limit / TRIES } else { limit };
        let connect = async {
            let mut tries = FuturesUnordered::new();
            loop {
                // Each takes the servers in an order of its own, and one that does not answer takes all of its time.
                tries.push(servers.connect(ask));
                match tokio::time::timeout(pause, tries.next()).await {
                    // The driver gives up after the session's timeout, which may be a short one.
                    Err(_) | Ok(None | Some(Err(zk::Error::Timeout))) => {}
                    Ok(Some(other)) => return other,
                }
            }
        };
        let client = match tokio::time::timeout(limit, connect).await {
            Ok(Ok(client)) => client,
            Err(_) => {
                let text = format!("no server of {address} gave a session within {limit:?}");
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            Ok(Err(error)) => return Err(failed(error, "open a session at", &address)),
        };
        let session = Arc::new(Self {
            ask,
            timeout: client.session_timeout(),
            contact: Mutex::new(Contact::new(sent, servers.config.tick)),
            room: Arc::new(Semaphore::new(MOST_PATHS)),
            epochs: Epochs::default(),
            batch: Batch::new(&servers.runtime),
            listings: Flights::default(),
            client: Mutex::new(Some(Arc::new(client))),
            servers: Arc::clone(servers),
        });
        servers.runtime.spawn(beat(Arc::downgrade(&session), session.timeout));
        Ok(session)
    }

    /// The longest lease, lock-delay included, that this session can carry.
    pub(crate) fn capacity(&self) -> Duration {
        capacity(self.timeout, self.servers.config.tick)
    }

    /// Whether it is over, as far as this client knows.
    pub(crate) fn is_over(&self) -> bool {
        self.handle().map_or(true, |client| client.state().is_terminated())
    }

    /// The driver's handle.
    pub(crate) fn handle(&self) -> Result<Arc<zk::Client>, zk::Error> {
        self.client.lock().clone().ok_or(zk::Error::ClientClosed)
    }

    /// The same once it is connected. Without a connection the driver keeps what it is asked for, however long, and sends it then,
    /// though nobody waits for it any more.
    pub(crate) async fn client(&self) -> Result<Arc<zk::Client>, zk::Error> {
        reaches(self.handle()?.state_watcher(), |state| state != zk::SessionState::Disconnected).await;
        self.handle()
    }

    /// Waits for the answer to a request, but not for ever.
    pub(crate) async fn ask<T>(
        &self,
        call: impl Future<Output = Result<T, zk::Error>>,
    ) -> Result<T, zk::Error> {
        let answer = tokio::time::timeout(self.servers.config.request_timeout, call).await;
        answer.unwrap_or(Err(zk::Error::Timeout))
    }

    /// The children of a node, and the transaction that was the last to add or remove one; none and 0 without the node.
    pub(crate) async fn children(&self, path: &str) -> Result<(Vec<String>, i64)> {
        match self.ask(async { self.client().await?.get_children(path).await }).await {
            Ok((children, stat)) => Ok((children, stat.pzxid)),
            Err(zk::Error::NoNode) => Ok((Vec::new(), 0)),
            Err(error) => Err(failed(error, "list", path)),
        }
    }

    /// The same, with everything that any server has answered, and behind every request of this session. Those who ask
    /// while an answer is under way share the next: what many failed joins have left is looked for once.
    pub(crate) async fn latest_children(self: &Arc<Self>, path: &str) -> Result<(Vec<String>, i64)> {
        let listing = self.listings.of(path.to_owned());
        let list = || {
            let (session, path) = (Arc::clone(self), path.to_owned());
            async move {
                // A single server answers what it knows.
                if session.servers.standalone.get() == Some(&true) {
                    return session.children(&path).await;
                }
                let fail = |error| failed(error, "list", &path);
                let client = session.ask(session.client()).await.map_err(fail)?;
                // One after the other on one connection: the listing is no older than the answer to the first. Nor is it on the next
                // connection, where a server that knows less than was answered before is not taken.
                let (passed, children) = join!(session.ask(barrier(&client)), session.children(&path));
                passed.map_err(fail).and(children)
            }
        };
        let gone = || Err(failed(zk::Error::ClientClosed, "list", path));
        listing.join_next(&self.servers.runtime, list).await.unwrap_or_else(gone)
    }

    /// A node; `None` when it is not there.
    pub(crate) async fn stat(&self, path: &str) -> Result<Option<zk::Stat>> {
        let found = self.ask(async { self.client().await?.check_stat(path).await });
        found.await.map_err(|error| failed(error, "read", path))
    }

    /// What a node holds.
    pub(crate) async fn data(&self, path: &str) -> Result<(Vec<u8>, zk::Stat), zk::Error> {
        self.ask(async { self.client().await?.get_data(path).await }).await
    }

    /// Deletes the node of an entry.
    pub(crate) async fn delete(&self, path: &str) -> Result<Release> {
        match self.ask(async { self.client().await?.delete(path, None).await }).await {
            Ok(()) => Ok(Release::Released),
            Err(zk::Error::NoNode) => Ok(Release::NotHeld),
            Err(error) => Err(failed(error, "delete", path)),
        }
    }

    /// Does a write, in a request that others may share, for `doing` something at `path`: what it did, or which step could not be
    /// done and why.
    pub(crate) async fn write(&self, write: Write, doing: &str, path: &str) -> Result<Written> {
        let done = self.ask(async { self.batch.write(self.client().await?, write).await });
        done.await.map_err(|error| failed(error, doing, path))
    }

    /// How long after `sent` the session lives at least, given that a write sent then was committed.
    pub(crate) fn lasts(&self, sent: Timestamp) -> Duration {
        (self.contact.lock().alive(sent) + self.timeout).saturating_since(sent)
    }

    /// Waits until a write that is sent now would prove enough for a lease of the session's whole capacity.
    pub(crate) async fn fresh(&self) -> Result<()> {
        // After a disconnection, or a leader that was stopped: a beat, one that proves it, and a quarter of a tick, three times.
        for _ in 0..12 {
            if self.lasts(self.servers.clock.now()) >= self.capacity() {
                return Ok(());
            }
            self.beat().await.map_err(|error| failed(error, "reach", &self.servers.config.address()))?;
            tokio::time::sleep(self.servers.config.tick * 3 / 8).await;
        }
        Err(too_slow())
    }

    /// Asks the leader for a sign of life, which costs no right and no disk.
    async fn beat(&self) -> Result<(), zk::Error> {
        let client = self.ask(self.client()).await?;
        let sent = self.servers.clock.now();
        self.ask(client.sync(self.servers.root())).await?;
        self.contact.lock().beat(Beat { sent, answered: self.servers.clock.now() });
        Ok(())
    }

    /// Takes room for a node whose path has so many bytes; nothing when the session is full.
    pub(crate) fn take(self: &Arc<Self>, bytes: u32) -> Option<Room> {
        Some((Arc::clone(self), Arc::clone(&self.room).try_acquire_many_owned(bytes).ok()?))
    }

    /// Ends the session, and with it all its nodes. Gives up after the request timeout: the server does it then when
    /// the session's time is over.
    pub(crate) async fn close(&self) {
        let Some(client) = self.client.lock().take() else { return };
        let over = reaches(client.state_watcher(), zk::SessionState::is_terminated);
        drop(client);
        let _ = tokio::time::timeout(self.servers.config.request_timeout, over).await;
    }
}

/// Waits until the connection is in such a state.
async fn reaches(mut connection: zk::StateWatcher, wanted: impl Fn(zk::SessionState) -> bool) {
    while !wanted(connection.peek_state()) {
        connection.changed().await;
    }
}

/// What a lease is refused with that the beats do not carry.
pub(crate) fn too_slow() -> Error {
    Error::new(ErrorKind::Unavailable, "the contact to the server is too slow for the lease")
}

/// Sends a beat twice in a tenth of the timeout.
async fn beat(session: Weak<Session>, timeout: Duration) {
    let pause = (timeout / BEATS / 2).max(Duration::from_millis(1));
    loop {
        tokio::time::sleep(pause).await;
        let Some(session) = session.upgrade() else { return };
        if session.is_over() {
            return;
        }
        // On its own: the next one does not wait for the answer to this one. What goes wrong shows where it matters, in
        // the lease of the next renewal.
        let runtime = session.servers.runtime.clone();
        #[cfg(feature = "zk-tls")]
        if session.handle().is_ok_and(|client| client.state() == zk::SessionState::Disconnected) {
            // The driver connects again with the certificates that it has, which may have ended.
            let servers = Arc::clone(&session.servers);
            runtime.spawn(async move { crate::tls::read_again(&servers).await });
        }
        runtime.spawn(async move { session.beat().await });
    }
}
