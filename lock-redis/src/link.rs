//! The connection: one socket for requests and pushes, replaced when it fails or does not answer.
//!
//! It speaks RESP3, so the inbox is subscribed on the very connection that carries the requests. A grant can then
//! never come on a connection that is not there yet, the two cannot fail apart, and a client needs one socket. A new
//! connection subscribes before it is used; whatever was published in between is made good by asking again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use lock_core::{Error, ErrorKind, Result};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, PushInfo, PushKind, Value};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::config::RedisConfig;
use crate::error;
use crate::inbox::{Inbox, closed, lock};
use crate::scripts::{self, Script};

/// The wait after the first failed attempt to connect; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct Link {
    client: Client,
    connect_timeout: Duration,
    request_timeout: Duration,
    inbox: Arc<Inbox>,
    live: Mutex<Option<Live>>,
    connections: AtomicU64,
    /// Held by the one caller that connects; what it knows of failed attempts.
    connecting: tokio::sync::Mutex<Pause>,
    reviving: AtomicBool,
    closed: AtomicBool,
    this: Weak<Link>,
}

/// A connection in use, and which one it is.
#[derive(Clone)]
struct Live {
    connection: MultiplexedConnection,
    number: u64,
}

#[derive(Default)]
struct Pause {
    length: Duration,
    until: Option<Instant>,
}

impl Link {
    pub(crate) fn new(config: &RedisConfig, client: Client, inbox: Arc<Inbox>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            client,
            connect_timeout: config.connect_timeout,
            request_timeout: config.request_timeout,
            inbox,
            live: Mutex::new(None),
            connections: AtomicU64::new(0),
            connecting: tokio::sync::Mutex::default(),
            reviving: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            this: this.clone(),
        })
    }

    /// Calls one script: one round trip, two when the server has forgotten its scripts.
    pub(crate) async fn call(&self, script: &'static Script, command: &Cmd) -> Result<Value> {
        let live = self.live().await?;
        let answer = self.send(&live, command).await?;
        match answer {
            Value::ServerError(e) if error::is_no_script(&e) => {
                let mut pipeline = Pipeline::with_capacity(2);
                pipeline.add_command(script.load()).add_command(command.clone());
                let mut answers = self.send_all(&live, &pipeline).await?;
                self.checked(&live, answers.pop().unwrap_or(Value::Nil))
            }
            answer => self.checked(&live, answer),
        }
    }

    /// Calls one script several times in one round trip; each call has its own answer.
    pub(crate) async fn call_all(
        &self,
        script: &'static Script,
        commands: Vec<Cmd>,
    ) -> Result<Vec<Result<Value>>> {
        let live = self.live().await?;
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in &commands {
            pipeline.add_command(command.clone());
        }
        let mut answers = self.send_all(&live, &pipeline).await?;
        let forgotten = |answer: &Value| matches!(answer, Value::ServerError(e) if error::is_no_script(e));
        let missed: Vec<_> = (0..answers.len()).filter(|i| forgotten(&answers[*i])).collect();
        if !missed.is_empty() {
            let mut again = Pipeline::with_capacity(missed.len() + 1);
            again.add_command(script.load());
            for i in &missed {
                again.add_command(commands[*i].clone());
            }
            let second = self.send_all(&live, &again).await?;
            for (i, answer) in missed.into_iter().zip(second.into_iter().skip(1)) {
                answers[i] = answer;
            }
        }
        Ok(answers.into_iter().map(|answer| self.checked(&live, answer)).collect())
    }

    /// Sends one plain command.
    pub(crate) async fn command(&self, command: &Cmd) -> Result<Value> {
        let live = self.live().await?;
        let answer = self.send(&live, command).await?;
        self.checked(&live, answer)
    }

    fn checked(&self, live: &Live, answer: Value) -> Result<Value> {
        match answer {
            Value::ServerError(e) => {
                if error::is_read_only(&e) {
                    // The name may lead to another server by now.
                    self.drop_connection(live.number);
                }
                Err(error::from_server(e.code(), e.details().unwrap_or_default()))
            }
            answer => Ok(answer),
        }
    }

    async fn send(&self, live: &Live, command: &Cmd) -> Result<Value> {
        let mut connection = live.connection.clone();
        let answer = timeout(self.request_timeout, connection.send_packed_command(command)).await;
        self.arrived(live, answer)
    }

    async fn send_all(&self, live: &Live, pipeline: &Pipeline) -> Result<Vec<Value>> {
        let mut connection = live.connection.clone();
        let sent = connection.send_packed_commands(pipeline, 0, pipeline.len());
        let answer = timeout(self.request_timeout, sent).await;
        let answers = self.arrived(live, answer)?;
        if answers.len() != pipeline.len() {
            return Err(Error::new(
                ErrorKind::Protocol,
                "the server gave another number of answers than asked for",
            ));
        }
        Ok(answers)
    }

    /// A connection that does not answer is as bad as one that broke: the driver would keep it for ever.
    fn arrived<T>(
        &self,
        live: &Live,
        answer: Result<redis::RedisResult<T>, tokio::time::error::Elapsed>,
    ) -> Result<T> {
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(e)) => {
                if e.is_unrecoverable_error() || e.is_io_error() || e.kind() == redis::ErrorKind::Parse {
                    self.drop_connection(live.number);
                }
                Err(error::from_redis(&e))
            }
            Err(_) => {
                self.drop_connection(live.number);
                let text = format!("no answer within {:?}", self.request_timeout);
                Err(Error::new(ErrorKind::Timeout, text))
            }
        }
    }

    /// The connection in use, or a new one.
    async fn live(&self) -> Result<Live> {
        if let Some(live) = self.current()? {
            return Ok(live);
        }
        let deadline = Instant::now() + self.connect_timeout;
        match timeout_at(deadline, self.reconnect()).await {
            Ok(live) => live,
            Err(_) => {
                let text = format!("no connection within {:?}", self.connect_timeout);
                Err(Error::new(ErrorKind::Unavailable, text))
            }
        }
    }

    fn current(&self) -> Result<Option<Live>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        Ok(lock(&self.live).clone())
    }

    /// One caller connects at a time, and not at once after a failure.
    async fn reconnect(&self) -> Result<Live> {
        let mut pause = self.connecting.lock().await;
        if let Some(live) = self.current()? {
            return Ok(live);
        }
        if let Some(until) = pause.until {
            sleep_until(until).await;
        }
        pause.length = (pause.length * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        // Set before the attempt: one that is given up counts as failed.
        pause.until = Some(Instant::now() + pause.length);
        let live = self.open().await?;
        *pause = Pause::default();
        *lock(&self.live) = Some(live.clone());
        if self.closed.load(Ordering::Acquire) {
            lock(&self.live).take();
            return Err(closed());
        }
        if live.number > 1 {
            self.inbox.ask_all();
        }
        Ok(live)
    }

    async fn open(&self) -> Result<Live> {
        let number = self.connections.fetch_add(1, Ordering::AcqRel) + 1;
        let this = self.this.clone();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(1024)
            .set_push_sender(move |push: PushInfo| {
                if let Some(link) = this.upgrade() {
                    link.pushed(number, &push);
                }
                Ok::<(), redis::aio::SendError>(())
            });
        let connection = self.client.get_multiplexed_async_connection_with_config(&config).await;
        let connection = connection.map_err(|e| error::from_redis(&e))?;
        let mut load = Pipeline::with_capacity(scripts::ALL.len());
        for script in scripts::ALL {
            load.add_command(script.load());
        }
        let (mut subscriber, mut loader) = (connection.clone(), connection.clone());
        let (subscribed, loaded) = tokio::join!(
            subscriber.subscribe(self.inbox.channel()),
            loader.send_packed_commands(&load, 0, load.len()),
        );
        subscribed.map_err(|e| error::from_redis(&e))?;
        for answer in loaded.map_err(|e| error::from_redis(&e))? {
            if let Value::ServerError(e) = answer {
                return Err(error::from_server(e.code(), e.details().unwrap_or_default()));
            }
        }
        Ok(Live { connection, number })
    }

    fn pushed(&self, number: u64, push: &PushInfo) {
        match (&push.kind, &push.data[..]) {
            (PushKind::Message, [_channel, Value::BulkString(message)]) => self.inbox.deliver(message),
            (PushKind::Disconnection, _) => self.drop_connection(number),
            _ => {}
        }
    }

    /// Stops using this connection. Whoever waits must not wait on a dead one, so a new one is made at once for them.
    fn drop_connection(&self, number: u64) {
        let mut live = lock(&self.live);
        if live.as_ref().is_none_or(|live| live.number != number) {
            return;
        }
        live.take();
        drop(live);
        let first = || !self.reviving.swap(true, Ordering::AcqRel);
        if let Ok(runtime) = tokio::runtime::Handle::try_current()
            && !self.inbox.is_empty()
            && first()
        {
            runtime.spawn(revive(self.this.clone()));
        }
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        lock(&self.live).take();
        self.inbox.close();
    }
}

/// Connects again while somebody waits: the one task of a client, and only then.
async fn revive(link: Weak<Link>) {
    while let Some(link) = link.upgrade() {
        let done = link.inbox.is_empty() || link.closed.load(Ordering::Acquire) || link.live().await.is_ok();
        if done {
            link.reviving.store(false, Ordering::Release);
            // Lost again before the flag was down: then nobody else starts the next revival.
            let lost = lock(&link.live).is_none() && !link.inbox.is_empty();
            if !lost || link.closed.load(Ordering::Acquire) || link.reviving.swap(true, Ordering::AcqRel) {
                return;
            }
        }
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("connections", &self.connections)
            .field("connected", &lock(&self.live).is_some())
            .finish_non_exhaustive()
    }
}
