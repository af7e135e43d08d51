//! Fencing in the ensemble that the locks are in: a multi that is done only while the entry of the lock is there.
//!
//! An entry's node has a path of its own, with the holder's id and a sequence, so that it is there says that the lock has not been
//! lost since. No watermark is needed, and a client that lost the lock is refused also before a later holder has written. The token is the
//! node's `czxid`, which a multi cannot check; the path says the same.

use onelock_core::{Error, ErrorKind, FencingToken, Guard, LockName, Result, TokenEpoch, fence};
use zookeeper_client as zk;

use crate::batch::barrier;
use crate::error::failed;
use crate::keys::{self, Child};

/// The entry of a guard, for multis of the caller's own client.
///
/// ```no_run
/// # async fn pay(client: zookeeper_client::Client, guard: onelock_core::Guard) -> Result<(), Box<dyn std::error::Error>> {
/// let entry = onelock_zk::fence::Entry::of(&guard, "/onelock", &client).await?;
/// let mut multi = entry.multi(&client)?;
/// multi.add_set_data("/orders/42", b"paid", None)?;
/// if let Err(error) = multi.commit().await {
///     return Err(entry.refused(&client, error).await.into());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Entry {
    name: LockName,
    token: FencingToken,
    parent: String,
    path: String,
}

impl Entry {
    /// Of a guard of this ensemble: a write that changes nothing and one listing. `base` is the path of its client's URL,
    /// `/onelock` by default, as `client` sees it.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when its node is not there, also where `base` is another's or the guard is one of another store. What
    /// [`Guard::token`] says; [`ErrorKind::Unsupported`] for a permit; [`ErrorKind::InvalidConfig`] for a `base` that is no path;
    /// the server's error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn of(guard: &Guard, base: &str, client: &zk::Client) -> Result<Self> {
        fence::raises(guard.mode())?;
        let (name, token) = (guard.name().clone(), guard.token()?);
        let parent = keys::parent(&keys::base(base)?, &name);
        let prefix = keys::prefix(&parent, guard.holder());
        let ours = line(client, &parent).await?.into_iter().find(|child| child.path.starts_with(&prefix));
        let path = ours.ok_or_else(|| gone(&name, token))?.path;
        Ok(Self { name, token, parent, path })
    }

    /// Its node, for a check operation of another client library: of any version.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// A multi that is done only if the entry is there; [`Entry::refused`] explains its error. The user needs `READ` on the node.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] when the client refuses the path.
    pub fn multi<'a>(&self, client: &'a zk::Client) -> Result<zk::CheckWriter<'a>> {
        client
            .new_check_writer(&self.path, None)
            .map_err(|error| failed(error, "check", &self.path).during("fence"))
    }

    /// Why [`Entry::multi`] failed. [`ErrorKind::Stale`] when the entry is gone and a later one is there: [`Error::stale`] has the
    /// token of the first one. [`ErrorKind::Lost`] when none is. Else the server's error, which may be one of the caller's own
    /// operations.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn refused(&self, client: &zk::Client, error: zk::CheckWriteError) -> Error {
        match error {
            zk::CheckWriteError::CheckFailed { source: zk::Error::NoNode } => {
                self.stale(client).await.unwrap_or_else(|error| error)
            }
            zk::CheckWriteError::RequestFailed { source }
            | zk::CheckWriteError::CheckFailed { source }
            | zk::CheckWriteError::OperationFailed { source, .. } => {
                failed(source, "check", &self.path).during("fence")
            }
        }
    }

    async fn stale(&self, client: &zk::Client) -> Result<Error> {
        let epoch = TokenEpoch::of(self.token.get());
        for Child { path, .. } in line(client, &self.parent).await? {
            let stat = client.check_stat(&path).await.map_err(|error| failed(error, "read", &path))?;
            let Some(stat) = stat else { continue };
            // Sequences begin anew with the node of the name; this number does not.
            let newest = epoch.shown(FencingToken::new(stat.czxid)?);
            if newest > self.token {
                return Ok(fence::Stale::new(self.name.clone(), self.token, newest).into());
            }
        }
        Ok(gone(&self.name, self.token))
    }
}

/// The entries of a line, in its order but where the sequence has come to its end.
async fn line(client: &zk::Client, parent: &str) -> Result<Vec<Child>> {
    let failed = |error| failed(error, "read", parent).during("fence");
    // What the locks' own session wrote may not have come yet to the server that this client is on.
    barrier(client).await.map_err(failed)?;
    let children = match client.list_children(parent).await {
        Err(zk::Error::NoNode) => Vec::new(),
        children => children.map_err(failed)?,
    };
    let mut line: Vec<_> = children.iter().filter_map(|name| Child::read(parent, name)).collect();
    line.sort_by_key(|child| child.sequence);
    Ok(line)
}

fn gone(name: &LockName, token: FencingToken) -> Error {
    let text = format!("the entry of `{name}` with token {token} is gone");
    Error::new(ErrorKind::Lost, text).during("fence")
}
