//! Joining the line: an ephemeral sequential node, and the children as they are behind it.
//!
//! Where the name has no node yet, both are made in one transaction, which many names share: who made the node of the name
//! is alone in it, and holds.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::join;
use onelock_core::{
    Busy, Error, ErrorKind, FencingToken, Grant, LockName, Place, Renewal, Renewed, Request, Result, Standing,
};
use zookeeper_client as zk;

use crate::batch::{Step, Write};
use crate::entries::{Entries, Entry, Node};
use crate::epoch::Epochs;
use crate::error::failed;
use crate::keys::{self, Paths};
use crate::line::{Line, Stand};
use crate::release::{find, leave};
use crate::renew::renew;
use crate::session::too_slow;
use crate::sessions::Sessions;

/// How often a join is begun anew because the node of the name came or went meanwhile: each time somebody else got on, so
/// among many that may be often.
const TURNS: usize = 100;

/// Names whose node was there when it was to be made, by their hash: their next join does not try to make it. A hint only,
/// so two names may share a bit.
pub(crate) struct Used([AtomicU64; 64]);

impl Default for Used {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; 64])
    }
}

impl Used {
    fn at(&self, name: &LockName) -> (&AtomicU64, u64) {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(name);
        (&self.0[(hash >> 6) as usize % self.0.len()], 1 << (hash % 64))
    }

    fn has(&self, name: &LockName) -> bool {
        let (word, bit) = self.at(name);
        word.load(Ordering::Relaxed) & bit != 0
    }

    fn set(&self, name: &LockName, used: bool) {
        let (word, bit) = self.at(name);
        if used {
            word.fetch_or(bit, Ordering::Relaxed);
        } else {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

/// Joins the line, or says why not.
pub(crate) async fn acquire(
    sessions: &Arc<Sessions>,
    entries: &Entries,
    epochs: &Epochs,
    used: &Used,
    request: &Request,
) -> Result<Standing> {
    let servers = &sessions.servers;
    let key = (request.name.clone(), request.holder);
    if let Some(entry) = entries.get(&key, servers.clock.now()) {
        if let Some(standing) = again(sessions, entries, &entry, request).await? {
            return Ok(standing);
        }
        entries.remove(&entry);
    }
    let paths = Paths::new(&servers.base, request);
    let need = request.lease.max(request.waiter_lease) + request.delay;
    let room = sessions.room(need, paths.bytes()).await?;
    let ends = servers.clock.now() + need + servers.config.request_timeout;
    let entry = Entry::new(key, paths, room, ends);
    entries.insert(&entry);
    let answer = Join { sessions, epochs, used, request, entry: &entry }.join().await;
    match &answer {
        Ok(Standing::Busy(_)) => entries.remove(&entry),
        // Its lease has begun.
        Ok(_) => entries.insert(&entry),
        // What is not clear stays: it is released, or ends with its lease.
        Err(error) if error.is_unclear() => {}
        Err(_) => entries.remove(&entry),
    }
    answer
}

/// The answer when this holder has an entry; nothing when its node is gone or was never made.
async fn again(
    sessions: &Arc<Sessions>,
    entries: &Entries,
    entry: &Arc<Entry>,
    request: &Request,
) -> Result<Option<Standing>> {
    if entry.node().is_none() {
        let session = entry.room.session();
        let Some(path) = find(session, entry).await? else { return Ok(None) };
        let stat = session.stat(&path).await.map_err(|error| failed(error, "read", &path))?;
        let Some(stat) = stat else { return Ok(None) };
        let token = FencingToken::new(stat.czxid)?;
        entry.set_node(Some(Node { path, token, alone: false }));
    }
    let (lease, waiter_lease) = (request.lease, request.waiter_lease);
    let renewal = Renewal { ticket: request.ticket(), lease, waiter_lease };
    match renew(sessions, entries, &[renewal]).await.pop() {
        Some(Ok(Renewed::Held(grant))) => Ok(Some(Standing::Held(grant))),
        Some(Ok(Renewed::Waiting(place))) => Ok(Some(Standing::Waiting(place))),
        Some(Err(error)) => Err(error),
        Some(Ok(Renewed::NotHeld)) | None => Ok(None),
    }
}

struct Join<'a> {
    sessions: &'a Arc<Sessions>,
    epochs: &'a Epochs,
    used: &'a Used,
    request: &'a Request,
    entry: &'a Arc<Entry>,
}

/// What came of asking for a node.
enum Joined {
    /// Nobody else is in the line.
    Alone,
    /// The line behind the new node.
    Behind(Line),
    /// The node of the name was to be made, and is there.
    Occupied,
    /// The node of the name was to be made, and may not be.
    Denied(Error),
    /// The node above the new one is not there.
    NoParent,
    /// The token epoch has changed.
    Epoch,
}

impl Join<'_> {
    fn failed(&self, error: zk::Error) -> Error {
        failed(error, "join", &self.entry.paths.parent)
    }

    async fn join(&self) -> Result<Standing> {
        let (request, session) = (self.request, self.entry.room.session());
        let parent = &self.entry.paths.parent;
        let mut denied = None;
        for _ in 0..TURNS {
            let epoch = self.epochs.admit(session, request.epoch).await?;
            session.fresh().await?;
            let alone = denied.is_none() && !self.used.has(&request.name);
            if !request.queue && !alone {
                // Who may not wait must not stand in anybody's way: only a line that admits it is joined.
                match Line::latest(session, parent).await? {
                    Some(line) if !line.admits(request.mode) => {
                        return Ok(Standing::Busy(Busy { retry_after: None }));
                    }
                    None if denied.is_none() => {
                        self.used.set(&request.name, false);
                        continue;
                    }
                    _ => {}
                }
            }
            let sent = session.servers.clock.now();
            match if alone { self.alone(epoch).await? } else { self.behind(epoch).await? } {
                Joined::Alone => return self.standing(sent, Stand::Held { followed: false }, 0),
                Joined::Behind(line) => match line.stand(&self.entry.child()) {
                    Some(Stand::Waits(_)) if !request.queue => {
                        leave(self.sessions, self.entry).await?;
                        return Ok(Standing::Busy(Busy { retry_after: None }));
                    }
                    Some(stand) => return self.standing(sent, stand, line.changed),
                    None => {
                        let text = format!("an entry was removed as soon as it had joined {parent}");
                        return Err(Error::new(ErrorKind::Unavailable, text));
                    }
                },
                Joined::Occupied => self.used.set(&request.name, true),
                Joined::Denied(error) => denied = Some(error),
                Joined::Epoch => self.epochs.forget(),
                Joined::NoParent if alone => self.epochs.forget(),
                Joined::NoParent => match denied {
                    Some(error) => return Err(error),
                    None => self.used.set(&request.name, false),
                },
            }
        }
        Err(Error::new(ErrorKind::Unavailable, format!("{parent} came and went {TURNS} times")))
    }

    /// Makes the node of the name, a container, and the entry in it, in one step.
    async fn alone(&self, epoch: Option<i32>) -> Result<Joined> {
        let (paths, session) = (&self.entry.paths, self.entry.room.session());
        let servers = &session.servers;
        // What the server would call the first child of a new node; it counts on from there.
        let path = paths.path("0000000000");
        let mut steps = Vec::with_capacity(4);
        steps.extend(epoch.map(|version| Step::Check(keys::epoch(&servers.base), version)));
        let checks = steps.len();
        steps.push(Step::Create(paths.parent.clone(), zk::CreateMode::Container, servers.acls()));
        steps.push(Step::Create(path.clone(), zk::CreateMode::Ephemeral, servers.acls()));
        // Servers do not tell the number of a node that is created in such a step. They tell it here.
        steps.push(Step::Set(path.clone(), Arc::clone(&paths.data)));
        let client = session.client().map_err(|error| self.failed(error))?;
        let written = session.batch.write(&client, &servers.runtime, Write(steps));
        match session.ask(written).await.map_err(|error| self.failed(error))? {
            Ok(mut results) => {
                let Some(zk::MultiWriteResult::SetData { stat }) = results.pop() else {
                    return Err(self.failed(zk::Error::UnexpectedError("no answer to a write".into())));
                };
                self.made(path, &stat, true)?;
                Ok(Joined::Alone)
            }
            Err((step, _)) if step < checks => Ok(Joined::Epoch),
            Err((_, zk::Error::NodeExists)) => Ok(Joined::Occupied),
            Err((_, zk::Error::NoNode)) => Ok(Joined::NoParent),
            Err((_, error @ zk::Error::NoAuth)) => Ok(Joined::Denied(failed(error, "create", &paths.parent))),
            Err((_, error)) => Err(self.failed(error)),
        }
    }

    /// Sends all at once, one behind the other: the listing shows the line as it is behind the new node, and the read the
    /// token epoch.
    async fn behind(&self, epoch: Option<i32>) -> Result<Joined> {
        let (paths, session) = (&self.entry.paths, self.entry.room.session());
        let newest = keys::epoch(&session.servers.base);
        let mode = zk::CreateMode::EphemeralSequential.with_acls(session.servers.acls());
        let client = session.client().map_err(|error| self.failed(error))?;
        let created = session.ask(client.create(&paths.stem, &paths.data, &mode));
        let newest = async { if epoch.is_some() { session.stat(&newest).await } else { Ok(None) } };
        let (created, listed, newest) = join!(created, session.children(&paths.parent), newest);
        let (stat, sequence) = match created {
            Ok(created) => created,
            Err(zk::Error::NoNode) => return Ok(Joined::NoParent),
            Err(error) => return Err(self.failed(error)),
        };
        self.made(paths.path(&sequence.to_string()), &stat, false)?;
        let line = match newest {
            Ok(stat) if stat.as_ref().map(|stat| stat.version) == epoch => {
                Line::listed(session, &paths.parent, listed).await.map(Option::unwrap_or_default)
            }
            Ok(_) => {
                leave(self.sessions, self.entry).await?;
                self.entry.set_node(None);
                return Ok(Joined::Epoch);
            }
            Err(error) => Err(failed(error, "read", &keys::epoch(&session.servers.base))),
        };
        if line.is_err() {
            // Only with the node gone is a clear error true.
            leave(self.sessions, self.entry).await?;
        }
        line.map(Joined::Behind)
    }

    fn made(&self, path: String, stat: &zk::Stat, alone: bool) -> Result<()> {
        if stat.ephemeral_owner != self.entry.room.id() {
            let text = format!("the new node has the owner {:#x}", stat.ephemeral_owner);
            return Err(self.failed(zk::Error::UnexpectedError(text)));
        }
        let token = FencingToken::new(stat.czxid)?;
        self.entry.set_node(Some(Node { path, token, alone }));
        Ok(())
    }

    /// The answer for an entry that was asked for at `sent`.
    fn standing(&self, sent: onelock_core::Timestamp, stand: Stand, changed: i64) -> Result<Standing> {
        let (entry, request, session) = (self.entry, self.request, self.entry.room.session());
        let held = matches!(stand, Stand::Held { .. });
        let lease = if held { request.lease } else { request.waiter_lease };
        let kept = lease + request.delay;
        if session.lasts(sent) < kept || !entry.begin(session.servers.clock.now() + kept) {
            return Err(too_slow());
        }
        // Nobody can be behind it yet who would have to be notified.
        entry.stands(stand, changed);
        let token = entry.node().ok_or_else(too_slow)?.token;
        Ok(if held {
            Standing::Held(Grant { token, lease })
        } else {
            Standing::Waiting(Place { token: Some(token), lease, retry_after: None })
        })
    }
}
