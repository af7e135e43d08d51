//! A lock that is one key: `SET NX PX`, and the wrong ways to do without it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::{
    Backend, Busy, Capabilities, FencingToken, Grant, HolderId, Info, Listing, LockName, Mode, Page, Raise,
    Release, Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};

use super::kv::Server;
use super::vehicle::{info, none, unsupported, view};

/// How such a lock is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// One command takes it with its expiry; scripts compare the owner and act.
    Honest,
    /// `SETNX`, then `EXPIRE`: who dies in between leaves a key for ever.
    SetnxThenExpire,
    /// `DEL` whoever holds.
    DelWithoutOwnerCheck,
    /// `GET`, compare, `DEL`: between the two it may have become another's.
    GetThenDel,
    /// The end of the hold is a time in the value, by the clock of whoever wrote it; `GETSET` takes over.
    GetSetWithClientClocks,
    /// A unique row and nothing that ends it.
    RowWithoutExpiry,
    /// `EXPIRE` whoever holds.
    ExpireWithoutOwnerCheck,
    /// A renewal is a `SET`.
    RenewBySet,
    /// The number is taken after the lock, in a second step that is not tried again: `INCR` of a counter per client.
    NumberOfTheClient,
}

/// One client.
#[derive(Debug)]
pub(crate) struct Single {
    server: Arc<Server>,
    way: Way,
    /// How far this client's own clock is ahead.
    ahead: Duration,
    numbers: std::sync::atomic::AtomicI64,
}

impl Single {
    /// The client of this number: every second one has a clock that is ten minutes ahead.
    pub(crate) fn new(server: &Arc<Server>, way: Way, client: usize) -> Self {
        let ahead = Duration::from_secs(if client % 2 == 1 { 600 } else { 0 });
        Self { server: Arc::clone(server), way, ahead, numbers: std::sync::atomic::AtomicI64::new(0) }
    }

    /// The time of day by this client.
    fn time(&self) -> u128 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        (since + self.ahead).as_millis()
    }

    /// Takes it in two steps or more; the number it has then, if it has it.
    async fn take_by_steps(&self, key: &str, request: &Request) -> Option<i64> {
        let server = &self.server;
        match self.way {
            Way::SetnxThenExpire => {
                let number = server.incr().await;
                if server.set_nx(key, &value(request.holder, number), None).await {
                    server.expire(key, request.lease).await;
                }
            }
            Way::RowWithoutExpiry => {
                let number = server.incr().await;
                server.set_nx(key, &value(request.holder, number), None).await;
            }
            Way::GetSetWithClientClocks => {
                let number = server.incr().await;
                let end = self.time() + request.lease.as_millis();
                let mine = format!("{} {end}", value(request.holder, number));
                if !server.set_nx(key, &mine, None).await {
                    let old = server.get(key).await.unwrap_or_default();
                    if self.is_over(&old) {
                        let replaced = server.get_set(key, &mine).await.unwrap_or_default();
                        if !self.is_over(&replaced) {
                            return None;
                        }
                    }
                }
            }
            _ => return None,
        }
        let there = server.get(key).await?;
        owned(&there, request.holder).then(|| number(&there))
    }

    /// Whether the end that somebody wrote has passed by this client's clock.
    fn is_over(&self, value: &str) -> bool {
        value.split(' ').nth(2).is_none_or(|end| end.parse::<u128>().is_ok_and(|end| end < self.time()))
    }
}

fn value(holder: HolderId, number: i64) -> String {
    format!("{} {number}", holder.to_hex())
}

fn owned(value: &str, holder: HolderId) -> bool {
    value.split(' ').next() == Some(&holder.to_hex())
}

fn number(value: &str) -> i64 {
    value.split(' ').nth(1).unwrap_or_default().parse().unwrap()
}

fn token(value: &str) -> Result<FencingToken> {
    FencingToken::new(number(value))
}

pub(crate) fn capabilities() -> Capabilities {
    let mut capabilities = none();
    capabilities.fencing = true;
    capabilities.delay = true;
    capabilities
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for Single {
    fn info(&self) -> Info {
        info()
    }

    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        if request.mode != Mode::Exclusive {
            return Err(unsupported());
        }
        let (key, busy) = (request.name.as_str(), Ok(Standing::Busy(Busy::default())));
        let by_steps =
            matches!(self.way, Way::SetnxThenExpire | Way::RowWithoutExpiry | Way::GetSetWithClientClocks);
        let mut number = if by_steps {
            match self.take_by_steps(key, request).await {
                Some(number) => number,
                None => return busy,
            }
        } else {
            let hex = request.holder.to_hex();
            let there = self.server.take(key, &hex, request.lease + request.delay).await;
            if !owned(&there, request.holder) {
                return busy;
            }
            number(&there)
        };
        if self.way == Way::NumberOfTheClient {
            number = self.numbers.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        }
        Ok(Standing::Held(Grant::new(FencingToken::new(number)?, request.lease)))
    }

    async fn wait(&self, _: &Ticket) -> Result<Wake> {
        Ok(Wake::Ask)
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let mut answers = Vec::new();
        for one in due {
            let (key, holder) = (one.ticket.name.as_str(), one.ticket.holder);
            let ttl = one.lease + one.ticket.delay;
            let there = match self.way {
                Way::ExpireWithoutOwnerCheck => {
                    self.server.expire(key, ttl).await;
                    self.server.get(key).await
                }
                Way::RenewBySet => {
                    let there = self.server.get(key).await;
                    if there.as_ref().is_none_or(|there| owned(there, holder)) {
                        let mine = value(holder, one.ticket.token.map_or(1, FencingToken::get));
                        self.server.set(key, &mine, ttl).await;
                        Some(mine)
                    } else {
                        None
                    }
                }
                Way::RowWithoutExpiry | Way::GetSetWithClientClocks => {
                    self.server.get(key).await.filter(|there| owned(there, holder))
                }
                _ => self.server.keep_if(key, |there| owned(there, holder), ttl).await,
            };
            answers.push(there.map_or(Ok(Renewed::NotHeld), |there| {
                Ok(Renewed::Held(Grant::new(token(&there)?, one.lease)))
            }));
        }
        answers
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        let key = ticket.name.as_str();
        let fits = |there: &str| owned(there, ticket.holder);
        let done = match self.way {
            Way::DelWithoutOwnerCheck => self.server.del(key).await,
            Way::GetThenDel => {
                let ours = self.server.get(key).await.is_some_and(|there| fits(&there));
                // A pause of the process, as a garbage collector makes it.
                tokio::time::sleep(Duration::from_millis(if ours { 300 } else { 0 })).await;
                ours && self.server.del(key).await
            }
            _ => self.server.del_if(key, fits).await,
        };
        Ok(if done { Release::Released } else { Release::NotHeld })
    }

    async fn raise(&self, _: &Ticket, _: FencingToken) -> Result<Raise> {
        Err(unsupported())
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        let mut line = Snapshot::empty(name.clone());
        if let Some(there) = self.server.get(name.as_str()).await {
            line.holders.push(view(token(&there)?));
        }
        Ok(line)
    }

    async fn list(&self, _: &str, _: &Page) -> Result<Listing> {
        Err(unsupported())
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        let fits = |there: &str| number(there) == token.get();
        let done = self.server.del_if(name.as_str(), fits).await;
        Ok(if done { Release::Released } else { Release::NotHeld })
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}
