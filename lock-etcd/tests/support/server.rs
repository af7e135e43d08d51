//! What tests do to an etcd server past the store.

use async_trait::async_trait;
use etcd_client::{Client, ConnectOptions, Permission};
pub(crate) use onelock_conformance::servers::etcd::Member;
use onelock_conformance::{Stop, Verdict};

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
