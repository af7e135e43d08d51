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

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use onelock_core::flight::SingleFlight;
use onelock_core::{Error, ErrorKind, Host, Result};
use redis::{Cmd, Pipeline, PushInfo, PushKind, Value};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until, timeout};

use crate::config::RedisConfig;
use crate::error::{self, closed};
use crate::scripts::Script;
use crate::topology::epoch::Fence;
use crate::wait::{Inbox, lock};
pub(crate) use open::Target;
use socket::Socket;

/// The wait after the first failed attempt to connect; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

const OPEN: u8 = 0;
const RETIRED: u8 = 1;
const CLOSED: u8 = 2;

#[derive(Debug)]
pub(crate) struct Connection {
    config: Arc<RedisConfig>,
    target: Target,
    inbox: Arc<Inbox>,
    live: Mutex<Option<Live>>,
    opened: AtomicU64,
    connecting: SingleFlight<Result<Live>>,
    /// What is known of failed attempts.
    pause: Mutex<Pause>,
    state: AtomicU8,
    this: Weak<Connection>,
}

/// A socket in use, and which one it is.
#[derive(Clone, Debug)]
struct Live {
    socket: Socket,
    number: u64,
    fence: Option<Arc<Fence>>,
}

#[derive(Debug, Default)]
struct Pause {
    length: Duration,
    until: Option<Instant>,
}

/// What the server said to one call: an error of its own is a value here.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) value: Value,
    /// How many replicas had it in time, where that was fewer than asked for.
    short: Option<i64>,
}

impl Answer {
    /// The value, and how many replicas had it where that was too few.
    pub(crate) fn joined(self) -> Result<(Value, Option<i64>)> {
        error::sound(self.value).map(|value| (value, self.short))
    }

    /// The value, where enough replicas had it.
    pub(crate) fn value(self) -> Result<Value> {
        let (value, short) = self.joined()?;
        short.map_or(Ok(value), |replicas| Err(error::too_few(replicas)))
    }

    fn is(&self, test: impl Fn(&redis::ServerError) -> bool) -> bool {
        matches!(&self.value, Value::ServerError(e) if test(e))
    }
}

impl Connection {
    pub(crate) fn new(config: &Arc<RedisConfig>, target: Target, inbox: &Arc<Inbox>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            config: Arc::clone(config),
            target,
            inbox: Arc::clone(inbox),
            live: Mutex::new(None),
            opened: AtomicU64::new(0),
            connecting: SingleFlight::default(),
            pause: Mutex::default(),
            state: AtomicU8::new(OPEN),
            this: this.clone(),
        })
    }

    /// Calls one script, once or several times, in one round trip; in two when the server has forgotten its scripts.
    pub(crate) async fn ask(
        &self,
        script: &'static Script,
        calls: &[&Cmd],
        asking: bool,
    ) -> Result<Vec<Answer>> {
        let mut promoted = 0;
        loop {
            let live = self.live().await?;
            let mut answers = self.round(&live, script, calls, asking, false).await?;
            let missed: Vec<_> = (0..calls.len()).filter(|i| answers[*i].is(error::is_no_script)).collect();
            if !missed.is_empty() {
                let again: Vec<_> = missed.iter().map(|i| calls[*i]).collect();
                let second = self.round(&live, script, &again, asking, true).await?;
                missed.into_iter().zip(second).for_each(|(i, answer)| answers[i] = answer);
            }
            if answers.iter().any(|answer| answer.is(error::leads_astray)) {
                // The name may lead to another server by now.
                self.drop_connection(live.number);
            }
            // It was promoted since this connection was made, and has done nothing: the next one knows the new epoch.
            if promoted < 2 && answers.iter().any(|answer| answer.is(|e| e.code() == "ONELOCKEPOCH")) {
                promoted += 1;
                self.drop_connection(live.number);
                continue;
            }
            return Ok(answers);
        }
    }

    async fn round(
        &self,
        live: &Live,
        script: &'static Script,
        calls: &[&Cmd],
        asking: bool,
        load: bool,
    ) -> Result<Vec<Answer>> {
        let replicas = self.config.replicas;
        let counts = script.counts && replicas > 0;
        let fence = live.fence.as_ref().filter(|_| script.fenced);
        if let ([call], None, false) = (calls, fence, asking || load || counts) {
            let mut requests = live.socket.requests.clone();
            let value = self.sent(live, requests.send_packed_command(call)).await?;
            return Ok(vec![Answer { value, short: None }]);
        }
        let mut pipeline = Pipeline::with_capacity(2 * calls.len() + 2);
        if load {
            pipeline.add_command(script.load());
        }
        for call in calls {
            if asking {
                pipeline.cmd("ASKING");
            }
            let mut call = (*call).clone();
            if let Some(fence) = fence {
                call.arg(fence.floor).arg(&fence.replid);
            }
            pipeline.add_command(call);
        }
        if counts {
            let longest = u64::try_from(self.config.replicas_timeout.as_millis()).unwrap_or(u64::MAX);
            pipeline.cmd("WAIT").arg(replicas).arg(longest);
        }
        let mut values = self.send(live, &pipeline).await?;
        let short = match values.pop_if(|_| counts) {
            None => None,
            Some(Value::Int(acknowledged)) => (acknowledged < i64::from(replicas)).then_some(acknowledged),
            Some(Value::ServerError(e)) => {
                if error::leads_astray(&e) {
                    self.drop_connection(live.number);
                }
                return Err(error::server_said(&e));
            }
            Some(_) => return Err(Error::new(ErrorKind::Protocol, "WAIT did not answer with a number")),
        };
        let first = usize::from(load) + usize::from(asking);
        let values = values.into_iter().skip(first).step_by(1 + usize::from(asking));
        Ok(values.map(|value| Answer { value, short }).collect())
    }

    /// Connects, where that is not done.
    pub(crate) async fn reach(&self) -> Result<()> {
        self.live().await.map(drop)
    }

    /// Sends plain commands.
    pub(crate) async fn commands<const N: usize>(&self, commands: [&[&str]; N]) -> Result<[Value; N]> {
        let live = self.live().await?;
        let mut pipeline = Pipeline::with_capacity(N);
        for words in commands {
            let mut command = Cmd::new();
            command.arg(words);
            pipeline.add_command(command);
        }
        let values = self.send(&live, &pipeline).await?;
        let values: Vec<_> = values.into_iter().map(error::sound).collect::<Result<_>>()?;
        values.try_into().map_err(|_| miscounted())
    }

    async fn send(&self, live: &Live, pipeline: &Pipeline) -> Result<Vec<Value>> {
        let mut requests = live.socket.requests.clone();
        let answers = self.sent(live, requests.send_packed_commands(pipeline, 0, pipeline.len())).await?;
        if answers.len() == pipeline.len() { Ok(answers) } else { Err(miscounted()) }
    }

    /// A connection that does not answer is as bad as one that broke: the driver would keep it for ever.
    async fn sent<T>(&self, live: &Live, answer: impl Future<Output = redis::RedisResult<T>>) -> Result<T> {
        let limit = self.config.request_timeout;
        match timeout(limit, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(e)) => {
                if e.is_unrecoverable_error() || e.is_io_error() || e.kind() == redis::ErrorKind::Parse {
                    self.drop_connection(live.number);
                }
                Err(error::from_redis(&e))
            }
            Err(_) => {
                self.drop_connection(live.number);
                Err(Error::new(ErrorKind::Timeout, format!("no answer within {limit:?}")))
            }
        }
    }

    /// The connection in use, or a new one. Where there is none, what was to be sent never left.
    async fn live(&self) -> Result<Live> {
        self.connected().await.map_err(Error::unsent)
    }

    async fn connected(&self) -> Result<Live> {
        if let Some(live) = self.current()? {
            return Ok(live);
        }
        let Some(this) = self.this.upgrade() else { return Err(closed()) };
        let runtime = Handle::current();
        let connected = self.connecting.join(&runtime, || async move {
            let limit = this.config.connect_timeout;
            let late = |_| Err(Error::new(ErrorKind::Unavailable, format!("no connection within {limit:?}")));
            timeout(limit, this.reconnect()).await.unwrap_or_else(late)
        });
        let gone = || Err(Error::new(ErrorKind::Unavailable, "the runtime of the connecting task is gone"));
        connected.await.unwrap_or_else(gone)
    }

    fn current(&self) -> Result<Option<Live>> {
        match self.state.load(Ordering::Acquire) {
            OPEN => Ok(lock(&self.live).clone()),
            RETIRED => Err(Error::new(ErrorKind::Unavailable, "this node serves no locks any more")),
            _ => Err(closed()),
        }
    }

    /// Connects, but not at once after a failure.
    async fn reconnect(&self) -> Result<Live> {
        if let Some(live) = self.current()? {
            return Ok(live);
        }
        let until = lock(&self.pause).until;
        if let Some(until) = until {
            sleep_until(until).await;
        }
        {
            let mut pause = lock(&self.pause);
            pause.length = (pause.length * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
            // Set before the attempt: one that is given up counts as failed.
            pause.until = Some(Instant::now() + pause.length);
        }
        let number = self.opened.fetch_add(1, Ordering::AcqRel) + 1;
        let this = self.this.clone();
        let pushed = move |push: PushInfo| {
            if let Some(connection) = this.upgrade() {
                connection.pushed(number, &push);
            }
        };
        let (socket, fence) = open::open(&self.config, &self.target, self.inbox.channel(), pushed).await?;
        let live = Live { socket, number, fence: fence.map(Arc::new) };
        *lock(&self.pause) = Pause::default();
        *lock(&self.live) = Some(live.clone());
        self.current().inspect_err(|_| drop(lock(&self.live).take()))?;
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
        let dropped = lock(&self.live).take_if(|live| live.number == number);
        if dropped.is_some() {
            self.inbox.ask_all();
        }
    }

    /// Where it leads, when that never changes.
    pub(crate) fn host(&self) -> Option<&Host> {
        match &self.target {
            Target::Server(host) | Target::Node(host) => Some(host),
            Target::Master(_) => None,
        }
    }

    /// Ends the connection of a client that is closed.
    pub(crate) fn close(&self) {
        self.end(CLOSED);
    }

    /// Ends the connection to a node that serves no locks any more.
    pub(crate) fn retire(&self) {
        self.end(RETIRED);
    }

    fn end(&self, state: u8) {
        self.state.fetch_max(state, Ordering::AcqRel);
        lock(&self.live).take();
    }
}

fn miscounted() -> Error {
    Error::new(ErrorKind::Protocol, "the server gave another number of answers than asked for")
}
