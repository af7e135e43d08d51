//! Joining the line: an ephemeral sequential node, and the children as they are behind it.
//!
//! Where the name has no node yet, both are made in one transaction, which many names share: who made the node of the name
//! is alone in it, and holds.

use std::sync::Arc;

use futures_util::join;
use onelock_core::toolkit::in_use::InUse;
use onelock_core::{
    Busy, Error, ErrorKind, FencingToken, Grant, Place, Renewal, Renewed, Request, Result, Standing,
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

/// Joins the line, or says why not.
pub(crate) async fn acquire(
    sessions: &Arc<Sessions>,
    entries: &Entries,
    epochs: &Epochs,
    used: &InUse,
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
    let answer = Join { sessions, epochs, used, request, entry: &entry, denied: None }.join().await;
    match &answer {
        Ok(Standing::Busy(_)) => entries.remove(&entry),
        Err(error) if !error.is_unclear() => entries.remove(&entry),
        // What is not clear stays: it is released, or ends with its lease.
        _ => {}
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
    let renewal = Renewal::new(request.ticket(), lease, waiter_lease);
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
    used: &'a InUse,
    request: &'a Request,
    entry: &'a Arc<Entry>,
    /// Why the node of the name may not be made.
    denied: Option<Error>,
}

/// How the new entry stands, and the transaction that had changed the line last; nothing when the join is to begin anew.
type Joined = Option<(Stand, i64)>;

impl Join<'_> {
    fn failed(&self, error: zk::Error) -> Error {
        failed(error, "join", &self.entry.paths.parent)
    }

    async fn join(mut self) -> Result<Standing> {
        let (request, session) = (self.request, self.entry.room.session());
        let parent = &self.entry.paths.parent;
        let busy = Ok(Standing::Busy(Busy::default()));
        for _ in 0..TURNS {
            let epoch = self.epochs.admit(session, request.epoch).await?;
            session.fresh().await?;
            let alone = !self.used.has(&request.name);
            if !request.queue && !alone {
                // Who may not wait must not stand in anybody's way: only a line that admits it is joined.
                match Line::latest(session, parent).await? {
                    Some(line) if !line.admits(request.mode) => return busy,
                    None if self.denied.is_none() => {
                        self.used.note(&request.name, false);
                        continue;
                    }
                    _ => {}
                }
            }
            let sent = session.servers.clock.now();
            match if alone { self.alone(epoch).await? } else { self.behind(epoch).await? } {
                Some((Stand::Waits(_), _)) if !request.queue => {
                    leave(self.sessions, self.entry).await?;
                    return busy;
                }
                Some((stand, changed)) => return self.standing(sent, stand, changed),
                None => {}
            }
        }
        Err(Error::new(ErrorKind::Unavailable, format!("{parent} came and went {TURNS} times")))
    }

    /// Makes the node of the name, a container, and the entry in it, in one step.
    async fn alone(&mut self, epoch: Option<i32>) -> Result<Joined> {
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
        match session.write(Write(steps)).await.map_err(|error| self.failed(error))? {
            Ok(mut results) => {
                let Some(zk::MultiWriteResult::SetData { stat }) = results.pop() else {
                    return Err(self.failed(zk::Error::UnexpectedError("no answer to a write".into())));
                };
                self.made(path, &stat, true)?;
                return Ok(Some((Stand::Held { followed: false }, 0)));
            }
            Err((step, _)) if step < checks => self.epochs.forget(),
            Err((_, zk::Error::NodeExists)) => self.used.note(&self.request.name, true),
            // The node above all names is gone.
            Err((_, zk::Error::NoNode)) => self.epochs.forget(),
            Err((_, error @ zk::Error::NoAuth)) => {
                // Somebody else may have made it.
                self.denied = Some(failed(error, "create", &paths.parent));
                self.used.note(&self.request.name, true);
            }
            Err((_, error)) => return Err(self.failed(error)),
        }
        Ok(None)
    }

    /// Sends all at once, one behind the other: the listing shows the line as it is behind the new node, and the read the
    /// token epoch.
    async fn behind(&mut self, epoch: Option<i32>) -> Result<Joined> {
        let (paths, session) = (&self.entry.paths, self.entry.room.session());
        let newest = keys::epoch(&session.servers.base);
        let mode = zk::CreateMode::EphemeralSequential.with_acls(session.servers.acls());
        let client = session.client().map_err(|error| self.failed(error))?;
        let created = session.ask(client.create(&paths.stem, &paths.data, &mode));
        let newest = async { if epoch.is_some() { session.stat(&newest).await } else { Ok(None) } };
        let (created, listed, newest) = join!(created, session.children(&paths.parent), newest);
        let (stat, sequence) = match created {
            Ok(created) => created,
            Err(zk::Error::NoNode) => {
                self.used.note(&self.request.name, false);
                return self.denied.take().map_or(Ok(None), Err);
            }
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
                self.epochs.forget();
                return Ok(None);
            }
            Err(error) => Err(failed(error, "read", &keys::epoch(&session.servers.base))),
        };
        if line.is_err() {
            // Only with the node gone is a clear error true.
            leave(self.sessions, self.entry).await?;
        }
        let line = line?;
        let stand = line.stand(&self.entry.child()).ok_or_else(|| {
            let text = format!("an entry was removed as soon as it had joined {}", paths.parent);
            Error::new(ErrorKind::Unavailable, text)
        })?;
        Ok(Some((stand, line.changed)))
    }

    fn made(&self, path: String, stat: &zk::Stat, alone: bool) -> Result<()> {
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
            Standing::Held(Grant::new(token, lease))
        } else {
            Standing::Waiting(Place::new(token, lease))
        })
    }
}
