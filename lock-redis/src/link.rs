//! The connection to one server: one socket for requests and pushes, replaced when it fails or does not answer.
//!
//! It speaks RESP3, so the inbox is subscribed on the very connection that carries the requests. A grant can then
//! never come on a connection that is not there yet, the two cannot fail apart, and a client needs one socket. A new
//! connection subscribes before it is used; whatever was published in between is made good by asking again.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use onelock_core::flight::SingleFlight;
use onelock_core::{Error, ErrorKind, Result};
use redis::{Cmd, Pipeline, PushInfo, PushKind, Value};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until, timeout};

use crate::client::Connection;
use crate::config::{Host, RedisConfig};
use crate::connect::{Lead, connect};
use crate::error;
use crate::fence::Fence;
use crate::inbox::{Inbox, closed, lock};
use crate::scripts::Script;
use crate::stagger::Stagger;

/// The wait after the first failed attempt to connect; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

const OPEN: u8 = 0;
const RETIRED: u8 = 1;
const CLOSED: u8 = 2;

pub(crate) struct Link {
    config: Arc<RedisConfig>,
    lead: Lead,
    inbox: Arc<Inbox>,
    live: Mutex<Option<Live>>,
    connections: AtomicU64,
    connecting: SingleFlight<Result<Live>>,
    /// What is known of failed attempts.
    pause: Mutex<Pause>,
    stagger: Stagger,
    reviving: AtomicBool,
    state: AtomicU8,
    this: Weak<Link>,
}

/// A connection in use, and which one it is.
#[derive(Clone)]
struct Live {
    connection: Connection,
    number: u64,
    fence: Option<Arc<Fence>>,
}

#[derive(Default)]
struct Pause {
    length: Duration,
    until: Option<Instant>,
}

/// What the server said: errors of its own are values here.
pub(crate) struct Answers {
    pub(crate) values: Vec<Value>,
    /// How many replicas had it in time, where that was fewer than asked for.
    pub(crate) short: Option<i64>,
}

impl Link {
    pub(crate) fn new(config: &Arc<RedisConfig>, lead: Lead, inbox: &Arc<Inbox>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            config: Arc::clone(config),
            lead,
            inbox: Arc::clone(inbox),
            live: Mutex::new(None),
            connections: AtomicU64::new(0),
            connecting: SingleFlight::default(),
            pause: Mutex::default(),
            stagger: Stagger::default(),
            reviving: AtomicBool::new(false),
            state: AtomicU8::new(OPEN),
            this: this.clone(),
        })
    }

    /// Calls one script, once or several times, in one round trip; in two when the server has forgotten its scripts.
    pub(crate) async fn ask(
        &self,
        script: &'static Script,
        commands: &[Cow<'_, Cmd>],
        asking: bool,
    ) -> Result<Answers> {
        let mut stale = 0;
        loop {
            let live = self.live().await?;
            let mut answers = self.round(&live, script, commands, asking, false).await?;
            let missed: Vec<_> =
                (0..commands.len()).filter(|i| code_is(&answers.values[*i], error::is_no_script)).collect();
            if !missed.is_empty() {
                let again: Vec<_> = missed.iter().map(|i| Cow::Borrowed(&*commands[*i])).collect();
                let second = self.round(&live, script, &again, asking, true).await?;
                answers.short = second.short;
                for (i, answer) in missed.into_iter().zip(second.values) {
                    answers.values[i] = answer;
                }
            }
            if answers.values.iter().any(|answer| code_is(answer, error::leads_astray)) {
                // The name may lead to another server by now.
                self.drop_connection(live.number);
            }
            // It was promoted since this connection was made, and has done nothing: the next one knows the new epoch.
            if stale < 2
                && answers.values.iter().any(|answer| code_is(answer, |e| e.code() == "ONELOCKEPOCH"))
            {
                stale += 1;
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
        commands: &[Cow<'_, Cmd>],
        asking: bool,
        load: bool,
    ) -> Result<Answers> {
        let fenced = |command: &Cow<'_, Cmd>| -> Cmd {
            let mut command = command.clone().into_owned();
            if let Some(fence) = live.fence.as_ref().filter(|_| script.fenced) {
                command.arg(fence.floor).arg(&fence.replid);
            }
            command
        };
        let replicas = self.config.replicas;
        let counts = script.counts && replicas > 0;
        if let ([command], false) = (commands, asking || load || counts) {
            let value = if live.fence.is_some() && script.fenced {
                self.send(live, &fenced(command)).await?
            } else {
                self.send(live, command).await?
            };
            return Ok(Answers { values: vec![value], short: None });
        }
        let mut pipeline = Pipeline::with_capacity(2 * commands.len() + 2);
        if load {
            pipeline.add_command(script.load());
        }
        for command in commands {
            if asking {
                pipeline.cmd("ASKING");
            }
            pipeline.add_command(fenced(command));
        }
        if counts {
            let longest = u64::try_from(self.config.replicas_timeout.as_millis()).unwrap_or(u64::MAX);
            pipeline.cmd("WAIT").arg(replicas).arg(longest);
        }
        let mut values = self.send_all(live, &pipeline).await?;
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
        if load {
            values.remove(0);
        }
        if asking {
            let mut keep = [false, true].into_iter().cycle();
            values.retain(|_| keep.next() == Some(true));
        }
        Ok(Answers { values, short })
    }

    /// Connects, where that is not done.
    pub(crate) async fn reach(&self) -> Result<()> {
        self.live().await.map(drop)
    }

    /// Sends plain commands.
    pub(crate) async fn commands(&self, commands: &[Cmd]) -> Result<Vec<Value>> {
        let live = self.live().await?;
        let mut pipeline = Pipeline::with_capacity(commands.len());
        commands.iter().for_each(|command| {
            pipeline.add_command(command.clone());
        });
        self.send_all(&live, &pipeline).await?.into_iter().map(error::sound).collect()
    }

    /// Sends one plain command.
    pub(crate) async fn command(&self, command: &Cmd) -> Result<Value> {
        let live = self.live().await?;
        self.send(&live, command).await.and_then(error::sound)
    }

    async fn send(&self, live: &Live, command: &Cmd) -> Result<Value> {
        let _under_way = self.stagger.turn().await;
        let mut connection = live.connection.requests.clone();
        let answer = timeout(self.config.request_timeout, connection.send_packed_command(command)).await;
        self.arrived(live, answer)
    }

    async fn send_all(&self, live: &Live, pipeline: &Pipeline) -> Result<Vec<Value>> {
        let _under_way = self.stagger.turn().await;
        let mut connection = live.connection.requests.clone();
        let sent = connection.send_packed_commands(pipeline, 0, pipeline.len());
        let answer = timeout(self.config.request_timeout, sent).await;
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
                let text = format!("no answer within {:?}", self.config.request_timeout);
                Err(Error::new(ErrorKind::Timeout, text))
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
        let gone = || Err(Error::new(ErrorKind::Unavailable, "the runtime of who was connecting is gone"));
        connected.await.unwrap_or_else(gone)
    }

    fn current(&self) -> Result<Option<Live>> {
        self.in_use()?;
        Ok(lock(&self.live).clone())
    }

    fn in_use(&self) -> Result<()> {
        match self.state.load(Ordering::Acquire) {
            OPEN => Ok(()),
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
        let live = self.open().await?;
        *lock(&self.pause) = Pause::default();
        *lock(&self.live) = Some(live.clone());
        if let Err(over) = self.in_use() {
            lock(&self.live).take();
            return Err(over);
        }
        if live.number > 1 {
            match &self.lead {
                Lead::Node(host, cluster) => {
                    if let Some(cluster) = cluster.upgrade() {
                        cluster.lost_touch(host);
                    }
                }
                Lead::Server(_) | Lead::Master(_) => self.inbox.ask_all(),
            }
        }
        Ok(live)
    }

    async fn open(&self) -> Result<Live> {
        let number = self.connections.fetch_add(1, Ordering::AcqRel) + 1;
        let this = self.this.clone();
        let pushed = move |push: PushInfo| {
            if let Some(link) = this.upgrade() {
                link.pushed(number, &push);
            }
        };
        let (connection, fence) = connect(&self.config, &self.lead, self.inbox.channel(), pushed).await?;
        Ok(Live { connection, number, fence: fence.map(Arc::new) })
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
        if let Ok(runtime) = Handle::try_current()
            && !self.inbox.is_empty()
            && first()
        {
            runtime.spawn(revive(self.this.clone()));
        }
    }

    /// Where it leads, when that never changes.
    pub(crate) fn host(&self) -> Option<&Host> {
        match &self.lead {
            Lead::Server(host) | Lead::Node(host, _) => Some(host),
            Lead::Master(_) => None,
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

/// Connects again while somebody waits: the one task of a client, and only then.
async fn revive(link: Weak<Link>) {
    while let Some(link) = link.upgrade() {
        let done = link.inbox.is_empty() || link.in_use().is_err() || link.live().await.is_ok();
        if done {
            link.reviving.store(false, Ordering::Release);
            // Lost again before the flag was down: then nobody else starts the next revival.
            let lost = lock(&link.live).is_none() && !link.inbox.is_empty();
            if !lost || link.in_use().is_err() || link.reviving.swap(true, Ordering::AcqRel) {
                return;
            }
        } else if let Lead::Node(_, cluster) = &link.lead
            && let Some(cluster) = cluster.upgrade()
        {
            // Perhaps another node serves its slots by now.
            cluster.look_again().await;
        }
    }
}

fn code_is(answer: &Value, test: impl Fn(&redis::ServerError) -> bool) -> bool {
    matches!(answer, Value::ServerError(e) if test(e))
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("connections", &self.connections)
            .field("connected", &lock(&self.live).is_some())
            .finish_non_exhaustive()
    }
}
