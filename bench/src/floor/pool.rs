//! A few connections that are lent out: what a client of an SQL server needs to do several things at once.

use std::sync::{Arc, Mutex, PoisonError};

use sqlx::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::subject::Failure;

pub(super) const DRIVER: &str = "sqlx 0.9";

/// So many connections at most, each made when it is first needed.
pub(super) struct Pool<C> {
    permits: Arc<Semaphore>,
    free: Mutex<Vec<C>>,
}

impl<C: Connection> Pool<C> {
    pub(super) fn new(most: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(most)), free: Mutex::default() }
    }

    /// The right to use a connection, and one that is there already. One on which something failed does not come back.
    pub(super) async fn lend(&self) -> Result<(OwnedSemaphorePermit, Option<C>), Failure> {
        let permit = Arc::clone(&self.permits).acquire_owned().await?;
        Ok((permit, self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()))
    }

    pub(super) fn take_back(&self, connection: C) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }

    pub(super) async fn close(&self) -> Result<(), Failure> {
        let free = std::mem::take(&mut *self.free.lock().unwrap_or_else(PoisonError::into_inner));
        for connection in free {
            connection.close().await?;
        }
        Ok(())
    }
}
