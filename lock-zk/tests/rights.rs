//! Users with no more rights than they need, and with less.

use std::sync::Arc;
use std::time::Duration;

use onelock_conformance::ctx::{exclusive, held, leased, name, renewal, request, ticket, waiting};
use onelock_conformance::verdict::{Stop, Verdict};
use onelock_conformance::{ensure, ensure_eq, expect};
use onelock_core::{Backend, ErrorKind, LockName, Mode, Page, Renewed, Wake};
use zk::Permission;
use zookeeper_client as zk;

use crate::eventually;
use crate::support::counter::Counter;
use crate::support::harness::{USER, open};
use onelock_conformance::servers::zookeeper::{Setup, ZkServer};

struct Server {
    server: ZkServer,
    admin: zk::Client,
}

impl Server {
    async fn start() -> Verdict<Self> {
        let server = ZkServer::start(Setup::default()).await?;
        let admin = zk::Client::connector().with_auth("digest", b"admin:of-all");
        let admin = admin.connect(&server.address().to_string()).await?;
        Ok(Self { server, admin })
    }

    /// A node on which the user has these rights only.
    async fn node(&self, path: &str, rights: Permission) -> Verdict {
        let list = rights_of_user(rights);
        self.admin.create(path, b"", &zk::CreateMode::Persistent.with_acls(list[..].into())).await?;
        Ok(())
    }

    async fn user(&self, path: &str) -> onelock_core::Result<Arc<dyn Backend>> {
        let url = format!("zk://{}:{}@{}{path}?tick=200ms", USER.0, USER.1, self.server.address());
        open(&url).await
    }
}

fn rights_of_user(rights: Permission) -> [zk::Acl; 2] {
    let user = zk::AuthId::new("digest", DIGEST);
    [zk::Acl::new(rights, user), zk::Acl::new(Permission::ALL, zk::AuthId::authed())]
}

/// The user as access lists have it: the SHA-1 of name and password, in base 64.
const DIGEST: &str = "keeper:S5n1TB3BxU7aGWefCmywpcvvxIw=";

fn denied<T: std::fmt::Debug>(what: &str, answer: onelock_core::Result<T>, right: &str) -> Verdict {
    let error = expect!(answer, Err(error) => error, "{what}");
    ensure_eq!(error.kind(), ErrorKind::Denied, "{what}");
    let text = error.to_string();
    ensure!(text.contains(right), "{what} should name {right}: {text}");
    ensure!(!text.contains(USER.1), "{what} shows the password: {text}");
    Ok(())
}

/// Each right that is missing is named, with the node it is missing on.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_named() -> Verdict {
    const READ: Permission = Permission::READ;
    const CREATE: Permission = Permission::CREATE;
    const DELETE: Permission = Permission::DELETE;
    let server = Server::start().await?;
    let lock = name("gold")?;

    server.node("/no-read", CREATE | DELETE).await?;
    denied("opening without READ", server.user("/no-read").await, "READ on /no-read")?;

    server.node("/no-create", READ | DELETE).await?;
    let user = server.user("/no-create").await?;
    for queue in [true, false] {
        let mut request = exclusive(&lock)?;
        request.queue = queue;
        denied("a join without CREATE", user.acquire(&request).await, "CREATE on /no-create")?;
    }
    let deeper = server.user("/no-create/deeper").await?.acquire(&exclusive(&lock)?).await;
    denied("a path without CREATE above", deeper, "CREATE on /no-create")?;

    // Where others made the node of the name.
    server.node("/names", READ | CREATE | DELETE).await?;
    server.node("/names/no-read", CREATE | DELETE).await?;
    server.node("/names/no-create", READ | DELETE).await?;
    server.node("/names/no-delete", READ | CREATE).await?;
    let user = server.user("/names").await?;
    let unread = name("no-read")?;
    denied("a join without READ", user.acquire(&exclusive(&unread)?).await, "READ on /names/no-read")?;
    ensure!(server.admin.list_children("/names/no-read").await?.is_empty(), "a node was left");
    denied("a look without READ", user.inspect(&unread).await, "READ on /names/no-read")?;
    let listed = user.list("", &Page::first(10)?).await?;
    ensure!(listed.names.is_empty(), "nobody holds: {listed:?}");
    let made = user.acquire(&exclusive(&name("no-create")?)?).await;
    denied("a join without CREATE on the name", made, "CREATE on /names/no-create")?;
    let kept = exclusive(&name("no-delete")?)?;
    let token = held(&user, &kept).await?.token;
    let left = user.release(&ticket(&kept, token)).await;
    denied("a release without DELETE", left, "DELETE on /names/no-delete")?;
    denied("an eviction without DELETE", user.evict(&kept.name, token).await, "DELETE on /names/no-delete")?;

    // Without DELETE above, the server removes the nodes of names that nobody holds.
    server.node("/no-delete", READ | CREATE).await?;
    let user = server.user("/no-delete").await?;
    for _ in 0..3 {
        let first = exclusive(&lock)?;
        let token = held(&user, &first).await?.token;
        let second = exclusive(&lock)?;
        let place = waiting(&user, &second).await?;
        user.release(&ticket(&first, token)).await?;
        user.release(&ticket(&second, place.token)).await?;
    }
    Ok(())
}

/// A user that may make no nodes under the path takes the names whose nodes others have made, queued and tried, and no others.
#[tokio::test(flavor = "multi_thread")]
async fn names_that_others_have_made_are_taken_without_a_right_above() -> Verdict {
    let server = Server::start().await?;
    server.node("/made", Permission::READ).await?;
    server.node("/made/gold", Permission::READ | Permission::CREATE | Permission::DELETE).await?;
    let user = server.user("/made").await?;
    for with_epoch in [false, true] {
        if with_epoch {
            let epoch = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_read());
            server.admin.create("/made/%epoch", b"0", &epoch).await?;
        }
        for queue in [true, false] {
            let mut request = exclusive(&name("gold")?)?;
            request.queue = queue;
            let token = held(&user, &request).await?.token;
            let next = exclusive(&name("gold")?)?;
            let place = waiting(&user, &next).await?;
            user.release(&ticket(&request, token)).await?;
            user.release(&ticket(&next, place.token)).await?;
        }
        denied("a name of its own", user.acquire(&exclusive(&name("own")?)?).await, "CREATE on /made")?;
    }
    Ok(())
}

/// An entry that its client may not delete is deleted once it may, or ends with the client.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_goes_when_it_may_be_deleted() -> Verdict {
    const DELETE: i32 = 2;
    const LEASE: Duration = Duration::from_millis(600);
    let server = Server::start().await?;
    server.node("/own", Permission::ALL).await?;
    let counter = Counter::start(server.server.address(), "/own")?;
    let deletes = || counter.counts().by_code().get(&DELETE).copied().unwrap_or_default();
    let url = format!("zk://{}:{}@{}/own?tick=200ms", USER.0, USER.1, counter.address());
    let entries = async |path| Ok::<_, Stop>(server.admin.list_children(path).await?.len());
    for (path, rights, what) in [
        ("/own/held", Permission::READ | Permission::CREATE, "whose lease is over"),
        ("/own/refused", Permission::CREATE, "of a join that was refused"),
    ] {
        server.node(path, rights).await?;
        let (user, request) = (open(&url).await?, leased(exclusive(&LockName::new(&path[5..])?)?, LEASE));
        for comes in [true, false] {
            let before = deletes();
            // The client may learn a little later that what was there is deleted.
            let known = async || {
                let answer = user.acquire(&request).await;
                let text = answer.as_ref().err().map(ToString::to_string).unwrap_or_default();
                Ok((!text.contains("is being deleted")).then_some(answer))
            };
            let answer = eventually("the earlier entry is known to be deleted", known).await?;
            ensure_eq!(answer.is_ok(), rights.has(Permission::READ), "an entry {what}: {answer:?}");
            let refused = async || Ok((deletes() >= before + 3).then_some(()));
            eventually("it is tried again", refused).await?;
            ensure_eq!(entries(path).await?, 1, "an entry {what}");
            let renewed = user.renew(&[renewal(&request, None)]).await;
            ensure!(matches!(renewed[..], [Ok(Renewed::NotHeld)]), "an entry {what}: {renewed:?}");
            if !comes {
                break;
            }
            server.admin.set_acl(path, &rights_of_user(Permission::ALL), None).await?;
            let gone = async || Ok((entries(path).await? == 0).then_some(()));
            eventually("the right to delete it has come", gone).await?;
            server.admin.set_acl(path, &rights_of_user(rights), None).await?;
        }
        drop(user);
        let gone = async || Ok((entries(path).await? == 0).then_some(()));
        eventually("its client was dropped", gone).await?;
    }
    Ok(())
}

/// A waiter that may not read the node ahead, which belongs to another user, is told when that is gone.
#[tokio::test(flavor = "multi_thread")]
async fn users_of_one_name_wait_for_each_other() -> Verdict {
    let server = Server::start().await?;
    let all = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    server.admin.create("/own", b"", &all).await?;
    server.admin.create("/own/gold", b"", &all).await?;
    let user = async |name| open(&format!("zk://{name}@{}/own?tick=200ms", server.server.address())).await;
    let (first, second) = (user("me:mine").await?, user("you:yours").await?);
    for mode in [Mode::Exclusive, Mode::permit(1)?] {
        let ahead = request(&name("gold")?, mode)?;
        let token = held(&first, &ahead).await?.token;
        let mut line = Vec::new();
        for client in [&second, &first, &second] {
            let next = request(&name("gold")?, mode)?;
            let next = ticket(&next, waiting(client, &next).await?.token);
            let (client, asked) = (Arc::clone(client), next.clone());
            line.push((next, tokio::spawn(async move { client.wait(&asked).await })));
        }
        denied("a look at another's node", second.inspect(&ahead.name).await, "READ on /own/gold/_c_")?;
        first.release(&ticket(&ahead, token)).await?;
        for (own, wait) in line {
            let wake = tokio::time::timeout(Duration::from_secs(30), wait).await???;
            ensure_eq!(Some(wake), own.token.map(Wake::Held), "mode {mode}");
            first.release(&own).await.or(second.release(&own).await)?;
        }
    }
    Ok(())
}
