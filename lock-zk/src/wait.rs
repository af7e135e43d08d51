//! Waiting: one watch on the one node that matters, kept over dropped calls.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use onelock_core::{Error, ErrorKind, Mode, Result, Ticket, Wake};
use zookeeper_client as zk;

use crate::backend::Core;
use crate::error::failed;
use crate::follow::{Followed, MOST, Mark, begin_to_follow};
use crate::line::{Line, Stand, Watch};
use crate::look;
use crate::table::{Entry, Fired, News, Step};

/// Ends when the entry holds, or when asking again may help.
pub(crate) async fn wait(core: &Arc<Core>, ticket: &Ticket) -> Result<Wake> {
    core.check()?;
    tokio::select! {
        biased;
        error = core.until_closed() => Err(error),
        wake = until_promoted(core, ticket) => wake,
    }
}

async fn until_promoted(core: &Arc<Core>, ticket: &Ticket) -> Result<Wake> {
    let key = (ticket.name.clone(), ticket.holder);
    // The mark that was seen last: a neighbour that was marked by others is not looked at again and again.
    let mut seen = None;
    loop {
        let Some(entry) = core.table.get(&key, core.target.clock.now()) else { return Ok(Wake::Ask) };
        if entry.is_held() {
            return Ok(Wake::Held(entry.token));
        }
        let next = match entry.take_step() {
            Step::Armed(fired) => {
                let mut armed = Armed { entry: &entry, fired: Some(fired) };
                let news = AssertUnwindSafe(&mut armed).catch_unwind().await;
                armed.fired = None;
                match news {
                    Ok(News::Over) => return Ok(Wake::Ask),
                    Ok(News::Promoted) => {
                        promoted(core, &entry, true);
                        continue;
                    }
                    Ok(News::Unblocked) => Some(Step::Confirm),
                    Ok(News::Changed) => Some(Step::Look),
                    Err(_) => {
                        let text = "the session's task has ended with the runtime it ran on";
                        return Err(Error::new(ErrorKind::Unavailable, text));
                    }
                }
            }
            // In a place of its own: a waiter keeps no room for requests while it waits.
            step => Box::pin(advance(core, &entry, step, &mut seen)).await?,
        };
        match next {
            Some(step) => entry.put_step(step),
            None if entry.is_held() => {}
            // It is not in the line any more: asking says so.
            None => return Ok(Wake::Ask),
        }
    }
}

/// Takes a step that needs the server; the next one.
async fn advance(
    core: &Arc<Core>,
    entry: &Arc<Entry>,
    step: Step,
    seen: &mut Option<(String, i32)>,
) -> Result<Option<Step>> {
    match step {
        Step::Look => {
            let mark = core.follows.mark(&entry.session, entry.parent());
            let line = look::line(&entry.session, entry.parent()).await?;
            Ok(judge(core, entry, &line, mark.as_ref()))
        }
        Step::Arm(Watch::Children) => arm_children(core, entry).await,
        Step::Arm(Watch::Gone { node, sure, few }) => {
            if few && !sure {
                match begin_to_follow(core, entry).await? {
                    Followed::Line(line, mark) => return Ok(judge(core, entry, &line, Some(&mark))),
                    Followed::Before => return Ok(Some(Step::Look)),
                    Followed::No => {}
                }
            }
            arm(entry, &node, sure, None).await
        }
        Step::Arm(Watch::Mark { node }) => arm(entry, &node, false, Some(seen)).await,
        // The session has seen the one ahead go, so it sees what went before that, too.
        Step::Confirm => {
            let client = entry.session.client().map_err(|error| failed(error, "read", &entry.path))?;
            let own = entry.session.ask(client.check_stat(&entry.path)).await;
            if own.map_err(|error| failed(error, "read", &entry.path))?.is_some() {
                promoted(core, entry, true);
            }
            Ok(None)
        }
        armed @ Step::Armed(_) => Ok(Some(armed)),
    }
}

/// What to do after seeing the line; nothing when it holds, or is gone.
fn judge(core: &Arc<Core>, entry: &Arc<Entry>, line: &Line, mark: Option<&Mark>) -> Option<Step> {
    match line.stand(entry.node()) {
        Some(Stand::Waits(watch)) => {
            entry.wait_for(watch.clone(), line.changed());
            Some(step_to(watch, line, entry.node(), mark))
        }
        Some(Stand::Held { followed }) => {
            promoted(core, entry, followed);
            None
        }
        None => None,
    }
}

/// How a waiter with this node comes to be told: by following the line, where that was marked before the line was listed,
/// or by a watch of its own.
pub(crate) fn step_to(watch: Watch, line: &Line, node: &str, mark: Option<&Mark>) -> Step {
    let Some(mark) = mark else { return Step::Arm(watch) };
    if line.nodes().len() > 2 * MOST {
        mark.give_up();
    }
    match (line.ahead(node).and_then(|ahead| mark.follow(node, ahead)), watch) {
        (Some(following), _) => Step::Armed(Box::pin(async move {
            if following.promoted().await { News::Promoted } else { News::Changed }
        })),
        // Not followed now, so not tried again at once.
        (None, Watch::Gone { node, sure, .. }) => Step::Arm(Watch::Gone { node, sure, few: false }),
        (None, watch) => Step::Arm(watch),
    }
}

/// Notes a promotion. A permit tells the one behind it, which watches its node, by writing the node's data once more:
/// nothing else in the tree changes when a permit is promoted.
pub(crate) fn promoted(core: &Core, entry: &Arc<Entry>, followed: bool) {
    if !entry.hold() || !followed || !matches!(entry.mode, Mode::Permit(_)) {
        return;
    }
    let entry = Arc::clone(entry);
    core.target.runtime.spawn(async move {
        let Ok(client) = entry.session.client() else { return };
        // If it fails the neighbour sees the promotion when it renews.
        let _ = entry.session.ask(client.set_data(&entry.path, &entry.draft.data, None)).await;
    });
}

/// Sets a watch on a node.
async fn arm(
    entry: &Arc<Entry>,
    node: &str,
    sure: bool,
    seen: Option<&mut Option<(String, i32)>>,
) -> Result<Option<Step>> {
    let path = format!("{}/{node}", entry.parent());
    let fail = |error| failed(error, "watch", &path);
    let client = entry.session.client().map_err(fail)?;
    match entry.session.ask(client.get_and_watch_data(&path)).await {
        Ok((_, stat, watcher)) => {
            if let Some(seen) = seen {
                let mark = Some((node.to_owned(), stat.version));
                if stat.version > 0 && *seen != mark {
                    // Promoted before the watch was set: the line that was seen is older than that.
                    *seen = mark;
                    entry.session.ask(client.sync(entry.parent())).await.map_err(fail)?;
                    return Ok(Some(Step::Look));
                }
            }
            Ok(Some(Step::Armed(fired(watcher, sure))))
        }
        Err(zk::Error::NoNode) if sure => Ok(Some(Step::Confirm)),
        Err(zk::Error::NoNode) => Ok(Some(Step::Look)),
        Err(error) => Err(fail(error)),
    }
}

/// Sets a watch on all that come and go.
async fn arm_children(core: &Arc<Core>, entry: &Arc<Entry>) -> Result<Option<Step>> {
    let fail = |error| failed(error, "watch", entry.parent());
    core.follows.share(&entry.session, entry.parent());
    let client = entry.session.client().map_err(fail)?;
    let (children, watcher) =
        entry.session.ask(client.list_and_watch_children(entry.parent())).await.map_err(fail)?;
    let line = look::read(children, entry.parent())?;
    let line = look::ordered(&entry.session, entry.parent(), line).await?;
    Ok(match judge(core, entry, &line, None) {
        Some(Step::Arm(Watch::Children)) => Some(Step::Armed(fired(watcher, false))),
        other => other,
    })
}

/// What a watch brings; `sure` when nobody is ahead once its node has gone.
fn fired(watcher: zk::OneshotWatcher, sure: bool) -> Fired {
    Box::pin(async move {
        match watcher.changed().await.event_type {
            zk::EventType::Session => News::Over,
            zk::EventType::NodeDeleted if sure => News::Unblocked,
            _ => News::Changed,
        }
    })
}

/// A watch under way; put back when the call is dropped.
struct Armed<'a> {
    entry: &'a Arc<Entry>,
    fired: Option<Fired>,
}

impl Future for Armed<'_> {
    type Output = News;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<News> {
        match &mut self.fired {
            Some(fired) => fired.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }
}

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        if let Some(fired) = self.fired.take() {
            self.entry.put_step(Step::Armed(fired));
        }
    }
}
