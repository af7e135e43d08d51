//! Joining the line: an ephemeral sequential node, and the children as they are behind it.
//!
//! Where the name has no node yet, both are made in one transaction, which many names share: the client that made the name's
//! node is alone in it, and holds.

use std::sync::Arc;

use futures_util::join;
use onelock_core::toolkit::in_use::InUse;
use onelock_core::{
    Busy, Error, ErrorKind, FencingToken, Renewal, Renewed, Request, Result, Standing, TokenEpoch,
};
use zookeeper_client as zk;

use crate::batch::Step;
use crate::entries::{Entries, Entry, Node};
use crate::error::failed;
use crate::keys::{self, Paths};
use crate::line::{Line, Stand};
use crate::release::leave;
use crate::renew::{kept, renew};
use crate::session::too_slow;
use crate::sessions::Sessions;

/// How often a join is begun anew because the node of the name came or went meanwhile: each time somebody else got on, so
/// among many that may be often.
const TURNS: usize = 100;

/// Joins the line, or says why not.
pub(crate) async fn acquire(
    sessions: &Arc<Sessions>,
    entries: &Entries,
    request: &Request,
) -> Result<Standing> {
    let servers = &sessions.servers;
    if let Some(entry) = entries.get(request.holder, servers.clock.now()) {
        if entry.node().is_none() {
            // Its join failed, perhaps before its epoch was compared: it joins anew.
            leave(sessions, &entry).await?;
            entries.remove(&entry);
        } else {
            match renew(sessions, entries, &[renewal(request)]).await.pop().transpose()? {
                Some(Renewed::Held(grant)) => return Ok(Standing::Held(grant)),
                Some(Renewed::Waiting(place)) => return Ok(Standing::Waiting(place)),
                Some(Renewed::NotHeld) | None => {}
            }
        }
    }
    if entries.has_lapsed(request.holder) {
        let text = "what an earlier join of this holder has made is being deleted";
        return Err(Error::new(ErrorKind::Unavailable, text).unsent());
    }
    let paths = Paths::new(&servers.base, request);
    let need = request.lease.max(request.waiter_lease) + request.delay;
    let room = sessions.with_room(need, paths.bytes()).await?;
    let ends = servers.clock.now() + need + servers.config.request_timeout;
    let entry = Entry::new(request, paths, room, ends);
    entries.insert(&entry);
    let answer = Join { sessions, in_use: &entries.in_use, request, entry: &entry }.join().await;
    let stays = match &answer {
        Ok(standing) => !matches!(standing, Standing::Busy(_)),
        // What is not clear is released, or ends with its lease.
        Err(error) => error.is_unclear(),
    };
    if !stays {
        if entry.made().is_some() {
            leave(sessions, &entry).await?;
        }
        entries.remove(&entry);
    }
    answer
}

/// What keeps an entry for as long as its join asks for.
fn renewal(request: &Request) -> Renewal {
    Renewal::new(request.ticket(), request.lease, request.waiter_lease)
}

struct Join<'a> {
    sessions: &'a Arc<Sessions>,
    in_use: &'a InUse,
    request: &'a Request,
    entry: &'a Arc<Entry>,
}

/// The node of the new entry, and how it stands; nothing when the join is to begin anew.
type Joined = Option<(Node, Stand)>;

impl Join<'_> {
    fn failed(&self, error: zk::Error) -> Error {
        failed(error, "join", &self.entry.paths.parent)
    }

    async fn join(self) -> Result<Standing> {
        let (request, session) = (self.request, &self.entry.session);
        let parent = &self.entry.paths.parent;
        let busy = Ok(Standing::Busy(Busy::default()));
        for _ in 0..TURNS {
            let epoch = session.epochs.admit(session, request.epoch).await?;
            let alone = !self.in_use.has(&request.name);
            if !request.queue && !alone {
                // A try must not be in the way of others: it joins only a line that admits it.
                let line = Line::latest(session, parent).await?;
                if !line.admits(request.mode) {
                    return busy;
                }
            }
            // Behind what was read: it may have taken its time.
            session.fresh().await?;
            let sent = session.servers.clock.now();
            match if alone { self.alone(epoch).await? } else { self.behind(epoch).await? } {
                // The connection has changed since: it was compared with what others may have restored or made anew.
                Some(_) if !session.epochs.is(request.epoch, epoch) => self.undo().await?,
                Some((_, stand)) if stand != Stand::Held && !request.queue => return busy,
                Some((node, stand)) => {
                    // No waiter behind it is to be notified yet.
                    self.entry.set_stand(Some(stand));
                    return match kept(self.entry, &node, sent, &renewal(request)) {
                        Renewed::Held(grant) if grant.lease >= request.lease => Ok(Standing::Held(grant)),
                        Renewed::Waiting(place) if place.lease >= request.waiter_lease => {
                            Ok(Standing::Waiting(place))
                        }
                        _ => Err(too_slow()),
                    };
                }
                None => {}
            }
        }
        Err(Error::new(ErrorKind::Unavailable, format!("{parent} came and went {TURNS} times")))
    }

    /// Makes the node of the name, a container, and the entry in it, in one step.
    async fn alone(&self, epoch: Option<i32>) -> Result<Joined> {
        let (paths, session) = (&self.entry.paths, &self.entry.session);
        let servers = &session.servers;
        // What the server would call the first child of a new node; it counts on from there.
        let path = paths.path("0000000000");
        let mut steps = Vec::with_capacity(4);
        steps.extend(epoch.map(|version| Step::Check(keys::epoch(&servers.base), version)));
        steps.push(Step::Create(paths.parent.clone(), zk::CreateMode::Container, servers.acls()));
        steps.push(Step::Create(path.clone(), zk::CreateMode::Ephemeral, servers.acls()));
        // Servers do not tell the number of a node that is created in such a step. They tell it here.
        steps.push(Step::Set(path.clone(), Arc::clone(&paths.data)));
        match session.write(steps, "join", &paths.parent).await? {
            Ok(mut results) => {
                let Some(zk::MultiWriteResult::SetData { stat }) = results.pop() else {
                    return Err(self.failed(zk::Error::UnexpectedError("no answer to a write".into())));
                };
                return Ok(Some((self.made(path, &stat, true)?, Stand::Held)));
            }
            Err((_, zk::Error::NodeExists)) => self.in_use.note(&self.request.name, true),
            // The node of the token epochs has changed or may not be read any more, or the one above all names is gone.
            Err((_, zk::Error::BadVersion | zk::Error::NoNode)) => session.epochs.forget(),
            Err((0, zk::Error::NoAuth)) if epoch.is_some() => session.epochs.forget(),
            Err((_, error @ zk::Error::NoAuth)) => {
                // Somebody else may have made it.
                if matches!(session.stat(&paths.parent).await, Ok(None)) {
                    return Err(failed(error, "create", &paths.parent));
                }
                self.in_use.note(&self.request.name, true);
            }
            Err((_, error)) => return Err(self.failed(error)),
        }
        Ok(None)
    }

    /// Sends all at once, one behind the other: the listing shows the line as it is behind the new node, and the read the
    /// token epoch.
    async fn behind(&self, epoch: Option<i32>) -> Result<Joined> {
        let (paths, session) = (&self.entry.paths, &self.entry.session);
        let newest = keys::epoch(&session.servers.base);
        let mode = zk::CreateMode::EphemeralSequential.with_acls(session.servers.acls());
        let client = session.ask(session.client()).await.map_err(|error| self.failed(error))?;
        let created = session.ask(client.create(&paths.stem, &paths.data, &mode));
        let admitted = async { if epoch.is_some() { session.stat(&newest).await } else { Ok(None) } };
        let (created, line, admitted) = join!(created, Line::read(session, &paths.parent), admitted);
        let (stat, sequence) = match created {
            Ok(created) => created,
            Err(zk::Error::NoNode) => {
                self.in_use.note(&self.request.name, false);
                return Ok(None);
            }
            Err(error) => return Err(self.failed(error)),
        };
        let node = self.made(paths.path(&sequence.to_string()), &stat, false)?;
        if admitted?.map(|stat| stat.version) != epoch {
            session.epochs.forget();
            self.undo().await?;
            return Ok(None);
        }
        let stand = line?.stand(&node.path).ok_or_else(|| {
            let text = format!("an entry was removed as soon as it had joined {}", paths.parent);
            Error::new(ErrorKind::Unavailable, text)
        })?;
        Ok(Some((node, stand)))
    }

    /// Takes back an entry whose epoch may be too small.
    async fn undo(&self) -> Result<()> {
        leave(self.sessions, self.entry).await?;
        self.entry.set_node(None);
        Ok(())
    }

    fn made(&self, path: String, stat: &zk::Stat, alone: bool) -> Result<Node> {
        let node = Node { path, token: FencingToken::new(stat.czxid)?, alone };
        self.entry.set_node(Some(node.clone()));
        // Its bits would be taken for the epoch's, and tokens go back.
        if self.request.epoch.min(TokenEpoch::of(stat.czxid)) > TokenEpoch::default() {
            let text = "after 65536 elections the ensemble has no number left below those of a token_epoch: make it \
                 anew, with a larger token_epoch";
            return Err(Error::new(ErrorKind::Full, text));
        }
        Ok(node)
    }
}
