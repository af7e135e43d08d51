//! Reading lines: for a decision, for people, and the list of names.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use onelock_core::name::{check_prefix, encode};
use onelock_core::{
    EntryView, Error, ErrorKind, FencingToken, ListedName, Listing, LockName, Page, Result, Snapshot,
};
use zookeeper_client as zk;

use crate::backend::Core;
use crate::error::failed;
use crate::layout;
use crate::leave::latest;
use crate::line::Line;
use crate::session::Session;

/// How many nodes one request reads: answers stay far below the megabyte that servers allow.
const CHUNK: usize = 500;

/// Reads the children of a name as a line.
pub(crate) fn read(children: Vec<String>, parent: &str) -> Result<Line> {
    Line::read(children).map_err(|child| {
        let text = format!("{parent} has a child {child:?} that is no entry of a lock");
        Error::new(ErrorKind::Foreign, text)
    })
}

/// The line as the session sees it, in order.
pub(crate) async fn line(session: &Session, parent: &str) -> Result<Line> {
    let fail = |error| failed(error, "list", parent);
    let client = session.client().map_err(fail)?;
    match session.ask(client.get_children(parent)).await {
        Ok((children, stat)) => {
            ordered(session, parent, read(children, parent)?.changed_at(stat.pzxid)).await
        }
        Err(zk::Error::NoNode) => Ok(Line::default()),
        Err(error) => Err(fail(error)),
    }
}

/// The same line in its right order, whatever the server's counter does.
pub(crate) async fn ordered(session: &Session, parent: &str, mut line: Line) -> Result<Line> {
    if !line.is_ordered() {
        let created = created(session, parent, &line).await?;
        line.order_by(&created);
    }
    Ok(line)
}

/// When each entry was created, as the server counts; without those that are gone.
pub(crate) async fn created(session: &Session, parent: &str, line: &Line) -> Result<HashMap<String, i64>> {
    Ok(details(session, parent, line)
        .await?
        .into_iter()
        .map(|(name, (stat, _))| (name, stat.czxid))
        .collect())
}

async fn details(
    session: &Session,
    parent: &str,
    line: &Line,
) -> Result<HashMap<String, (zk::Stat, Vec<u8>)>> {
    let mut found = HashMap::new();
    for nodes in line.nodes().chunks(CHUNK) {
        let paths: Vec<_> = nodes.iter().map(|node| format!("{parent}/{}", node.name)).collect();
        let results =
            read_all(session, &paths).await.map_err(|error| failed(error, "read the entries of", parent))?;
        for (node, result) in nodes.iter().zip(results) {
            if let Some(found_one) = result {
                found.insert(node.name.clone(), found_one);
            }
        }
    }
    Ok(found)
}

/// A node and its data.
type Found = (zk::Stat, Vec<u8>);

/// The nodes at these paths, in one request; `None` for those that are not there.
pub(crate) async fn read_all(session: &Session, paths: &[String]) -> Result<Vec<Option<Found>>, zk::Error> {
    read_each(session, paths).await?.into_iter().collect()
}

/// The same, with an answer of its own for each path.
pub(crate) async fn read_each(
    session: &Session,
    paths: &[String],
) -> Result<Vec<Result<Option<Found>, zk::Error>>, zk::Error> {
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let client = session.client()?;
    let mut reader = client.new_multi_reader();
    for path in paths {
        reader.add_get_data(path)?;
    }
    let results = session.ask(reader.commit()).await?;
    let found = results.into_iter().map(|result| match result {
        zk::MultiReadResult::Data { data, stat } => Ok(Some((stat, data))),
        zk::MultiReadResult::Error { err: zk::Error::NoNode } => Ok(None),
        zk::MultiReadResult::Error { err } => Err(err),
        other => Err(zk::Error::UnexpectedError(format!("{other:?} for the data of a node"))),
    });
    Ok(found.collect())
}

/// The line of a name, for people.
pub(crate) async fn inspect(core: &Arc<Core>, name: &LockName) -> Result<Snapshot> {
    core.check()?;
    let parent = layout::parent(&core.target.base, name);
    let desk = core.target.desk().await?;
    let Some(mut line) = latest(core, &desk, &parent).await? else {
        return Ok(Snapshot::empty(name.clone()));
    };
    let details = details(&desk, &parent, &line).await?;
    let created = details.iter().map(|(name, (stat, _))| (name.clone(), stat.czxid)).collect();
    line.order_by(&created);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut views = Vec::with_capacity(line.nodes().len());
    for node in line.nodes() {
        let Some((stat, data)) = details.get(&node.name) else { continue };
        // By two wall clocks: for people, not for decisions.
        let born = Duration::from_millis(u64::try_from(stat.ctime).unwrap_or(0));
        views.push(EntryView {
            token: FencingToken::new(stat.czxid)?,
            mode: node.mode,
            note: layout::note(data),
            age: Some(now.saturating_sub(born)),
            expires_in: None,
        });
    }
    let waiters = views.split_off(line.holders().min(views.len()));
    Ok(Snapshot { holders: views, waiters, ..Snapshot::empty(name.clone()) })
}

/// Names with entries, in the order of their encoded form.
pub(crate) async fn list(core: &Arc<Core>, prefix: &str, page: &Page) -> Result<Listing> {
    check_prefix(prefix)?;
    core.check()?;
    let base = if core.target.base.is_empty() { "/" } else { &core.target.base };
    let fail = |error| failed(error, "list", base);
    let desk = core.target.desk().await?;
    let client = desk.client().map_err(fail)?;
    let mut names = match desk.ask(client.list_children(base)).await {
        Ok(names) => names,
        Err(zk::Error::NoNode) => return Ok(Listing::default()),
        Err(error) => return Err(fail(error)),
    };
    let (prefix, cursor) = (encode(prefix), page.cursor.as_deref().map(encode));
    names.retain(|name| name.starts_with(&*prefix) && cursor.as_ref().is_none_or(|cursor| **name > **cursor));
    names.sort_unstable();
    let more = names.len() > page.limit;
    names.truncate(page.limit);
    let names: Vec<_> = names.iter().filter_map(|encoded| LockName::decode(encoded)).collect();
    let mut listing = Listing::default();
    for (name, line) in names.iter().zip(lines(core, &names).await?) {
        // What is not a lock, or not for this user to see, is no name of ours.
        let line = match line {
            Ok(line) => line,
            Err(error) if matches!(error.kind(), ErrorKind::Foreign | ErrorKind::Denied) => continue,
            Err(error) => return Err(error),
        };
        let (holders, all) = (line.holders(), line.nodes().len());
        if all > 0 {
            listing.names.push(ListedName { name: name.clone(), holders, waiters: all - holders });
        }
    }
    // The last name that was looked at, though it may have had no entry.
    listing.next = names.last().filter(|_| more).map(|last| last.as_str().to_owned());
    Ok(listing)
}

/// The lines of many names in few requests, in no particular order within a line.
pub(crate) async fn lines(core: &Arc<Core>, names: &[LockName]) -> Result<Vec<Result<Line>>> {
    let mut lines = Vec::with_capacity(names.len());
    if names.is_empty() {
        return Ok(lines);
    }
    let desk = core.target.desk().await?;
    for names in names.chunks(CHUNK) {
        let parents: Vec<_> = names.iter().map(|name| layout::parent(&core.target.base, name)).collect();
        let fail = |error| failed(error, "list", parents.first().map_or("", String::as_str));
        let client = desk.client().map_err(fail)?;
        let mut reader = client.new_multi_reader();
        for parent in &parents {
            reader.add_get_children(parent).map_err(fail)?;
        }
        let results = desk.ask(reader.commit()).await.map_err(fail)?;
        lines.extend(parents.iter().zip(results).map(|(parent, result)| one_of_many(parent, result)));
    }
    Ok(lines)
}

/// The line in one answer of a request for many.
fn one_of_many(parent: &str, result: zk::MultiReadResult) -> Result<Line> {
    match result {
        zk::MultiReadResult::Children { children } => read(children, parent),
        zk::MultiReadResult::Error { err: zk::Error::NoNode } => Ok(Line::default()),
        zk::MultiReadResult::Error { err } => Err(failed(err, "list", parent)),
        other => Err(Error::new(ErrorKind::Protocol, format!("{other:?} for the children of {parent}"))),
    }
}
