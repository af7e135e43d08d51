//! What tests do to an etcd server past the store.

use std::net::Ipv4Addr;

use async_trait::async_trait;
use etcd_client::{Client, ConnectOptions, Permission};
pub(crate) use onelock_conformance::servers::etcd::Member;
use onelock_conformance::servers::free_port;
use onelock_conformance::{Stop, Verdict};

/// The members of a cluster of three.
pub(crate) async fn three() -> Verdict<Vec<Member>> {
    let mut places = Vec::new();
    for name in ["a", "b", "c"] {
        places.push((name.to_owned(), Ipv4Addr::LOCALHOST, free_port()?));
    }
    cluster(&places).await
}

/// The members with these names, hosts and ports for each other.
pub(crate) async fn cluster(places: &[(String, Ipv4Addr, u16)]) -> Verdict<Vec<Member>> {
    let all: Vec<_> = places.iter().map(|(name, at, peer)| format!("{name}=http://{at}:{peer}")).collect();
    let all = all.join(",");
    let mut members = Vec::new();
    for (name, at, peer) in places {
        members.push(Member::begin(name, *at, *peer, &all)?);
    }
    for member in &members {
        member.ready().await?;
    }
    Ok(members)
}

/// Past the store.
#[async_trait]
pub(crate) trait Admin {
    /// A client that is not ours, and may do everything.
    async fn admin(&self) -> Verdict<Client>;

    /// Asks for passwords from now on: of `root`, and of these users, each with one right at most.
    async fn with_users(&self, password: &str, users: &[(&str, Option<Permission>)]) -> Verdict;

    /// The same, with the one user `app` who has the right that locks need.
    async fn with_a_user(&self, password: &str) -> Verdict {
        self.with_users(password, &[("app", Some(Permission::read_write("onelock/").with_prefix()))]).await
    }
}

#[async_trait]
impl Admin for Member {
    async fn admin(&self) -> Verdict<Client> {
        let root = self.root().get().map(|password| ConnectOptions::new().with_user("root", password));
        Ok(Client::connect([self.address().to_string()], root).await?)
    }

    async fn with_users(&self, password: &str, users: &[(&str, Option<Permission>)]) -> Verdict {
        let mut auth = self.admin().await?.auth_client();
        auth.user_add("root", password, None).await?;
        auth.role_add("root").await?;
        auth.user_grant_role("root", "root").await?;
        for (user, right) in users {
            auth.user_add(*user, password, None).await?;
            auth.role_add(*user).await?;
            if let Some(right) = right {
                auth.role_grant_permission(*user, right.clone()).await?;
            }
            auth.user_grant_role(*user, *user).await?;
        }
        auth.auth_enable().await?;
        self.root().set(password.to_owned()).map_err(|_| Stop::failed("it asks for passwords already"))
    }
}
