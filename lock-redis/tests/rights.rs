//! Users with the documented rights and no others, on sentinels and clusters.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::common::{HOUR, PATIENCE, Server, held, renew_one, request, soon, token, waits};
use crate::harness::servers::{Group, Plan};
use onelock_core::store::Checked;
use onelock_core::{Backend, ErrorKind, Page, Release, Renewed, Secret, Standing, StoreUrl, Wake};
use onelock_redis::{RedisBackend, RedisConfig};

const QUIET: Duration = Duration::from_secs(60);

/// The line of the documentation that makes this user.
fn documented(user: &str) -> String {
    let readme = include_str!("../README.md");
    let start = format!("ACL SETUSER {user} ");
    let rights = readme.lines().find_map(|line| line.strip_prefix(&start)).unwrap();
    // A password that nothing else is called.
    rights.replace(">secret", ">lockers-never-printed")
}

async fn allow(group: &Group, servers: &[SocketAddr], user: &str, rights: &str) {
    for server in servers {
        group.say(*server, &["ACL", "DELUSER", user]).await.unwrap();
        let mut command = vec!["ACL", "SETUSER", user];
        command.extend(rights.split(' '));
        group.say(*server, &command).await.unwrap();
    }
}

async fn connect(config: RedisConfig) -> onelock_core::Result<Checked<RedisBackend>> {
    soon(RedisBackend::connect(config)).await
}

fn config(url: &str, user: &str) -> RedisConfig {
    let mut config = RedisConfig::try_from(url.parse::<StoreUrl>().unwrap()).unwrap();
    (config.username, config.password) = (Some(user.to_owned()), Some(Secret::new("lockers-never-printed")));
    config
}

/// Every verb, on names of several nodes.
async fn all_verbs(backend: &Checked<RedisBackend>) {
    for lock in ["a", "b", "c", "d"] {
        let (ask, next) = (request(lock, "x"), request(lock, "x"));
        let grant = held(backend.acquire(&ask).await.unwrap());
        waits(backend.acquire(&next).await.unwrap());
        assert!(matches!(renew_one(backend, &ask.ticket()).await, Ok(Renewed::Held(_))));
        let raised = backend.raise(&ask.ticket(), token(grant.token.get() + 1000)).await;
        assert_eq!(raised.unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(backend.inspect(&ask.name).await.unwrap().waiters.len(), 1);
        assert_eq!(backend.evict(&ask.name, grant.token).await.unwrap(), Release::Released);
        match soon(backend.wait(&next.ticket())).await.unwrap() {
            Wake::Held(_) => {}
            // Where replicas must have a grant, their waiter asks.
            Wake::Ask => assert!(matches!(renew_one(backend, &next.ticket()).await, Ok(Renewed::Held(_)))),
        }
    }
    let mut page = Page::first(100).unwrap();
    let mut listed = 0;
    loop {
        let part = backend.list("", &page).await.unwrap();
        listed += part.names.len();
        page.cursor = part.next;
        if page.cursor.is_none() {
            break;
        }
    }
    assert_eq!(listed, 4);
}

/// Without each of the rights that start with one of these the client does not come up, and says why.
async fn each_is_needed(
    group: &Group,
    servers: &[SocketAddr],
    user: &str,
    needed: &[&str],
    config: &RedisConfig,
) {
    let rights = documented(user);
    for right in needed {
        let less: Vec<_> = rights.split(' ').filter(|r| r != right).collect();
        assert!(less.len() < rights.split(' ').count(), "{right} is not documented");
        allow(group, servers, user, &less.join(" ")).await;
        let error = connect(config.clone()).await.expect_err(right);
        assert_eq!(error.kind(), ErrorKind::Denied, "without {right}: {error}");
        let named = right.trim_start_matches('+').split('|').next_back().unwrap_or_default();
        assert!(error.to_string().contains(named), "without {right}: {error}");
        assert!(!format!("{error} {error:?}").contains("lockers-never-printed"));
    }
}

#[tokio::test]
async fn a_restricted_user_is_enough_in_a_cluster() {
    let group = Group::start(Plan::cluster(0, QUIET)).await.unwrap();
    let user = "cluster-locker";
    allow(&group, &group.admin, user, &documented(user)).await;
    let config = config(&group.url(), user);
    let backend = connect(config.clone()).await.unwrap();
    all_verbs(&backend).await;
    backend.close().await.unwrap();
    let needed = ["+cluster|info", "+cluster|slots", "+info", "+subscribe", "+publish", "+incr", "+zadd"];
    each_is_needed(&group, &group.admin, user, &needed, &config).await;
}

#[tokio::test]
async fn restricted_users_are_enough_with_sentinels() {
    let group = Group::start(Plan::sentinel(QUIET)).await.unwrap();
    let (user, seeker) = ("sentinel-locker", "seeker");
    allow(&group, &group.admin, user, &documented(user)).await;
    allow(&group, &group.doors(), seeker, &documented(seeker)).await;
    let mut config = config(&group.url(), user);
    config.sentinel_username = Some(seeker.to_owned());
    config.sentinel_password = Some(Secret::new("lockers-never-printed"));
    config.replicas = 1;
    let backend = connect(config.clone()).await.unwrap();
    all_verbs(&backend).await;
    backend.close().await.unwrap();
    each_is_needed(&group, &group.admin, user, &["+info", "+subscribe", "+incr", "+hset"], &config).await;
    allow(&group, &group.admin, user, &documented(user)).await;
    let needed = ["+sentinel|master", "+sentinel|get-master-addr-by-name"];
    each_is_needed(&group, &group.doors(), seeker, &needed, &config).await;
    // Without the right to wait for replicas nothing is held, and it is said.
    allow(&group, &group.doors(), seeker, &documented(seeker)).await;
    let rights = documented(user);
    allow(&group, &group.admin, user, &rights.replace("+wait ", "")).await;
    let backend = connect(config.clone()).await.unwrap();
    let error = backend.acquire(&request("e", "x")).await.unwrap_err();
    assert!(error.to_string().contains("wait"), "{error}");
    let left = group.say(group.masters()[0], &["KEYS", "onelock:*:e:e"]).await.unwrap();
    assert!(
        error.is_unclear() || left.is_empty(),
        "nothing has happened, it says, and left is {left:?}: {error}"
    );
    let mut wrong = config;
    wrong.sentinel_password = Some(Secret::new("hunter2"));
    let error = connect(wrong).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!format!("{error} {error:?}").contains("hunter2"));
}

/// A user loses a right that the verbs need, and is given it back: who held before holds, nobody beside, who waits keeps its place,
/// and the name is free when all have left or are dead.
#[tokio::test]
async fn a_right_that_is_taken_away_costs_no_lock() {
    let server = Server::start(&[]).await;
    let mut raw = server.raw().await;
    raw.run("ACL SETUSER locker on >secret ~* &* +@all").await;
    let mut config = server.config();
    (config.username, config.password) = (Some("locker".to_owned()), Some(Secret::new("secret")));
    let backend = connect(config).await.unwrap();
    let lasting = |name: &str, time| {
        let mut ask = request(name, "x").waiter_lease(time);
        ask.lease = time;
        ask
    };
    let brief = Duration::from_millis(500);
    let (mut wrong, mut names, mut promoted) = (Vec::new(), Vec::new(), Vec::new());
    let rights = documented("locker");
    let rights: Vec<_> = rights.split(' ').filter_map(|right| right.strip_prefix('+')).collect();
    let mut all = Vec::new();
    for right in &rights {
        // With `set` goes what undoes a half.
        all.extend([vec![*right], vec![*right, "set"]]);
    }
    for taken in all {
        let right = &taken.join("+");
        let mut lines = Vec::new();
        for (waited, lease) in [(false, HOUR), (false, brief), (true, HOUR), (true, brief)] {
            let name = format!("{right}, waited for: {waited}, for {lease:?}");
            let (first, next) = (lasting(&name, lease), lasting(&name, lease));
            held(backend.acquire(&first).await.unwrap());
            if waited {
                backend.acquire(&next).await.unwrap();
                backend.release(&next.ticket()).await.unwrap();
            }
            lines.push((name, first));
        }
        let asked = Instant::now();
        let [leaver, mut follower] = [request(right, "x"), request(right, "x")];
        follower.waiter_lease = brief;
        held(backend.acquire(&leaver).await.unwrap());
        waits(backend.acquire(&follower).await.unwrap());
        let readers = format!("{right}, shared");
        let [mut reader, another] = [request(&readers, "s"), request(&readers, "s")];
        (reader.lease, reader.waiter_lease) = (brief, brief);
        held(backend.acquire(&reader).await.unwrap());
        held(backend.acquire(&another).await.unwrap());

        raw.run(&format!("ACL SETUSER locker -{}", taken.join(" -"))).await;
        for (name, _) in &lines {
            if let Err(error) = backend.acquire(&lasting(name, brief)).await {
                assert!(!error.to_string().contains("user_script"), "{error}");
            }
        }
        let _ = backend.release(&leaver.ticket()).await;
        let _ = backend.release(&reader.ticket()).await;
        raw.run(&format!("ACL SETUSER locker +{}", taken.join(" +"))).await;
        let _ = backend.release(&another.ticket()).await;
        names.push(readers);

        let renewed = renew_one(&backend, &follower.ticket()).await;
        // Unless a busy machine took longer than its lease.
        if asked.elapsed() < brief && !matches!(renewed, Ok(Renewed::Held(_) | Renewed::Waiting(_))) {
            wrong.push(format!("{right}: who waited {renewed:?}"));
        }
        if matches!(renewed, Ok(Renewed::Held(_))) {
            promoted.push(follower);
        }
        for (name, first) in lines {
            if first.lease == HOUR {
                let renewed = renew_one(&backend, &first.ticket()).await;
                let beside = backend.acquire(&request(&name, "x").queue(false)).await;
                if !matches!((&renewed, &beside), (Ok(Renewed::Held(_)), Ok(Standing::Busy(_)))) {
                    wrong.push(format!("{name}: {renewed:?}, beside it {beside:?}"));
                }
                let _ = backend.release(&first.ticket()).await;
            }
            names.push(name);
        }
    }
    let until = Instant::now() + PATIENCE;
    for name in names {
        let next = request(&name, "x").queue(false);
        let mut joined = backend.acquire(&next).await;
        while !matches!(joined, Ok(Standing::Held(_))) && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(20)).await;
            joined = backend.acquire(&next).await;
        }
        if !matches!(joined, Ok(Standing::Held(_))) {
            wrong.push(format!("{name}: never free, {joined:?}"));
        }
    }
    // Their waiter leases are over.
    for holder in promoted {
        let renewed = renew_one(&backend, &holder.ticket()).await;
        if !matches!(renewed, Ok(Renewed::Held(_))) {
            wrong.push(format!("{}: who was promoted {renewed:?}", holder.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
