//! Joining the line: an ephemeral sequential node, and the children as they are behind it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::join;
use onelock_core::{
    Busy, Error, ErrorKind, FencingToken, Grant, Place, Renewal, Renewed, Request, Result, Standing,
    Timestamp,
};
use zookeeper_client as zk;

use crate::backend::Core;
use crate::error::{failed, is_unclear};
use crate::follow::Mark;
use crate::group::{self, Write};
use crate::layout::Draft;
use crate::leave::{delete, erase_later, latest, synced};
use crate::line::Stand;
use crate::listings::Listed;
use crate::pool::Room;
use crate::session::Session;
use crate::table::{Ahead, Entry, Made, Step, pause};
use crate::wait::step_to;
use crate::{keep, look};

/// How often a join is begun anew because the connection broke.
const TRIES: usize = 5;

/// How often it is begun anew because the node of the name came or went meanwhile: each time somebody else got on, so in
/// a crowd that may be often.
const TURNS: usize = 100;

/// Joins the line, or says why not.
pub(crate) async fn acquire(core: &Arc<Core>, request: &Request) -> Result<Standing> {
    core.check()?;
    if let Some(standing) = again(core, request).await? {
        return Ok(standing);
    }
    let need = request.lease.max(request.waiter_lease) + request.delay;
    core.check_need(need)?;
    let draft = Arc::new(Draft::new(&core.target.base, request));
    let parent = &draft.parent;
    let (mut denied, mut broken) = (None, 0);
    for _ in 0..TURNS {
        let session = core.target.room(need, draft.bytes()).await?;
        session.fresh().await?;
        // As far as we know the node of the name is there or not.
        // Whoever else of this client comes now comes behind.
        let alone = denied.is_none() && core.popular.add(&request.name);
        if !request.queue && !alone {
            // Who may not wait must not stand in anybody's way: only a line that admits it is joined.
            match latest(core, &session, parent).await? {
                Some(line) if !line.admits(request.mode) => {
                    return Ok(Standing::Busy(Busy { retry_after: None }));
                }
                Some(_) => {}
                None if denied.is_some() => {}
                None => {
                    core.popular.remove(&request.name);
                    continue;
                }
            }
        }
        let join = Join { core, request, session, draft: Arc::clone(&draft) };
        match join.place(alone).await? {
            Placed::Standing(standing) => return Ok(standing),
            Placed::Occupied => {}
            Placed::Denied(error) => denied = Some(error),
            Placed::NoParent if alone => {
                core.popular.remove(&request.name);
                join.make_base().await?;
            }
            Placed::NoParent => match denied {
                Some(error) => return Err(error),
                None => core.popular.remove(&request.name),
            },
            Placed::Nothing => {
                broken += 1;
                if broken == TRIES {
                    break;
                }
            }
        }
    }
    let text = match broken {
        TRIES => format!("the connection broke {TRIES} times while joining {parent}"),
        _ => format!("{parent} came and went {TURNS} times"),
    };
    Err(Error::new(ErrorKind::Unavailable, text))
}

/// The answer when this holder has an entry.
async fn again(core: &Arc<Core>, request: &Request) -> Result<Option<Standing>> {
    let key = (request.name.clone(), request.holder);
    if core.table.get(&key, core.target.clock.now()).is_none() {
        return Ok(None);
    }
    let (lease, waiter_lease) = (request.lease, request.waiter_lease);
    let renewal = Renewal { ticket: request.ticket(), lease, waiter_lease };
    match keep::renew(core, &[renewal]).await.pop() {
        Some(Ok(Renewed::Held(grant))) => Ok(Some(Standing::Held(grant))),
        Some(Ok(Renewed::Waiting(place))) => Ok(Some(Standing::Waiting(place))),
        Some(Ok(Renewed::NotHeld)) | None => Ok(None),
        Some(Err(error)) => Err(error),
    }
}

struct Join<'a> {
    core: &'a Arc<Core>,
    request: &'a Request,
    session: Arc<Room>,
    draft: Arc<Draft>,
}

enum Placed {
    Standing(Standing),
    /// The node of the name was to be made, and is there.
    Occupied,
    /// The node of the name was to be made, and may not be.
    Denied(Error),
    /// The node above the new one is not there.
    NoParent,
    /// Nothing was created: it may be asked again.
    Nothing,
}

/// The answers to a join.
struct Answers {
    sent: Timestamp,
    /// Its node's path and number.
    created: Result<(String, i64), zk::Error>,
    seen: Seen,
}

/// Who else is in the line.
enum Seen {
    /// Nobody: the node of the name was made with the entry.
    Alone,
    Listed(Listed),
}

impl Join<'_> {
    fn failed(&self, error: zk::Error) -> Error {
        failed(error, "join", &self.draft.parent)
    }

    async fn place(&self, alone: bool) -> Result<Placed> {
        let core = self.core;
        // Before the line is listed: who leaves after that is known to who follows.
        let mark = if alone { None } else { core.follows.mark(&self.session, &self.draft.parent) };
        let (session, draft) = (Arc::clone(&self.session), Arc::clone(&self.draft));
        let call: BoxFuture<'static, Answers> = if alone {
            Box::pin(send_alone(Arc::clone(core), session, draft))
        } else {
            Box::pin(send(Arc::clone(core), session, draft))
        };
        let mut sent = Sent { join: self, call: Some(call) };
        let answers = sent.answers(core.target.config.request_timeout).await;
        let Some(Answers { sent: at, created, mut seen }) = answers else {
            return Err(self.failed(zk::Error::Timeout));
        };
        let (path, czxid) = match created {
            Ok(created) => created,
            Err(zk::Error::NoNode) => return Ok(Placed::NoParent),
            Err(zk::Error::NodeExists) if alone => return Ok(Placed::Occupied),
            Err(error @ zk::Error::NoAuth) if alone => {
                return Ok(Placed::Denied(failed(error, "create", &self.draft.parent)));
            }
            Err(error) if is_unclear(&error) => match self.resolve(error).await? {
                Some(found) => {
                    // What was listed may be older: it can have been sent when the connection was there again.
                    seen = Seen::Listed(Err(zk::Error::ConnectionLoss));
                    found
                }
                None => return Ok(Placed::Nothing),
            },
            Err(zk::Error::SessionExpired) => return Ok(Placed::Nothing),
            Err(error) => return Err(self.failed(error)),
        };
        let mut fresh = Fresh { core, session: &self.session, path: Some(path) };
        let (lease, alone, waits) = match self.stands(seen, fresh.node(&self.draft), mark.as_ref()).await {
            Ok(Some((alone, None))) => (self.request.lease, alone, None),
            Ok(Some((_, waits))) if self.request.queue => (self.request.waiter_lease, false, waits),
            Ok(Some(_)) => {
                fresh.undo().await?;
                return Ok(Placed::Standing(Standing::Busy(Busy { retry_after: None })));
            }
            Ok(None) => {
                let (node, parent) = (fresh.node(&self.draft), &self.draft.parent);
                let text = format!("{node} was removed as soon as it had joined {parent}");
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            // Only with the node gone is a clear error true.
            Err(error) => return fresh.undo().await.and(Err(error)),
        };
        let kept = lease + self.request.delay;
        if self.session.lasts(at) < kept {
            let text = "the contact to the server is too slow for the lease";
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        let token = FencingToken::new(czxid)?;
        let held = waits.is_none();
        let made = Made {
            key: (self.request.name.clone(), self.request.holder),
            mode: self.request.mode,
            token,
            draft: Arc::clone(&self.draft),
            path: fresh.keep(),
            alone,
            session: Arc::clone(&self.session),
        };
        core.table.insert(Entry::new(made, core.target.clock.now() + kept, waits));
        Ok(Placed::Standing(if held {
            Standing::Held(Grant { token, lease })
        } else {
            Standing::Waiting(Place { token: Some(token), lease, retry_after: None })
        }))
    }

    /// Whether it made the node of the name, and what to do until it holds; nothing when its own node is gone. Who made
    /// that node is not to be seen in a listing: servers show a container as any other node.
    async fn stands(
        &self,
        seen: Seen,
        node: &str,
        mark: Option<&Mark>,
    ) -> Result<Option<(bool, Option<(Ahead, Step)>)>> {
        let parent = &self.draft.parent;
        let line = match seen {
            Seen::Alone => return Ok(Some((true, None))),
            Seen::Listed(Ok(children)) => {
                look::ordered(&self.session, parent, look::read(children, parent)?).await?
            }
            Seen::Listed(Err(_)) => look::line(&self.session, parent).await?,
        };
        Ok(line.stand(node).map(|stand| match stand {
            Stand::Held { .. } => (false, None),
            Stand::Waits(watch) => {
                let ahead = Ahead { watch: watch.clone(), changed: line.changed() };
                (false, Some((ahead, step_to(watch, &line, node, mark))))
            }
        }))
    }

    /// Finds out whether a create whose answer was lost has happened. If even that fails the background does it.
    async fn resolve(&self, lost: zk::Error) -> Result<Option<(String, i64)>> {
        let found = find(self.core, &self.session, &self.draft).await;
        if found.is_err() {
            undo_later(self.core, &self.session, &self.draft);
            return Err(self.failed(lost));
        }
        found
    }

    /// Makes the node above all names.
    async fn make_base(&self) -> Result<()> {
        let base = &self.core.target.base;
        let fail = |error| failed(error, "create", base);
        let client = self.session.client().map_err(fail)?;
        let folder = zk::CreateMode::Persistent.with_acls(self.core.target.acls());
        self.session.ask(client.mkdir(base, &folder)).await.map_err(fail)
    }
}

/// Makes the node of the name, a container, and the entry in it, in one step: who made the first is alone with the
/// second, and holds.
async fn send_alone(core: Arc<Core>, session: Arc<Room>, draft: Arc<Draft>) -> Answers {
    // What the server would call the first child of a new node; it counts on from there.
    let path = draft.path("0000000000");
    let acls = core.target.acls();
    let sent = core.target.clock.now();
    let created = async {
        let write = Write::Join { draft: Arc::clone(&draft), path: path.clone(), acls };
        let Some(zk::MultiWriteResult::SetData { stat }) =
            group::write(session.session(), write).await?.pop()
        else {
            return Err(zk::Error::UnexpectedError("no answer to a write".into()));
        };
        session.heard();
        Ok(stat)
    };
    let created = created.await.and_then(|stat| owned(&session, path, &stat));
    Answers { sent, created, seen: Seen::Alone }
}

fn owned(session: &Session, path: String, stat: &zk::Stat) -> Result<(String, i64), zk::Error> {
    if stat.ephemeral_owner == session.id() {
        return Ok((path, stat.czxid));
    }
    Err(zk::Error::UnexpectedError(format!("the new node has the owner {:#x}", stat.ephemeral_owner)))
}

/// Sends both requests at once, one behind the other: the listing shows the line as it is behind the new node.
async fn send(core: Arc<Core>, session: Arc<Room>, draft: Arc<Draft>) -> Answers {
    let sent = core.target.clock.now();
    let client = match session.client() {
        Ok(client) => client,
        Err(error) => return Answers { sent, created: Err(error.clone()), seen: Seen::Listed(Err(error)) },
    };
    let mode = zk::CreateMode::EphemeralSequential.with_acls(core.target.acls());
    let created = client.create(&draft.stem, &draft.data, &mode);
    let listed = core.listings.behind(&session, &client, &draft.parent);
    let (created, listed) = join!(created, listed);
    if created.is_ok() {
        session.heard();
    }
    let created =
        created.and_then(|(stat, sequence)| owned(&session, draft.path(&sequence.to_string()), &stat));
    Answers { sent, created, seen: Seen::Listed(listed) }
}

/// A join that was sent. Whoever lets go of it, what it creates does not stay.
struct Sent<'a> {
    join: &'a Join<'a>,
    call: Option<BoxFuture<'static, Answers>>,
}

impl Sent<'_> {
    async fn answers(&mut self, limit: Duration) -> Option<Answers> {
        let call = self.call.as_mut()?;
        let answers = tokio::time::timeout(limit, call).await.ok()?;
        self.call = None;
        Some(answers)
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        let (core, session) = (Arc::clone(self.join.core), Arc::clone(&self.join.session));
        let draft = Arc::clone(&self.join.draft);
        self.join.core.target.runtime.spawn(async move {
            match call.await.created {
                Ok((path, _)) => erase_later(&core, &session, path),
                Err(error) if is_unclear(&error) => undo_later(&core, &session, &draft),
                Err(_) => {}
            }
        });
    }
}

/// A node that was created and is not an entry yet: it goes when this is dropped.
struct Fresh<'a> {
    core: &'a Arc<Core>,
    session: &'a Arc<Room>,
    path: Option<String>,
}

impl Fresh<'_> {
    fn node<'b>(&'b self, draft: &Draft) -> &'b str {
        draft.node(self.path.as_deref().unwrap_or_default())
    }

    /// Its path, for an entry.
    fn keep(&mut self) -> String {
        self.path.take().unwrap_or_default()
    }

    async fn undo(&mut self) -> Result<()> {
        if let Some(path) = &self.path {
            delete(self.core, self.session.session(), path).await?;
        }
        self.path = None;
        Ok(())
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.path.take() {
            erase_later(self.core, self.session, path);
        }
    }
}

/// Looks for the node of a create whose answer was lost: ours is known by its id and its owner.
///
/// A server that had the request on the broken connection has dealt with it before it deals with this one, and what
/// another server forwards late for a session that has moved the leader refuses: what is not there now will not come.
async fn find(core: &Core, session: &Session, draft: &Draft) -> Result<Option<(String, i64)>> {
    let parent = &draft.parent;
    let Some(line) = synced(session, parent).await? else { return Ok(None) };
    let ours = draft.node(&draft.stem);
    for node in line.nodes().iter().filter(|node| node.name.starts_with(ours)) {
        let path = format!("{parent}/{}", node.name);
        let client = session.client().map_err(|error| failed(error, "read", &path))?;
        let stat =
            session.ask(client.check_stat(&path)).await.map_err(|error| failed(error, "read", &path))?;
        if let Some(stat) =
            stat.filter(|stat| stat.ephemeral_owner == session.id() && !core.table.has_path(&path))
        {
            return Ok(Some((path, stat.czxid)));
        }
    }
    Ok(None)
}

/// Removes what a lost create may have left, however long it takes to find out; the end of the session does it too.
fn undo_later(core: &Arc<Core>, session: &Arc<Room>, draft: &Arc<Draft>) {
    let (core, session, draft) = (Arc::clone(core), Arc::clone(session), Arc::clone(draft));
    let runtime = core.target.runtime.clone();
    runtime.spawn(async move {
        let mut attempt = 0;
        while !session.is_over() && !core.is_closed() {
            match find(&core, &session, &draft).await {
                Ok(Some((path, _))) => return erase_later(&core, &session, path),
                Ok(None) => return,
                Err(_) => tokio::time::sleep(pause(attempt)).await,
            }
            attempt += 1;
        }
    });
}
