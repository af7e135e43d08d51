//! What a resource does with tokens: in each of them a writer whose lock has gone to another is refused.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use http::{Request, Response};
use onelock::fence::{self, Fence, FenceLayer, Stale};
use onelock::{Error, ErrorKind, FencingToken, Guard, LockName, Locks, StoreUrl};
use tower_layer::Layer as _;
use tower_service::Service;

use crate::{Done, check, expect};

/// In this process, and in the database that the locks are in.
pub async fn at_the_resource(locks: &Locks, url: &str, name: &str) -> Done {
    let url: StoreUrl = url.parse()?;
    let server = url.hosts.first().map(|(host, port)| onelock::url::host_port(host, *port));
    let server = server.unwrap_or_default();
    match locks.info().scheme.as_str() {
        "etcd" => return etcd(locks, &server, name).await,
        "zk" => return zookeeper(locks, &server, &url.path, name).await,
        _ => {}
    }
    let late = locks.mutex(name)?.acquire().await?;
    let token = late.token()?;
    let guard = successor(locks, &late).await?;
    in_process(&guard, token)?;
    match locks.info().scheme.as_str() {
        "redis" => redis(&server, &guard, token).await?,
        "postgres" => postgres(&login(&url, &server), &guard, token).await?,
        "mysql" => mysql(&login(&url, &server), &guard, token).await?,
        "sqlite" => sqlite(&guard, token)?,
        _ => {}
    }
    Ok(guard.release().await?)
}

/// Takes the lock away from a guard that does not notice, and gives it to the next.
async fn successor(locks: &Locks, late: &Guard) -> Done<Guard> {
    locks.evict(late.name(), late.token()?).await?;
    Ok(locks.mutex(late.name())?.acquire().await?)
}

fn stale(answer: Result<(), Error>, token: FencingToken, newest: FencingToken) -> Done {
    let error = expect(answer, ErrorKind::Stale)?;
    let numbers = error.stale().map(|Stale { token, newest, .. }| (*token, *newest));
    check(numbers == Some((token, newest)), "a refusal has both numbers")
}

fn in_process(guard: &Guard, late: FencingToken) -> Done {
    let fence = Fence::in_process();
    fence.check(guard)?;
    let Err(Stale { token, newest, .. }) = fence.admit(guard.name(), late, true) else {
        return Err("a late token was admitted in this process".into());
    };
    check((token, newest) == (late, guard.token()?), "a refusal has both numbers")?;
    let (name, value) = fence::header(guard)?;
    check(name == "Fencing-Token" && fence::parse_header(value.as_bytes())? == newest, "the header")
}

async fn redis(server: &str, guard: &Guard, late: FencingToken) -> Done {
    let client = ::redis::Client::open(format!("redis://{server}"))?;
    let mut data = client.get_multiplexed_async_connection().await?;
    let keys = [format!("{{{}}}:fence", guard.name()), format!("{{{}}}:data", guard.name())];
    let keys = [keys[0].as_str(), keys[1].as_str()];
    let set = |value: &str| ::redis::cmd("SET").arg(keys[1]).arg(value).to_owned();
    check(fence::redis::SCRIPT.contains("KEYS[1]"), "the script is there")?;
    fence::redis::run(&mut data, guard, &keys, &set("later")).await?;
    let refused = fence::redis::run_as(&mut data, (guard.name(), late, true), &keys, &set("late")).await;
    stale(refused.map(drop), late, guard.token()?)?;
    let now: String = ::redis::cmd("GET").arg(keys[1]).query_async(&mut data).await?;
    check(now == "later", "the late write is not there")
}

/// The URL without the options of the locks.
fn login(url: &StoreUrl, server: &str) -> String {
    let user = url.username.as_deref().unwrap_or_default();
    let password =
        url.password.as_ref().map(|password| format!(":{}", password.reveal())).unwrap_or_default();
    format!("{}://{user}{password}@{server}{}", url.scheme, url.path)
}

async fn postgres(url: &str, guard: &Guard, late: FencingToken) -> Done {
    use sqlx::{Connection as _, Executor as _};
    let mut data = sqlx::PgConnection::connect(url).await?;
    data.execute(fence::postgres::SCHEMA).await?;
    let mut transaction = data.begin().await?;
    fence::postgres::check(&mut transaction, guard).await?;
    transaction.commit().await?;
    // The statement itself, by whatever driver: a number larger than the token is a refusal.
    let check_late = sqlx::query_scalar(fence::postgres::CHECK).bind(guard.name().as_str()).bind(late.get());
    let newest: i64 = check_late.fetch_one(&mut data).await?;
    check(newest == guard.token()?.get() && newest > late.get(), "the watermark")?;
    stale(fence::postgres::admit(&mut data, guard.name(), late, true).await, late, guard.token()?)
}

async fn mysql(url: &str, guard: &Guard, late: FencingToken) -> Done {
    use sqlx::{Connection as _, Executor as _};
    let mut data = sqlx::MySqlConnection::connect(url).await?;
    data.execute(fence::mysql::SCHEMA).await?;
    let mut transaction = data.begin().await?;
    fence::mysql::check(&mut transaction, guard).await?;
    transaction.commit().await?;
    let check_late = sqlx::query(fence::mysql::CHECK).bind(guard.name().as_str()).bind(late.get());
    let newest = check_late.execute(&mut data).await?.last_insert_id();
    check(
        i64::try_from(newest)? == guard.token()?.get() && newest > late.get().unsigned_abs(),
        "the watermark",
    )?;
    stale(fence::mysql::admit(&mut data, guard.name(), late, true).await, late, guard.token()?)
}

fn sqlite(guard: &Guard, late: FencingToken) -> Done {
    let mut data = rusqlite::Connection::open_in_memory()?;
    data.execute_batch(fence::sqlite::SCHEMA)?;
    let transaction = data.transaction()?;
    fence::sqlite::check(&transaction, guard)?;
    transaction.commit()?;
    let newest: i64 =
        data.query_row(fence::sqlite::CHECK, (guard.name().as_str(), late.get()), |row| row.get(0))?;
    check(newest == guard.token()?.get() && newest > late.get(), "the watermark")?;
    stale(fence::sqlite::admit(&data, guard.name(), late, true), late, guard.token()?)
}

async fn etcd(locks: &Locks, server: &str, name: &str) -> Done {
    use etcd_client::{Client, TxnOp};
    let mut data = Client::connect([server], None).await?;
    let late = locks.mutex(name)?.acquire().await?;
    let (token, entry) = (late.token()?, fence::etcd::Entry::of(&late, "onelock/")?);
    let pay = || entry.txn([TxnOp::put(format!("{name}/data"), "paid", None)]);
    entry.admitted(&data.txn(pay()).await?)?;
    let guard = successor(locks, &late).await?;
    in_process(&guard, token)?;
    stale(entry.admitted(&data.txn(pay()).await?), token, guard.token()?)?;
    Ok(guard.release().await?)
}

async fn zookeeper(locks: &Locks, server: &str, base: &str, name: &str) -> Done {
    use zookeeper_client::{Acls, Client, CreateMode};
    let data = Client::connect(server).await?;
    let path = format!("/{}", name.replace('/', "-"));
    data.create(&path, b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
    let late = locks.mutex(name)?.acquire().await?;
    let (token, entry) = (late.token()?, fence::zk::Entry::of(&late, base, &data).await?);
    let mut multi = entry.multi(&data)?;
    multi.add_set_data(&path, b"paid", None)?;
    multi.commit().await?;
    let guard = successor(locks, &late).await?;
    in_process(&guard, token)?;
    let mut multi = entry.multi(&data)?;
    multi.add_set_data(&path, b"paid twice", None)?;
    let refused = multi.commit().await.err().ok_or("a late multi was done")?;
    stale(Err(entry.refused(&data, refused).await), token, guard.token()?)?;
    check(data.get_data(&path).await?.0 == b"paid", "the late write is not there")?;
    data.delete(&path, None).await?;
    Ok(guard.release().await?)
}

/// Answers every request.
struct Written;

impl Service<Request<String>> for Written {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        ready(Ok(Response::new(String::new())))
    }
}

/// A layer before a service.
pub fn http() -> Done {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        let name = |request: &Request<String>| LockName::new(request.uri().path()).ok();
        let mut service = FenceLayer::new(name).layer(Written);
        for (token, status) in [("8", 200), ("7", 409), ("x", 400)] {
            let request = Request::put("/printer").header(fence::HTTP_HEADER, token).body(String::new())?;
            check(service.call(request).await?.status() == status, "a layer refuses stale tokens")?;
        }
        Ok(())
    })
}
