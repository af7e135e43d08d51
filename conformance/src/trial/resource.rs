//! A resource in the test process that clients in all processes write to: one that checks fencing tokens, with a twin
//! that does not.
//!
//! Each write replaces the whole list by the one that was read with an item added, as somebody would who trusts the
//! lock. A list is a chain of nodes, so that neither reading nor writing copies it.

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::verdict::{Context as _, Stop, Verdict};

#[derive(Debug, Default)]
struct Lists {
    largest: i64,
    /// Each an item and the node before it; node 0 is the empty list.
    nodes: Vec<(u64, usize)>,
    fenced: usize,
    unfenced: usize,
    refused: u64,
}

impl Lists {
    /// Reading shows the token, too: else a late write could slip in between another's read and its first write.
    fn read(&mut self, token: i64) -> (usize, usize) {
        self.largest = self.largest.max(token);
        (self.fenced, self.unfenced)
    }

    fn write(&mut self, token: i64, item: u64, read: (usize, usize)) -> bool {
        self.unfenced = self.push(item, read.1);
        if token < self.largest {
            self.refused += 1;
            return false;
        }
        self.largest = token;
        self.fenced = self.push(item, read.0);
        true
    }

    fn push(&mut self, item: u64, after: usize) -> usize {
        self.nodes.push((item, after));
        self.nodes.len()
    }

    fn items(&self, mut node: usize) -> HashSet<u64> {
        let mut items = HashSet::new();
        while let Some((item, before)) = node.checked_sub(1).and_then(|i| self.nodes.get(i)) {
            items.insert(*item);
            node = *before;
        }
        items
    }
}

/// The resource. Ends when dropped.
#[derive(Debug)]
pub struct Resource {
    port: u16,
    lists: Arc<Mutex<Lists>>,
    task: JoinHandle<()>,
}

impl Resource {
    /// Listens on a free port of the loopback.
    ///
    /// # Errors
    /// When there is none.
    pub async fn start() -> Verdict<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("the resource")?;
        let (port, lists) = (listener.local_addr()?.port(), Arc::new(Mutex::new(Lists::default())));
        let shared = Arc::clone(&lists);
        let task = tokio::spawn(async move {
            let mut writers = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                writers.spawn(serve(stream, Arc::clone(&shared)));
            }
        });
        Ok(Self { port, lists, task })
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many writes were refused so far.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner).refused
    }

    /// The items in the list that checks tokens, those in its twin, and how many writes were refused.
    #[must_use]
    pub fn contents(&self) -> (HashSet<u64>, HashSet<u64>, u64) {
        let lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        (lists.items(lists.fenced), lists.items(lists.unfenced), lists.refused)
    }
}

impl Drop for Resource {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A client that ends in the middle of a line has not asked for anything.
async fn serve(stream: TcpStream, lists: Arc<Mutex<Lists>>) {
    let (from, mut to) = stream.into_split();
    let mut lines = BufReader::new(from).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Some(answer) = answer(&lists, &line) else { return };
        if to.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn answer(lists: &Mutex<Lists>, line: &str) -> Option<String> {
    let mut lists = lists.lock().unwrap_or_else(PoisonError::into_inner);
    let words: Vec<_> = line.split(' ').collect();
    match words[..] {
        ["read", token] => {
            let (fenced, unfenced) = lists.read(token.parse().ok()?);
            Some(format!("{fenced} {unfenced}\n"))
        }
        ["write", token, item, fenced, unfenced] => {
            let read = (fenced.parse().ok()?, unfenced.parse().ok()?);
            Some(format!("{}\n", lists.write(token.parse().ok()?, item.parse().ok()?, read)))
        }
        _ => None,
    }
}

/// A client's connection to the resource.
#[derive(Debug)]
pub struct Pen {
    to: OwnedWriteHalf,
    from: Lines<BufReader<OwnedReadHalf>>,
}

impl Pen {
    /// Connects.
    ///
    /// # Errors
    /// When nobody listens.
    pub async fn connect(port: u16) -> Verdict<Self> {
        let (from, to) =
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.context("the resource")?.into_split();
        Ok(Self { to, from: BufReader::new(from).lines() })
    }

    async fn ask(&mut self, line: String) -> Verdict<String> {
        self.to.write_all(line.as_bytes()).await.context("the resource")?;
        self.from.next_line().await?.context("the resource has gone")
    }

    /// Reads both lists.
    ///
    /// # Errors
    /// When the resource has gone.
    pub async fn read(&mut self, token: i64) -> Verdict<(usize, usize)> {
        let answer = self.ask(format!("read {token}\n")).await?;
        let (fenced, unfenced) = answer.split_once(' ').context("an answer to a read")?;
        Ok((fenced.parse()?, unfenced.parse()?))
    }

    /// Writes both lists back with one item more; whether the one that checks tokens took it.
    ///
    /// # Errors
    /// When the resource has gone.
    pub async fn write(&mut self, token: i64, item: u64, read: (usize, usize)) -> Verdict<bool> {
        let answer = self.ask(format!("write {token} {item} {} {}\n", read.0, read.1)).await?;
        answer.parse().map_err(|_| Stop::failed(format!("an answer to a write: {answer}")))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_late_write_is_refused_and_tramples_on_the_twin() {
        let resource = Resource::start().await.unwrap();
        let (mut a, mut b) =
            (Pen::connect(resource.port()).await.unwrap(), Pen::connect(resource.port()).await.unwrap());
        let late = a.read(1).await.unwrap();
        let read = b.read(2).await.unwrap();
        assert!(b.write(2, 20, read).await.unwrap());
        let read = b.read(2).await.unwrap();
        assert!(b.write(2, 21, read).await.unwrap());
        assert!(!a.write(1, 10, late).await.unwrap());
        let (fenced, unfenced, refused) = resource.contents();
        assert_eq!((fenced, unfenced, refused), ([20, 21].into(), [10].into(), 1));
    }
}
