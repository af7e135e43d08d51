//! The largest token epoch that has joined, in a node of its own beside the names.
//!
//! A join is refused where its epoch is smaller, and raises the node first where it is larger. Every join checks that the
//! node has not changed since it was read: in the same transaction, or by a read behind the new node.

use futures_util::FutureExt as _;
use onelock_core::toolkit::Mutex;
use onelock_core::{Error, ErrorKind, Result, TokenEpoch};
use zookeeper_client as zk;

use crate::error::failed;
use crate::keys;
use crate::session::Session;

/// How often the node is read anew because others have changed it meanwhile.
const TRIES: usize = 16;

/// What a session knows of it, and by which connection.
#[derive(Default)]
pub(crate) struct Epochs(Mutex<Option<(zk::StateWatcher, Known)>>);

#[derive(Clone, Copy)]
struct Known {
    epoch: TokenEpoch,
    /// The version of the node; nothing where this user may not make it, and nobody else has.
    version: Option<i32>,
}

impl Epochs {
    /// The node has changed, or is gone.
    pub(crate) fn forget(&self) {
        *self.0.lock() = None;
    }

    /// What is known while the connection stands: behind another one may be servers that were restored or made anew, whose node has
    /// the same version with another epoch.
    fn known(&self) -> Option<Known> {
        let mut known = self.0.lock();
        known.take_if(|(connection, _)| connection.changed().now_or_never().is_some());
        known.as_ref().map(|(_, known)| *known)
    }

    /// Whether this is known to be the largest, and the node to have this version.
    pub(crate) fn is(&self, epoch: TokenEpoch, version: Option<i32>) -> bool {
        self.known().is_some_and(|known| known.epoch == epoch && known.version == version)
    }

    /// The version of the node that admits an entry of this epoch. Makes the node, and the one above all names.
    ///
    /// # Errors
    /// [`TokenEpoch::refused`]; [`ErrorKind::Denied`] where the user may not raise it.
    pub(crate) async fn admit(&self, session: &Session, epoch: TokenEpoch) -> Result<Option<i32>> {
        let path = keys::epoch(&session.servers.base);
        let fail = |error| failed(error, "write", &path);
        for _ in 0..TRIES {
            let mut known = self.known();
            if known.is_none() {
                let connection = session.handle().map_err(fail)?.state_watcher();
                known = read(session, &path).await?;
                // Where this join has learned nothing, what another one has learned meanwhile stays.
                let mut noted = self.0.lock();
                *noted = known.map(|known| (connection, known)).or(noted.take());
            }
            let Some(Known { epoch: newest, version }) = known else { continue };
            epoch.check(newest)?;
            if epoch == newest {
                return Ok(version);
            }
            let version = version.ok_or_else(|| fail(zk::Error::NoAuth))?;
            let text = u16::from(epoch).to_string();
            let raise =
                async { session.client().await?.set_data(&path, text.as_bytes(), Some(version)).await };
            match session.ask(raise).await {
                // What another join has learned of the next version stays.
                Ok(_) | Err(zk::Error::BadVersion | zk::Error::NoNode) => {
                    self.0.lock().take_if(|(_, known)| known.version == Some(version));
                }
                Err(error) => return Err(fail(error)),
            }
        }
        Err(Error::new(ErrorKind::Unavailable, format!("{path} changed again and again")))
    }
}

/// Reads the node, or makes it; nothing when somebody else has made it just now, or the node above was made.
async fn read(session: &Session, path: &str) -> Result<Option<Known>> {
    match session.data(path).await {
        Ok((data, stat)) => {
            let number = String::from_utf8_lossy(&data).parse().ok();
            let epoch = number
                .and_then(|number| TokenEpoch::new(number).ok())
                .ok_or_else(|| Error::new(ErrorKind::Foreign, format!("{path} holds no token epoch")))?;
            return Ok(Some(Known { epoch, version: Some(stat.version) }));
        }
        Err(zk::Error::NoNode) => {}
        Err(error) => return Err(failed(error, "read", path)),
    }
    let servers = &session.servers;
    let client = session.ask(session.client()).await.map_err(|error| failed(error, "create", path))?;
    // Others read it, so that users who share the path do not need to share a password.
    let owner = if servers.config.password.is_some() { zk::AuthId::authed() } else { zk::AuthId::anyone() };
    let rights =
        [zk::Acl::new(zk::Permission::ALL, owner), zk::Acl::new(zk::Permission::READ, zk::AuthId::anyone())];
    let mode = zk::CreateMode::Persistent.with_acls(rights[..].into());
    match session.ask(client.create(path, b"0", &mode)).await {
        Ok((stat, _)) => Ok(Some(Known { epoch: TokenEpoch::default(), version: Some(stat.version) })),
        Err(zk::Error::NodeExists) => Ok(None),
        Err(zk::Error::NoAuth) => Ok(Some(Known { epoch: TokenEpoch::default(), version: None })),
        Err(zk::Error::NoNode) => {
            let folder = zk::CreateMode::Persistent.with_acls(servers.acls());
            let made = session.ask(client.mkdir(servers.root(), &folder)).await;
            made.map_err(|error| failed(error, "create", servers.root()))?;
            Ok(None)
        }
        Err(error) => Err(failed(error, "create", path)),
    }
}
