//! A row that is inserted and deleted; and the server's session locks, each on a connection of its own.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock::toolkit::Mutex;
use sqlx::{Connection, Database};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Pair, client};
use crate::networked::Connector;
use crate::subject::{Client, Failure};

pub(super) const DRIVER: &str = "sqlx 0.9";

/// As many connections as a client of this library has unless it is configured; and for session locks.
const CONNECTIONS: usize = 4;
const SESSIONS: usize = 32;

/// What is different from one server to another.
pub(super) trait Dialect: Copy + Send + Sync + 'static {
    type Server: Database<Connection: Sync>;

    /// The table.
    const TABLE: &'static str;
    /// Inserts a row unless it is there, and deletes one.
    const ROW: [&'static str; 2];
    /// Takes a session lock unless it is held, and gives it back: true, or nothing of the kind.
    const SESSION: [&'static str; 2];

    fn options(&self, server: SocketAddr) -> <Connected<Self> as Connection>::Options;

    /// Runs a statement about a name; how many rows it changed.
    fn execute(
        connection: &mut Connected<Self>,
        sql: &'static str,
        name: Option<&str>,
    ) -> impl Future<Output = sqlx::Result<u64>> + Send;

    /// Asks whether something about a name holds.
    fn holds(
        connection: &mut Connected<Self>,
        sql: &'static str,
        name: &str,
    ) -> impl Future<Output = sqlx::Result<bool>> + Send;
}

type Connected<D> = <<D as Dialect>::Server as Database>::Connection;

/// Connections that are used again. The driver's own pool pings whatever comes back to it: a third and a fourth round trip.
struct Connections<D: Dialect> {
    options: <Connected<D> as Connection>::Options,
    free: Mutex<Vec<Connected<D>>>,
    permits: Arc<Semaphore>,
}

impl<D: Dialect> Connections<D> {
    fn new(dialect: &D, server: SocketAddr, most: usize) -> Arc<Self> {
        let (free, permits) = (Mutex::default(), Arc::new(Semaphore::new(most)));
        Arc::new(Self { options: dialect.options(server), free, permits })
    }

    async fn get(&self) -> Result<(Connected<D>, OwnedSemaphorePermit), Failure> {
        let permit = Arc::clone(&self.permits).acquire_owned().await?;
        let free = self.free.lock().pop();
        match free {
            Some(connection) => Ok((connection, permit)),
            None => Ok((Connected::<D>::connect_with(&self.options).await?, permit)),
        }
    }

    async fn execute(&self, sql: &'static str, name: Option<&str>) -> Result<u64, Failure> {
        let (mut connection, _permit) = self.get().await?;
        let rows = D::execute(&mut connection, sql, name).await?;
        self.free.lock().push(connection);
        Ok(rows)
    }

    async fn close(&self) -> Result<(), Failure> {
        let all = std::mem::take(&mut *self.free.lock());
        for connection in all {
            connection.close().await?;
        }
        Ok(())
    }
}

pub(super) struct Rows<D>(pub(super) D);

#[async_trait]
impl<D: Dialect> Connector for Rows<D> {
    async fn open(&self, server: SocketAddr, _: Duration) -> Result<Arc<dyn Client>, Failure> {
        let connections = Connections::new(&self.0, server, CONNECTIONS);
        // On PostgreSQL two that make it at the same time get an error: all but the first find it.
        if connections.execute(D::TABLE, None).await.is_err() {
            connections.execute(D::TABLE, None).await?;
        }
        Ok(client(Row(connections)))
    }
}

struct Row<D: Dialect>(Arc<Connections<D>>);

impl<D: Dialect> Clone for Row<D> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<D: Dialect> Pair for Row<D> {
    type Kept = ();

    async fn take(&self, name: &str) -> Result<Option<()>, Failure> {
        Ok((self.0.execute(D::ROW[0], Some(name)).await? == 1).then_some(()))
    }

    async fn give_back(&self, name: &str, (): ()) -> Result<bool, Failure> {
        Ok(self.0.execute(D::ROW[1], Some(name)).await? == 1)
    }

    async fn ping(&self) -> Result<bool, Failure> {
        self.0.execute("SELECT 1", None).await?;
        Ok(true)
    }

    async fn close(&self) -> Result<(), Failure> {
        self.0.close().await
    }
}

pub(super) struct Sessions<D>(pub(super) D);

#[async_trait]
impl<D: Dialect> Connector for Sessions<D> {
    async fn open(&self, server: SocketAddr, _: Duration) -> Result<Arc<dyn Client>, Failure> {
        let connections = Connections::new(&self.0, server, SESSIONS);
        connections.execute("SELECT 1", None).await?;
        Ok(client(Session(Row(connections))))
    }
}

struct Session<D: Dialect>(Row<D>);

impl<D: Dialect> Clone for Session<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<D: Dialect> Pair for Session<D> {
    type Kept = (Connected<D>, OwnedSemaphorePermit);

    async fn take(&self, name: &str) -> Result<Option<Self::Kept>, Failure> {
        let connections = &self.0.0;
        let (mut connection, permit) = connections.get().await?;
        if D::holds(&mut connection, D::SESSION[0], name).await? {
            return Ok(Some((connection, permit)));
        }
        connections.free.lock().push(connection);
        Ok(None)
    }

    async fn give_back(&self, name: &str, (mut connection, _permit): Self::Kept) -> Result<bool, Failure> {
        let held = D::holds(&mut connection, D::SESSION[1], name).await?;
        self.0.0.free.lock().push(connection);
        Ok(held)
    }

    async fn ping(&self) -> Result<bool, Failure> {
        self.0.ping().await
    }

    async fn close(&self) -> Result<(), Failure> {
        self.0.close().await
    }
}
