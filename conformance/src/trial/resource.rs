//! A resource in the test process that clients in all processes write to.

use std::net::Ipv4Addr;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::fenced::Fenced;
use crate::verdict::{Context as _, Verdict};

/// The resource. Ends when dropped.
#[derive(Debug)]
pub struct Resource {
    /// Where it listens.
    pub port: u16,
    /// What became of what was written to it.
    pub lists: Arc<Fenced>,
    task: JoinHandle<()>,
}

impl Resource {
    /// Listens on a free port of the loopback.
    ///
    /// # Errors
    /// When there is none.
    pub async fn start() -> Verdict<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("the resource")?;
        let (port, lists) = (listener.local_addr()?.port(), Arc::new(Fenced::default()));
        let shared = Arc::clone(&lists);
        let task = tokio::spawn(async move {
            let mut writers = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                writers.spawn(serve(stream, Arc::clone(&shared)));
            }
        });
        Ok(Self { port, lists, task })
    }
}

impl Drop for Resource {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A client that ends in the middle of a line has not asked for anything.
async fn serve(stream: TcpStream, lists: Arc<Fenced>) {
    let (from, mut to) = stream.into_split();
    let mut lines = BufReader::new(from).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(answer) = answer(&lists, &line) else { return };
        if to.write_all(format!("{answer}\n").as_bytes()).await.is_err() {
            return;
        }
    }
}

/// What can be asked of the resource.
#[derive(Serialize, Deserialize)]
enum ResourceRequest {
    Read(i64),
    Write(i64, u64, (usize, usize)),
}

fn answer(lists: &Fenced, line: &str) -> serde_json::Result<String> {
    match serde_json::from_str(line)? {
        ResourceRequest::Read(token) => serde_json::to_string(&lists.read(token)),
        ResourceRequest::Write(token, item, read) => serde_json::to_string(&lists.write(token, item, read)),
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

    async fn ask<T: DeserializeOwned>(&mut self, ask: ResourceRequest) -> Verdict<T> {
        let line = format!("{}\n", serde_json::to_string(&ask)?);
        self.to.write_all(line.as_bytes()).await.context("the resource")?;
        let answer = self.from.next_line().await?.context("the resource has gone")?;
        serde_json::from_str(&answer).context(answer)
    }

    /// Reads both lists.
    ///
    /// # Errors
    /// When the resource has gone.
    pub async fn read(&mut self, token: i64) -> Verdict<(usize, usize)> {
        self.ask(ResourceRequest::Read(token)).await
    }

    /// Writes both lists back with one item more; whether the one that checks tokens took it.
    ///
    /// # Errors
    /// When the resource has gone.
    pub async fn write(&mut self, token: i64, item: u64, read: (usize, usize)) -> Verdict<bool> {
        self.ask(ResourceRequest::Write(token, item, read)).await
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
            (Pen::connect(resource.port).await.unwrap(), Pen::connect(resource.port).await.unwrap());
        let late = a.read(1).await.unwrap();
        let read = b.read(2).await.unwrap();
        assert!(b.write(2, 20, read).await.unwrap());
        let read = b.read(2).await.unwrap();
        assert!(b.write(2, 21, read).await.unwrap());
        assert!(!a.write(1, 10, late).await.unwrap());
        assert_eq!(
            (resource.lists.contents(), resource.lists.refused()),
            (([20, 21].into(), [10].into()), 1)
        );
    }
}
