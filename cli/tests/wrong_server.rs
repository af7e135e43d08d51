//! A URL that leads to another kind of server than it names: the error says which.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use onelock_testbed::ensure;
use onelock_testbed::servers::etcd::Member;
use onelock_testbed::servers::mariadb::MariaDb;
use onelock_testbed::servers::postgres::PostgresServer;
use onelock_testbed::servers::redis::{RedisServer, Setup};
use onelock_testbed::servers::zookeeper::{self, ZkServer};
use onelock_testbed::verdict::Verdict;

use crate::common::{Bench, folder};

/// A server of nothing but refusals, in HTTP.
fn web_server() -> Verdict<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 512]);
                let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n");
            });
        }
    });
    Ok(address)
}

fn port(url: &str) -> u16 {
    let address = url.split('/').nth(2).and_then(|authority| authority.rsplit(':').next());
    address.and_then(|port| port.parse().ok()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_looks_like_is_said() -> Verdict {
    let redis = RedisServer::start(Setup::default()).await?;
    let postgres = PostgresServer::start(&[]).await?;
    let mysql = MariaDb::start(&[]).await?;
    let etcd = Member::single(None).await?;
    let zookeeper = ZkServer::start(zookeeper::Setup::default()).await?;
    let servers = [
        ("redis", "Redis", redis.address().port()),
        ("postgres", "PostgreSQL", port(&postgres.url())),
        ("mysql", "MySQL or MariaDB", port(&mysql.url())),
        ("etcd", "etcd", port(&etcd.url())),
        ("zk", "ZooKeeper", zookeeper.address().port()),
        ("none", "a web server", web_server()?.port()),
    ];
    let stores =
        ["redis://", "etcd://", "zk://", "postgres://user:never-printed@", "mysql://user:never-printed@"];
    let pings = servers.into_iter().flat_map(|(own, name, port)| {
        let others = stores.iter().filter(move |store| !store.starts_with(own));
        others.map(move |store| {
            let path = if store.contains('@') { "/app" } else { "" };
            let patience = if store.starts_with("zk") { "" } else { "?connect_timeout=1s" };
            let url = format!("{store}127.0.0.1:{port}{path}{patience}");
            let bench = Bench { dir: folder(), url };
            tokio::task::spawn_blocking(move || (bench.run(&["ping"]), bench.url.clone(), name))
        })
    });
    for ping in pings.collect::<Vec<_>>() {
        let (done, url, name) = ping.await?;
        ensure!(done.code == Some(69) || done.code == Some(76), "{url}: {done:?}");
        ensure!(done.err.contains(&format!("what answers there looks like {name}")), "{url}: {done:?}");
        ensure!(!done.err.contains("never-printed"), "{url}: {done:?}");
    }
    // The right kind of server that refuses is no other kind.
    let wrong = format!("mysql://nobody:wrong@127.0.0.1:{}/app", port(&mysql.url()));
    let done = Bench { dir: folder(), url: wrong }.run(&["ping"]);
    ensure!(done.code != Some(0) && !done.err.contains("looks like"), "{done:?}");
    Ok(())
}
