//! Joining the line: an ephemeral sequential node, and the children as they are behind it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::join;
use lock_core::{
    Busy, Error, ErrorKind, FencingToken, Grant, Place, Renewal, Renewed, Request, Result, Standing,
    Timestamp,
};
use zookeeper_client as zk;

use crate::backend::Core;
use crate::error::{failed, is_unclear};
use crate::layout;
use crate::leave::{delete, erase_later, latest, synced};
use crate::line::{Line, Stand};
use crate::listings::Listed;
use crate::session::Session;
use crate::table::{Entry, Made, pause};
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
    let parent = layout::parent(&core.target.base, &request.name);
    let (mut denied, mut broken) = (None, 0);
    for _ in 0..TURNS {
        let session = core.target.session(need).await?;
        session.fresh().await?;
        // As far as we know the node of the name is there or not.
        let alone = denied.is_none() && !core.popular.has(&request.name);
        if !request.queue && !alone {
            // Who may not wait must not stand in anybody's way: only a line that admits it is joined.
            match latest(core, &session, &parent).await? {
                Some(line) if !line.admits(request.mode) => {
                    return Ok(Standing::Busy(Busy { retry_after: None }));
                }
                Some(_) => {}
                None if denied.is_some() => {}
                None => {
                    core.popular.note(&request.name, false);
                    continue;
                }
            }
        }
        if alone {
            // Whoever else of this client comes now comes behind.
            core.popular.note(&request.name, true);
        }
        let prefix = layout::prefix(request.holder, request.mode);
        let join = Join { core, request, session, parent: &parent, prefix };
        match join.place(alone).await? {
            Placed::Standing(standing) => return Ok(standing),
            Placed::Occupied => {}
            Placed::Denied(error) => denied = Some(error),
            Placed::NoParent if alone => {
                core.popular.note(&request.name, false);
                join.make_base().await?;
            }
            Placed::NoParent => match denied {
                Some(error) => return Err(error),
                None => core.popular.note(&request.name, false),
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
    session: Arc<Session>,
    parent: &'a str,
    prefix: String,
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
    /// Its node's name and number.
    created: Result<(String, i64), zk::Error>,
    listed: Listed,
}

impl Join<'_> {
    fn failed(&self, error: zk::Error) -> Error {
        failed(error, "join", self.parent)
    }

    async fn place(&self, alone: bool) -> Result<Placed> {
        let core = self.core;
        let data = layout::data(self.request.mode, self.request.note.as_str());
        // Before the line is listed: who leaves after that is known to who follows.
        let mark = if alone { None } else { core.follows.mark(&self.session, self.parent) };
        let mut sent = Sent {
            core: Arc::clone(core),
            session: Arc::clone(&self.session),
            parent: self.parent.to_owned(),
            prefix: self.prefix.clone(),
            call: Some(if alone {
                send_alone(core, &self.session, self.parent, &self.prefix, &data)
            } else {
                send(core, &self.session, self.parent, &self.prefix, &data)
            }),
        };
        let answers = sent.answers(core.target.config.request_timeout).await;
        let Some(Answers { sent: at, created, mut listed }) = answers else {
            return Err(self.failed(zk::Error::Timeout));
        };
        let (node, czxid) = match created {
            Ok(created) => created,
            Err(zk::Error::NoNode) => return Ok(Placed::NoParent),
            Err(zk::Error::NodeExists) if alone => return Ok(Placed::Occupied),
            Err(error @ zk::Error::NoAuth) if alone => {
                return Ok(Placed::Denied(failed(error, "create", self.parent)));
            }
            Err(error) if is_unclear(&error) => match self.resolve(error).await? {
                Some(found) => {
                    // What was listed may be older: it can have been sent when the connection was there again.
                    listed = Err(zk::Error::ConnectionLoss);
                    found
                }
                None => return Ok(Placed::Nothing),
            },
            Err(zk::Error::SessionExpired) => return Ok(Placed::Nothing),
            Err(error) => return Err(self.failed(error)),
        };
        let mut fresh = Fresh { core, session: &self.session, path: Some(format!("{}/{node}", self.parent)) };
        let line = match listed {
            Ok((children, container)) => match look::read(children, self.parent) {
                Ok(line) => look::ordered(&self.session, self.parent, line.in_container(container)).await,
                Err(foreign) => Err(foreign),
            },
            Err(_) => look::line(&self.session, self.parent).await,
        };
        let line = match line {
            Ok(line) => line,
            Err(error) => {
                // Only with the node gone is a clear error true.
                return fresh.undo().await.and(Err(error));
            }
        };
        let (lease, alone, step) = match line.stand(&node) {
            Some(Stand::Held { alone, .. }) => (self.request.lease, alone, None),
            Some(Stand::Waits(watch)) if self.request.queue => {
                (self.request.waiter_lease, false, Some(step_to(watch, &line, &node, mark.as_ref())))
            }
            Some(Stand::Waits(_)) => {
                fresh.undo().await?;
                return Ok(Placed::Standing(Standing::Busy(Busy { retry_after: None })));
            }
            None => {
                let text = format!("{node} was removed as soon as it had joined {}", self.parent);
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
        };
        let kept = lease + self.request.delay;
        if self.session.lasts(at) < kept {
            let text = "the contact to the server is too slow for the lease";
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        let token = FencingToken::new(czxid)?;
        let held = step.is_none();
        let made = Made {
            key: (self.request.name.clone(), self.request.holder),
            mode: self.request.mode,
            token,
            parent: self.parent.to_owned(),
            node,
            data,
            session: Arc::clone(&self.session),
        };
        let entry = Entry::new(made, core.target.clock.now() + kept, alone, step);
        fresh.keep();
        core.table.insert(entry);
        Ok(Placed::Standing(if held {
            Standing::Held(Grant { token, lease })
        } else {
            Standing::Waiting(Place { token, lease, retry_after: None })
        }))
    }

    /// Finds out whether a create whose answer was lost has happened. If even that fails the background does it.
    async fn resolve(&self, lost: zk::Error) -> Result<Option<(String, i64)>> {
        let found = find(self.core, &self.session, self.parent, &self.prefix).await;
        if found.is_err() {
            undo_later(self.core, &self.session, self.parent.to_owned(), self.prefix.clone());
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
fn send_alone(
    core: &Core,
    session: &Arc<Session>,
    parent: &str,
    prefix: &str,
    data: &[u8],
) -> BoxFuture<'static, Answers> {
    let (session, clock, acls) = (Arc::clone(session), Arc::clone(&core.target.clock), core.target.acls());
    // What the server would call the first child of a new node; it counts on from there.
    let node = format!("{prefix}{:010}", 0);
    let (parent, path, data) = (parent.to_owned(), format!("{parent}/{node}"), data.to_vec());
    Box::pin(async move {
        let sent = clock.now();
        let created = async {
            let client = session.client()?;
            let mut writer = client.new_multi_writer();
            writer.add_create(&parent, b"", &zk::CreateMode::Container.with_acls(acls))?;
            writer.add_create(&path, b"", &zk::CreateMode::Ephemeral.with_acls(acls))?;
            // Servers do not tell the number of a node that is created in such a step. They tell it here.
            writer.add_set_data(&path, &data, Some(0))?;
            let Some(zk::MultiWriteResult::SetData { stat }) = writer.commit().await?.pop() else {
                return Err(zk::Error::UnexpectedError("no answer to a write".into()));
            };
            session.heard(sent);
            owned(&session, node, &stat)
        };
        let created = created.await;
        let listed = created.as_ref().map(|(node, _)| (vec![node.clone()], true)).map_err(Clone::clone);
        Answers { sent, created, listed }
    })
}

fn owned(session: &Session, node: String, stat: &zk::Stat) -> Result<(String, i64), zk::Error> {
    if stat.ephemeral_owner == session.id() {
        return Ok((node, stat.czxid));
    }
    Err(zk::Error::UnexpectedError(format!("the new node has the owner {:#x}", stat.ephemeral_owner)))
}

/// Sends both requests at once, one behind the other: the listing shows the line as it is behind the new node.
fn send(
    core: &Arc<Core>,
    session: &Arc<Session>,
    parent: &str,
    prefix: &str,
    data: &[u8],
) -> BoxFuture<'static, Answers> {
    let (core, session, acls) = (Arc::clone(core), Arc::clone(session), core.target.acls());
    let (parent, path, data) = (parent.to_owned(), format!("{parent}/{prefix}"), data.to_vec());
    let prefix = prefix.to_owned();
    Box::pin(async move {
        let sent = core.target.clock.now();
        let client = match session.client() {
            Ok(client) => client,
            Err(error) => return Answers { sent, created: Err(error.clone()), listed: Err(error) },
        };
        let mode = zk::CreateMode::EphemeralSequential.with_acls(acls);
        let created = client.create(&path, &data, &mode);
        let listed = core.listings.behind(&session, &client, &parent);
        let (created, listed) = join!(created, listed);
        if created.is_ok() {
            session.heard(sent);
        }
        let created =
            created.and_then(|(stat, sequence)| owned(&session, format!("{prefix}{sequence}"), &stat));
        Answers { sent, created, listed }
    })
}

/// A join that was sent. Whoever lets go of it, what it creates does not stay.
struct Sent {
    core: Arc<Core>,
    session: Arc<Session>,
    parent: String,
    prefix: String,
    call: Option<BoxFuture<'static, Answers>>,
}

impl Sent {
    async fn answers(&mut self, limit: Duration) -> Option<Answers> {
        let call = self.call.as_mut()?;
        let answers = tokio::time::timeout(limit, call).await.ok()?;
        self.call = None;
        Some(answers)
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        let (core, session) = (Arc::clone(&self.core), Arc::clone(&self.session));
        let (parent, prefix) = (std::mem::take(&mut self.parent), std::mem::take(&mut self.prefix));
        self.core.target.runtime.spawn(async move {
            match call.await.created {
                Ok((node, _)) => erase_later(&core, &session, format!("{parent}/{node}")),
                Err(error) if is_unclear(&error) => undo_later(&core, &session, parent, prefix),
                Err(_) => {}
            }
        });
    }
}

/// A node that was created and is not an entry yet: it goes when this is dropped.
struct Fresh<'a> {
    core: &'a Arc<Core>,
    session: &'a Arc<Session>,
    path: Option<String>,
}

impl Fresh<'_> {
    fn keep(&mut self) {
        self.path = None;
    }

    async fn undo(&mut self) -> Result<()> {
        if let Some(path) = &self.path {
            delete(self.core, self.session, path).await?;
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
async fn find(core: &Core, session: &Session, parent: &str, prefix: &str) -> Result<Option<(String, i64)>> {
    let Some(line) = synced(session, parent).await? else { return Ok(None) };
    for node in ours(&line, prefix) {
        let path = format!("{parent}/{node}");
        let client = session.client().map_err(|error| failed(error, "read", &path))?;
        let stat =
            session.ask(client.check_stat(&path)).await.map_err(|error| failed(error, "read", &path))?;
        if let Some(stat) =
            stat.filter(|stat| stat.ephemeral_owner == session.id() && !core.table.has_path(&path))
        {
            return Ok(Some((node.to_owned(), stat.czxid)));
        }
    }
    Ok(None)
}

fn ours<'a>(line: &'a Line, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    line.nodes().iter().map(|node| node.name.as_str()).filter(move |name| name.starts_with(prefix))
}

/// Removes what a lost create may have left, however long it takes to find out; the end of the session does it too.
fn undo_later(core: &Arc<Core>, session: &Arc<Session>, parent: String, prefix: String) {
    let (core, session) = (Arc::clone(core), Arc::clone(session));
    let runtime = core.target.runtime.clone();
    runtime.spawn(async move {
        let mut attempt = 0;
        while !session.is_over() && !core.is_closed() {
            match find(&core, &session, &parent, &prefix).await {
                Ok(Some((node, _))) => return erase_later(&core, &session, format!("{parent}/{node}")),
                Ok(None) => return,
                Err(_) => tokio::time::sleep(pause(attempt)).await,
            }
            attempt += 1;
        }
    });
}
