//! The plain layout against what other libraries send.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{HOUR, Raw, Server, held, name, renew_one, request, soon, token};
use onelock_core::store::Checked;
use onelock_core::{
    Backend, BootClock, ErrorKind, Locks, Page, Release, Renewed, Settings, Standing, StoreUrl,
};
use onelock_redis::{RedisBackend, RedisConfig};
use redis::Value;

/// Release and extension as redsync and node-redlock send them; the other libraries' differ in spelling only.
const THEIR_RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
const THEIR_EXTENSION: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";

fn config(server: &Server) -> RedisConfig {
    let url = format!("redis://127.0.0.1:{}?layout=plain", server.port);
    RedisConfig::try_from(url.parse::<StoreUrl>().unwrap()).unwrap()
}

async fn plain(server: &Server) -> Arc<Checked<RedisBackend>> {
    Arc::new(RedisBackend::connect(config(server)).await.unwrap())
}

async fn locks(server: &Server) -> Locks {
    Locks::builder(plain(server).await)
        .clock(Arc::new(BootClock))
        .settings(Settings::default())
        .build()
        .unwrap()
}

async fn they_take(raw: &mut Raw, lock: &str, ms: &str) -> bool {
    raw.run_args(&["SET", lock, "their value", "NX", "PX", ms]).await == Value::Okay
}

async fn they_eval(raw: &mut Raw, script: &str, lock: &str, value: &str) -> Value {
    raw.run_args(&["EVAL", script, "1", lock, value, "60000"]).await
}

#[tokio::test]
async fn each_keeps_the_other_out() {
    let server = Server::start(&[]).await;
    let (locks, mut raw) = (locks(&server).await, server.raw().await);
    let lock = locks.mutex("orders/42").unwrap();
    let guard = lock.acquire().await.unwrap();
    assert!(!they_take(&mut raw, "orders/42", "60000").await);
    // They can neither free nor extend what is not theirs, nor can we what is not ours.
    assert_eq!(they_eval(&mut raw, THEIR_RELEASE, "orders/42", "their value").await, Value::Int(0));
    assert_eq!(they_eval(&mut raw, THEIR_EXTENSION, "orders/42", "their value").await, Value::Int(0));
    guard.release().await.unwrap();
    assert!(they_take(&mut raw, "orders/42", "60000").await);
    assert!(lock.try_acquire().await.unwrap().is_none());
    let ours = request("orders/42", "x");
    let backend = locks.backend();
    assert_eq!(backend.release(&ours.ticket()).await.unwrap(), Release::NotHeld);
    assert_eq!(backend.evict(&ours.name, token(1)).await.unwrap(), Release::NotHeld);
    assert_eq!(renew_one(&**backend, &ours.ticket()).await.unwrap(), Renewed::NotHeld);
    let seen = backend.inspect(&ours.name).await.unwrap();
    assert!(seen.is_held() && seen.holders.is_empty(), "{seen:?}");
    let left = seen.foreign[0].expires_in.unwrap();
    assert!(left > Duration::ZERO && left <= Duration::from_secs(60), "{seen:?}");
    assert_eq!(raw.text("GET orders/42").await, "their value");
    // Whoever waits gets it once they give it back.
    let waiting = tokio::spawn(async move { lock.acquire().await });
    assert_eq!(they_eval(&mut raw, THEIR_EXTENSION, "orders/42", "their value").await, Value::Int(1));
    assert_eq!(they_eval(&mut raw, THEIR_RELEASE, "orders/42", "their value").await, Value::Int(1));
    soon(waiting).await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(raw.residue().await, Vec::<String>::new());
}

#[tokio::test]
async fn their_lock_ends_with_its_time_and_ours_with_ours() {
    let server = Server::start(&[]).await;
    let (backend, mut raw) = (plain(&server).await, server.raw().await);
    assert!(they_take(&mut raw, "a", "60000").await);
    let busy = backend.acquire(&request("a", "x")).await.unwrap();
    let Standing::Busy(busy) = busy else { panic!("{busy:?}") };
    assert!(busy.retry_after.is_some_and(|after| after <= Duration::from_secs(60)));
    raw.run("PERSIST a").await;
    let busy = backend.acquire(&request("a", "x")).await.unwrap();
    assert!(matches!(busy, Standing::Busy(busy) if busy.retry_after.is_none()), "a lock without an end");
    raw.run("DEL a").await;
    let short = request("a", "x").lease(Duration::from_millis(30));
    held(backend.acquire(&short).await.unwrap());
    soon(async { while !they_take(&mut raw, "a", "60000").await {} }).await;
    assert_eq!(renew_one(&*backend, &short.ticket()).await.unwrap(), Renewed::NotHeld);
    assert_eq!(backend.release(&short.ticket()).await.unwrap(), Release::NotHeld);
}

#[tokio::test]
async fn our_tokens_grow_over_their_holds() {
    let server = Server::start(&[]).await;
    let (backend, mut raw) = (plain(&server).await, server.raw().await);
    let mut last = 0;
    for _ in 0..3 {
        let ask = request("a", "x");
        let grant = held(backend.acquire(&ask).await.unwrap());
        assert!(grant.token.get() > last);
        last = grant.token.get();
        // Asked again by the same holder, it is the same lock.
        assert_eq!(held(backend.acquire(&ask).await.unwrap()).token, grant.token);
        let shown = backend.inspect(&ask.name).await.unwrap();
        assert_eq!((shown.holders.len(), shown.holders[0].token), (1, grant.token));
        assert_eq!(shown.holders[0].note, "a note");
        assert_eq!(backend.release(&ask.ticket()).await.unwrap(), Release::Released);
        assert!(they_take(&mut raw, "a", "60000").await);
        raw.run("DEL a").await;
    }
    let ask = request("a", "x");
    let grant = held(backend.acquire(&ask).await.unwrap());
    assert_eq!(backend.evict(&ask.name, grant.token).await.unwrap(), Release::Released);
    assert_eq!(renew_one(&*backend, &ask.ticket()).await.unwrap(), Renewed::NotHeld);
}

/// Each name is a key, and so are the counters.
#[tokio::test]
async fn no_name_is_the_counter_of_another() {
    let server = Server::start(&[]).await;
    let backend = plain(&server).await;
    for counted_before in [false, true] {
        let refused = backend.acquire(&request("onelock:plain:{44}:n", "x")).await;
        let ask = request("a", "x");
        let standing = backend.acquire(&ask).await;
        held(standing.unwrap_or_else(|error| panic!("{counted_before}: beside {refused:?}: {error}")));
        assert_eq!(backend.release(&ask.ticket()).await.unwrap(), Release::Released);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidName);
    }
}

#[tokio::test]
async fn what_is_no_string_is_left_alone() {
    let server = Server::start(&[]).await;
    let (backend, mut raw) = (plain(&server).await, server.raw().await);
    // As Redisson writes a lock.
    raw.run("HSET a 0d3a2b1c-uuid:1 1").await;
    let ask = request("a", "x");
    for error in [
        backend.acquire(&ask).await.unwrap_err(),
        backend.release(&ask.ticket()).await.unwrap_err(),
        renew_one(&*backend, &ask.ticket()).await.unwrap_err(),
        backend.inspect(&ask.name).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    }
    assert_eq!(raw.int("HLEN a").await, 1);
}

#[tokio::test]
async fn what_one_key_cannot_keep_is_refused_and_said() {
    let server = Server::start(&[]).await;
    let locks = locks(&server).await;
    for refused in [
        locks.lock("a", onelock_core::Mode::Shared).map(drop),
        locks.semaphore("a", 2).map(drop),
        locks.list("", &Page::first(1).unwrap()).await.map(drop),
    ] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
    }
    let backend = locks.backend();
    for mode in ["s", "p2"] {
        let error = backend.acquire(&request("a", mode)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    let raised = backend.raise(&request("a", "x").ticket(), token(1)).await;
    assert_eq!(raised.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[tokio::test]
async fn a_restricted_user_is_enough() {
    let server = Server::start(&[]).await;
    let mut raw = server.raw().await;
    let readme = include_str!("../README.md");
    let rights = readme.lines().find_map(|line| line.strip_prefix("ACL SETUSER plain-locker ")).unwrap();
    // A password that nothing else is called.
    let rights = rights.replace(">secret", ">lockers-never-printed");
    raw.run(&format!("ACL SETUSER locker {rights}")).await;
    let mut config = config(&server);
    (config.username, config.password) =
        (Some("locker".into()), Some(onelock_core::Secret::new("lockers-never-printed")));
    let backend = RedisBackend::connect(config.clone()).await.unwrap();
    let cycle = async |backend: &Checked<RedisBackend>| {
        let ask = request("orders/1", "x");
        let standing = backend.acquire(&ask).await?;
        let again = ask.clone().lease(HOUR * 2);
        backend.acquire(&again).await?;
        renew_one(backend, &ask.ticket()).await?;
        backend.inspect(&name("orders/1")).await?;
        backend.release(&ask.ticket()).await?;
        Ok::<_, onelock_core::Error>(standing)
    };
    held(cycle(&backend).await.unwrap());
    for right in ["time", "get", "set", "del", "incr", "pttl", "pexpire", "evalsha", "script|load"] {
        raw.run(&format!("ACL SETUSER locker -{right}")).await;
        let error = RedisBackend::connect(config.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{right}: {error}");
        assert!(error.to_string().contains(right), "{right}: {error}");
        raw.run(&format!("ACL SETUSER locker +{right}")).await;
    }
    // A lock outside the user's keys is denied, not busy.
    let error = backend.acquire(&request("invoices/1", "x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

/// With the library that Debian ships; `PYTHON` names an interpreter with another version of it.
#[tokio::test]
async fn redis_py_and_we_exclude_each_other() {
    let server = Server::start(&[]).await;
    let locks = locks(&server).await;
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "/usr/bin/python3".to_owned());
    let run = async |script: &str| {
        let text = format!("import redis\nr = redis.Redis(port={})\n{script}", server.port);
        let mut command = Command::new(&python);
        command.args(["-c", &text]);
        let out = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    };
    let lock = locks.mutex("shared").unwrap();
    let guard = lock.acquire().await.unwrap();
    let tried = "print(r.lock('shared', timeout=60).acquire(blocking=False))";
    assert_eq!(run(tried).await, "False");
    guard.release().await.unwrap();
    assert_eq!(run(tried).await, "True");
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert_eq!(run("l = r.lock('other', timeout=60); l.acquire(); l.extend(30); l.release(); print(r.exists('other'))").await, "0");
    let together = "l = r.lock('turns', timeout=60, sleep=0.01)\nfor _ in range(50):\n  assert l.acquire()\n  n = int(r.get('n') or 0)\n  r.set('n', n + 1)\n  l.release()\nprint('done')";
    let turns = locks.mutex("turns").unwrap();
    let mut raw = server.raw().await;
    let ours = async {
        for _ in 0..50 {
            let guard = turns.acquire().await.unwrap();
            let n = match raw.run("GET n").await {
                Value::BulkString(text) => String::from_utf8(text).unwrap().parse::<i64>().unwrap(),
                _ => 0,
            };
            raw.run(&format!("SET n {}", n + 1)).await;
            guard.release().await.unwrap();
        }
    };
    let (theirs, ()) = tokio::join!(run(together), ours);
    assert_eq!(theirs, "done");
    assert_eq!(raw.text("GET n").await, "100");
}
