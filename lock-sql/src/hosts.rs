//! What the configurations of both servers have in common: where to connect and as whom.

use std::time::Duration;

use futures_util::future::join_all;
use onelock_core::toolkit::checks;
use onelock_core::{Credentials, Error, ErrorKind, Host, Result, Secret};
use tokio::time::timeout;

use crate::unharmed::unharmed;

/// How long opening may take before the first request for a lock: nobody waits for one yet, and others may be making the tables.
pub(crate) const OPENING: Duration = Duration::from_secs(30);

/// Where a configuration leads and as whom.
pub(crate) struct Endpoints<'a> {
    pub(crate) hosts: &'a [Host],
    /// Instead of the hosts.
    pub(crate) socket: Option<Host>,
    pub(crate) user: Option<&'a str>,
    pub(crate) password: Option<&'a Secret>,
    pub(crate) credentials: Option<&'a Credentials>,
    /// Whether a pool of the application's knows all this.
    pub(crate) pooled: bool,
    pub(crate) connect_timeout: Duration,
}

impl Endpoints<'_> {
    /// Checks what can be checked without a server; a socket goes with no hosts but those of the default.
    pub(crate) fn check(&self, default: &[Host]) -> Result<()> {
        if self.socket.as_ref().is_some_and(|socket| !socket.is_socket()) {
            return Err(bad("socket is a whole path; a host stands after the scheme"));
        }
        if self.socket.is_some() && !self.hosts.is_empty() && self.hosts != default {
            return Err(bad("there is a host and a socket"));
        }
        checks::hosts(&self.servers())?;
        checks::credentials(self.credentials, self.user, self.password)?;
        let login = self.credentials.is_some() || self.user.is_some() || self.password.is_some();
        if self.pooled && (login || self.hosts.len() != 1) {
            return Err(bad(
                "a pool of the application's leads to one server, and has its user and password",
            ));
        }
        Ok(())
    }

    fn servers(&self) -> Vec<Host> {
        self.socket.clone().map_or_else(|| self.hosts.to_vec(), |socket| vec![socket])
    }

    /// The address without scheme, user, password and options.
    pub(crate) fn address(&self, database: &str) -> String {
        let servers: Vec<_> = self.servers().iter().map(ToString::to_string).collect();
        format!("{}/{database}", servers.join(","))
    }

    /// What the driver takes, for the server that takes writes; with the user and the password as they are now.
    pub(crate) async fn options<O, F>(
        &self,
        of: impl Fn(&Host, Option<&str>, Option<&Secret>) -> O,
        takes_writes: impl Fn(O) -> F,
    ) -> Result<O, sqlx::Error>
    where
        F: Future<Output = Result<bool, sqlx::Error>>,
    {
        let (user, password) = match self.credentials {
            // It has a part of the time for connecting, so that the error of one that hangs is its own.
            Some(callback) => {
                let (user, password) = callback.get(self.connect_timeout / 2).await.map_err(ours)?;
                (Some(user), Some(password))
            }
            None => (self.user.map(str::to_owned), self.password.cloned()),
        };
        let user = user.as_deref().filter(|user| !user.is_empty());
        let password = password.as_ref().filter(|password| !password.reveal().is_empty());
        let (servers, of) = (self.servers(), |host: &Host| of(host, user, password));
        match &servers[..] {
            [server] => Ok(of(server)),
            servers => {
                primary(servers, self.connect_timeout / 4, |host| takes_writes(of(host))).await.map(&of)
            }
        }
    }
}

/// Whether `name` can stand in a statement as it is: at most so many of a-z, 0-9 and `_`, not with a digit first.
pub(crate) fn is_plain(name: &str, most: usize) -> bool {
    (1..=most).contains(&name.len())
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

pub(crate) fn bad(text: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, text)
}

/// The one of `hosts` that takes writes, as `probe` finds out. All are asked at once, each for `limit`: that two take
/// writes shows where they are no primary and standby, or where a standby was promoted and the old primary goes on. Then
/// neither is used, for others may use the other one.
async fn primary<'a, F>(
    hosts: &'a [Host],
    limit: Duration,
    probe: impl Fn(&'a Host) -> F,
) -> Result<&'a Host, sqlx::Error>
where
    F: Future<Output = Result<bool, sqlx::Error>>,
{
    let late = || sqlx::Error::Io(std::io::Error::from(std::io::ErrorKind::TimedOut));
    let asked = hosts.iter().map(|host| {
        let answer = timeout(limit, unharmed(probe(host)));
        async move { (host, answer.await.unwrap_or_else(|_| Err(late()))) }
    });
    let (mut primaries, mut said, mut refused) = (Vec::new(), Vec::new(), None);
    for (host, answer) in join_all(asked).await {
        match answer {
            Ok(true) => primaries.push(host),
            Ok(false) => said.push(format!("{host} is a standby, or read-only")),
            Err(error) => {
                said.push(format!("{host}: {error}"));
                refused = refused.or(Some(error));
            }
        }
    }
    match (&primaries[..], refused) {
        ([host], _) => Ok(host),
        // A wrong password is answered as such.
        ([], Some(error)) if error.as_database_error().is_some() => Err(error),
        ([], _) => Err(ours(Error::new(ErrorKind::Unavailable, format!("no primary: {}", said.join("; "))))),
        ([one, other, ..], _) => {
            let text =
                format!("{one} and {other} both take writes: locks on one do not exclude those on the other");
            Err(ours(Error::new(ErrorKind::Unavailable, text)))
        }
    }
}

/// Connects, within this time.
pub(crate) async fn in_time<T>(
    limit: Duration,
    connecting: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    // Nothing was asked yet.
    let late = |_| {
        let text = format!("the server could not be reached within {limit:?}");
        Err(sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, text)))
    };
    timeout(limit, unharmed(connecting)).await.unwrap_or_else(late)
}

/// An error of ours where the driver's is expected.
fn ours(error: Error) -> sqlx::Error {
    sqlx::Error::AnyDriverError(Box::new(error))
}

/// The error that [`ours`] wrapped.
pub(crate) fn as_ours(error: &sqlx::Error) -> Option<Error> {
    match error {
        sqlx::Error::AnyDriverError(cause) => cause.downcast_ref().cloned(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_one_that_takes_writes_is_used() {
        let hosts = ["a", "b", "c"].map(|host| Host::new(host, 1));
        let found = async |primaries: &'static [&'static str], hangs: &'static [&'static str]| {
            let probe = |host: &Host| {
                let (primary, hangs) = (primaries.contains(&&*host.host), hangs.contains(&&*host.host));
                async move { if hangs { std::future::pending().await } else { Ok(primary) } }
            };
            primary(&hosts, Duration::from_secs(1), probe).await.map(|host| host.host.clone())
        };
        assert_eq!(found(&["b"], &[]).await.unwrap(), "b");
        assert_eq!(found(&["c"], &["a"]).await.unwrap(), "c");
        for (primaries, hangs, text) in [
            (&["a", "b"][..], &[][..], "a:1 and b:1 both take writes"),
            (&[], &[], "no primary: a:1 is a standby"),
            (&["a"], &["a"], "no primary: a:1: "),
        ] {
            let error = as_ours(&found(primaries, hangs).await.unwrap_err()).unwrap();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
