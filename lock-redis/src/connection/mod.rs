//! The connection to one server: one socket for requests and pushes, replaced when it fails or does not answer.
//!
//! It speaks RESP3, so the inbox is subscribed on the very connection that carries the requests. A grant can then
//! never come on a connection that is not there yet, the two cannot fail apart, and a client needs one socket. A new
//! connection subscribes before it is used; whatever was published in between is made good by asking again.

pub(crate) mod check;
mod open;
pub(crate) mod socket;
#[cfg(feature = "tls")]
mod tls;

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use onelock_core::toolkit::{Mutex, SingleFlight};
use onelock_core::{Error, ErrorKind, Host, Result};
use redis::{Cmd, FromRedisValue, Pipeline, PushInfo, PushKind, Value};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until, timeout};

use crate::config::RedisConfig;
use crate::error;
use crate::reply::{self, Answer};
use crate::scripts::Script;
use crate::topology::epoch::FailoverEpoch;
use crate::wait::Inbox;
use socket::Socket;

/// The wait after the first failed attempt to connect; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Connection {
    config: Arc<RedisConfig>,
    /// Where it leads; or else to the master that the sentinels name.
    pub(crate) host: Host,
    inbox: Arc<Inbox>,
    state: Mutex<State>,
    connecting: SingleFlight<Result<Live>>,
}

#[derive(Debug, Default)]
struct State {
    live: Option<Live>,
    /// How many were begun.
    opened: u64,
    /// How long after the beginning of an attempt the next one begins at the least, and when.
    pause: Duration,
    until: Option<Instant>,
}

/// A socket in use, and which one it is.
#[derive(Clone, Debug)]
struct Live {
    socket: Socket,
    number: u64,
    fence: Option<Arc<FailoverEpoch>>,
    /// Waits for replicas. Each call that is under way has it: how many there are is read off its count.
    waits: Arc<SingleFlight<Result<i64>>>,
}

impl Connection {
    pub(crate) fn new(config: &Arc<RedisConfig>, host: Host, inbox: &Arc<Inbox>) -> Arc<Self> {
        Arc::new(Self {
            config: Arc::clone(config),
            host,
            inbox: Arc::clone(inbox),
            state: Mutex::default(),
            connecting: SingleFlight::default(),
        })
    }

    /// Calls one script.
    pub(crate) async fn ask(self: &Arc<Self>, script: &Script, call: &Cmd, asking: bool) -> Result<Answer> {
        let mut again = 0;
        loop {
            let mut live = self.live().await?;
            let counts = script.counts && self.config.replicas > 0;
            let fenced = script.fenced && live.fence.is_some();
            let answer = if asking || counts || fenced {
                // In a place of its own: most calls are one command.
                Box::pin(self.piped(&mut live, script, call, asking)).await?
            } else {
                let answer = pin!(live.socket.requests.send_packed_command(call));
                Answer { value: self.sent(live.number, answer).await?, short: None }
            };
            let said = |codes: &[&str]| error::has_code(&answer.value, codes);
            // It was promoted since this connection was made, or has forgotten its scripts, and has done nothing: the next
            // connection knows the new epoch, and loads them.
            if again < 2 && said(&["NOSCRIPT", "ONELOCKEPOCH"]) {
                again += 1;
                self.drop_connection(live.number);
                continue;
            }
            // A replica, also one that loads, or a master whose replicas have left it: the name may lead to another server by now.
            if said(&["READONLY", "LOADING", "MASTERDOWN", "NOREPLICAS"]) {
                self.drop_connection(live.number);
            }
            return Ok(answer);
        }
    }

    async fn piped(
        self: &Arc<Self>,
        live: &mut Live,
        script: &Script,
        call: &Cmd,
        asking: bool,
    ) -> Result<Answer> {
        let replicas = self.config.replicas;
        let counts = script.counts && replicas > 0;
        // While the server waits it serves nothing else on the connection: in the same packet where nobody else would wait, too.
        let at_once = counts && Arc::strong_count(&live.waits) == 2;
        let (mut pipeline, mut call) = (Pipeline::with_capacity(3), call.clone());
        if asking {
            pipeline.cmd("ASKING");
        }
        if let Some(fence) = live.fence.as_ref().filter(|_| script.fenced) {
            call.arg(fence.floor).arg(&fence.replid);
        }
        pipeline.add_command(call);
        if at_once {
            pipeline.add_command(self.wait());
        }
        let values = {
            let answers = pin!(live.socket.requests.send_packed_commands(&pipeline, 0, pipeline.len()));
            self.sent(live.number, answers).await?
        };
        let mut values = values.into_iter().skip(usize::from(asking));
        let value = values.next().ok_or_else(error::miscounted)?;
        // Of what was refused nothing is waited for: a node that has become a replica refuses both, and only `MOVED` or `READONLY`
        // leads away from it.
        if !counts || matches!(value, Value::ServerError(_)) {
            return Ok(Answer { value, short: None });
        }
        let waited = match values.next() {
            Some(waited) => error::sound(waited).and_then(reply::read),
            None => self.waited(live).await,
        };
        // Whether replicas have it is not known, whatever the error says of itself.
        let unclear =
            |e: Error| if e.is_unclear() { e } else { Error::new(ErrorKind::Protocol, e.to_string()) };
        let had = waited.map_err(unclear)?;
        Ok(Answer { value, short: (had < i64::from(replicas)).then_some(had) })
    }

    fn wait(&self) -> Cmd {
        let longest = reply::millis(self.config.replicas_timeout);
        redis::cmd("WAIT").arg(self.config.replicas).arg(longest).to_owned()
    }

    /// The answer to a `WAIT` that is sent after this call, shared by all calls meanwhile.
    async fn waited(self: &Arc<Self>, live: &Live) -> Result<i64> {
        let (this, mut on, wait) = (Arc::clone(self), live.clone(), self.wait());
        let wait = || async move {
            let answer = pin!(wait.query_async(&mut on.socket.requests));
            this.sent(on.number, answer).await
        };
        let gone = || Err(Error::new(ErrorKind::Unavailable, "the runtime of the waiting task is gone"));
        live.waits.join_next(&Handle::current(), wait).await.unwrap_or_else(gone)
    }

    /// Connects, where that is not done.
    pub(crate) async fn reach(self: &Arc<Self>) -> Result<()> {
        self.live().await.map(drop)
    }

    /// Sends a plain command.
    pub(crate) async fn query<T: FromRedisValue>(self: &Arc<Self>, command: &Cmd) -> Result<T> {
        let mut live = self.live().await?;
        let answer = pin!(command.query_async(&mut live.socket.requests));
        self.sent(live.number, answer).await
    }

    /// A connection that does not answer is as bad as one that broke: the driver would keep it for ever.
    ///
    /// The answer is pinned by the caller: moved in here, its future would be copied with each call.
    async fn sent<T>(
        &self,
        number: u64,
        answer: Pin<&mut impl Future<Output = redis::RedisResult<T>>>,
    ) -> Result<T> {
        let limit = self.config.request_timeout;
        match timeout(limit, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(e)) => {
                if e.is_unrecoverable_error() || e.is_io_error() {
                    self.drop_connection(number);
                }
                Err(error::from_redis(&e))
            }
            Err(_) => {
                self.drop_connection(number);
                Err(Error::new(ErrorKind::Timeout, format!("no answer within {limit:?}")))
            }
        }
    }

    /// The connection in use, or a new one. Where there is none, what was to be sent never left.
    async fn live(self: &Arc<Self>) -> Result<Live> {
        let live = self.state.lock().live.clone();
        match live {
            Some(live) => Ok(live),
            None => Box::pin(self.connected()).await.map_err(Error::unsent),
        }
    }

    async fn connected(self: &Arc<Self>) -> Result<Live> {
        let (this, limit, runtime) = (Arc::clone(self), self.config.connect_timeout, Handle::current());
        let connected = self.connecting.join(&runtime, || async move {
            let late = |_| Err(Error::new(ErrorKind::Unavailable, format!("no connection within {limit:?}")));
            timeout(limit, this.reconnect()).await.unwrap_or_else(late)
        });
        let gone = || Err(Error::new(ErrorKind::Unavailable, "the runtime of the connecting task is gone"));
        connected.await.unwrap_or_else(gone)
    }

    /// Connects, but not at once after a failure.
    async fn reconnect(self: &Arc<Self>) -> Result<Live> {
        let (live, until) = {
            let state = self.state.lock();
            (state.live.clone(), state.until)
        };
        if let Some(live) = live {
            return Ok(live);
        }
        if let Some(until) = until {
            sleep_until(until).await;
        }
        let number = {
            let mut state = self.state.lock();
            // A connection that the server's refusals end soon is an attempt that failed.
            let lasted = until.is_none_or(|until| until.elapsed() > LONGEST_PAUSE);
            state.pause = if lasted { FIRST_PAUSE } else { (state.pause * 2).min(LONGEST_PAUSE) };
            // Set before the attempt: one that is given up counts as failed.
            state.until = Some(Instant::now() + state.pause);
            state.opened += 1;
            state.opened
        };
        let this = Arc::downgrade(self);
        let pushed = move |push: PushInfo| {
            this.upgrade().map(|connection| connection.pushed(number, &push)).ok_or(redis::aio::SendError)
        };
        let (socket, fence) = open::open(&self.config, &self.host, &self.inbox.channel, pushed).await?;
        // What a call sends after the close would stay: nothing releases it.
        self.inbox.check_open()?;
        let live = Live { socket, number, fence: fence.map(Arc::new), waits: Arc::default() };
        self.state.lock().live = Some(live.clone());
        Ok(live)
    }

    fn pushed(&self, number: u64, push: &PushInfo) {
        match (&push.kind, &push.data[..]) {
            (PushKind::Message, [_channel, Value::BulkString(message)]) => self.inbox.deliver(message),
            (PushKind::Disconnection, _) => self.drop_connection(number),
            _ => {}
        }
    }

    /// Stops using this connection. What was published on it may be lost: every waiter asks, over the next one.
    fn drop_connection(&self, number: u64) {
        let dropped = self.state.lock().live.take_if(|live| live.number == number);
        if dropped.is_some() {
            self.inbox.connection_lost();
        }
    }
}
