//! The program in `examples/outside`, a workspace of its own, on servers of this test.

use std::path::Path;

use onelock_conformance::ensure;
use onelock_conformance::servers::etcd::Member;
use onelock_conformance::servers::mariadb::MariaDb;
use onelock_conformance::servers::postgres::PostgresServer;
use onelock_conformance::servers::{data_folder, redis, zookeeper};
use onelock_conformance::verdict::{Context as _, Verdict};
use tokio::process::Command;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it builds a program with all stores; scripts/check.sh runs it"]
async fn a_program_of_somebody_else_works_on_every_store() -> Verdict {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace")?;
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().context("the target folder")?;
    let program = root.join("examples/outside");
    // The versions that are built already.
    std::fs::copy(root.join("Cargo.lock"), program.join("Cargo.lock"))?;

    let folder = data_folder()?;
    let redis = redis::RedisServer::start(redis::Setup::default()).await?;
    let postgres = PostgresServer::start(&[]).await?;
    let mysql = MariaDb::start(&[]).await?;
    let etcd = Member::single(None).await?;
    let zookeeper = zookeeper::ZkServer::start(zookeeper::Setup::default()).await?;
    let urls = [
        "memory://".to_owned(),
        format!("sqlite://{}", folder.path().join("locks.db").display()),
        format!("redis://{}", redis.address()),
        postgres.url(),
        mysql.url(),
        etcd.url(),
        format!("zk://{}/outside?tick={}ms", zookeeper.address(), zookeeper::TICK.as_millis()),
    ];
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["run", "--manifest-path"]).arg(program.join("Cargo.toml")).arg("--").args(&urls);
    cargo.env("CARGO_TARGET_DIR", target).kill_on_drop(true);
    let output = cargo.output().await?;
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{}\n{failed}\n{said}", output.status);
    ensure!(said.lines().count() == urls.len(), "not every store: {said}");
    Ok(())
}
