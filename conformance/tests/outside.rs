//! The programs in `examples/outside` and `examples/payments`, a workspace of their own, on servers of this test.

use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use futures_util::future::try_join_all;
use onelock_conformance::ctx::PATIENCE;
use onelock_conformance::servers::etcd::Member;
use onelock_conformance::servers::mariadb::MariaDb;
use onelock_conformance::servers::postgres::PostgresServer;
use onelock_conformance::servers::{data_folder, redis, signal_process, zookeeper};
use onelock_conformance::verdict::{Context as _, Stop, Verdict};
use onelock_conformance::{ensure, ensure_eq};
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
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
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let cargo = |words: &[&str]| {
        let mut command = Command::new(&cargo);
        command.args(words).arg("--workspace").arg("--manifest-path").arg(program.join("Cargo.toml"));
        command.env("CARGO_TARGET_DIR", target);
        command
    };
    // Both programs and all tests in one go, as the check has built them: else what they share is built twice.
    said(cargo(&["build", "--all-targets"])).await?;
    said(cargo(&["test", "--bins"])).await?;
    let mut outside = Command::new(target.join("debug/outside"));
    outside.args(&urls);
    let said = said(outside).await?;
    ensure!(said.lines().count() == urls.len(), "not every store: {said}");
    payments(&target.join("debug/payments"), &postgres.url()).await
}

/// The store that the documentation of `onelock::store` builds, as its author would run the suite on it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "it builds a program of its own; scripts/check.sh runs it"]
async fn a_store_of_somebody_else_passes_the_suite() -> Verdict {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace")?;
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().context("the target folder")?;
    let program = root.join("examples/outside");
    std::fs::copy(root.join("Cargo.lock"), program.join("Cargo.lock"))?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "--workspace", "--test", "conformance", "--manifest-path"]);
    cargo.arg(program.join("Cargo.toml")).env("CARGO_TARGET_DIR", target);
    let said = said(cargo).await?;
    ensure!(said.contains("test result: ok. 107 passed; 0 failed; 12 ignored"), "{said}");
    Ok(())
}

/// The page of the service quotes its source, at most five lines for each of ten needs.
#[test]
fn the_page_of_the_service_quotes_its_source() {
    let (page, source) = (
        include_str!("../../examples/payments/README.md"),
        include_str!("../../examples/payments/src/main.rs"),
    );
    let quotes: Vec<_> =
        page.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(quotes.len(), 10);
    for quote in quotes {
        let lines: Vec<_> = quote.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        assert!(lines.len() <= 5, "{quote}");
        for line in lines {
            assert!(source.lines().any(|other| other.trim() == line), "not in the source: {line}");
        }
    }
}

/// The documentation of `onelock::store` is the source of the store in the folder, in its order and whole.
#[test]
fn the_tutorial_is_its_source() {
    let (page, source) = (
        include_str!("../../lock-core/src/store/tutorial.md"),
        include_str!("../../examples/folder-store/src/lib.rs"),
    );
    let quotes = page.split("```rust,ignore\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    // The last two show its use.
    let parts: Vec<_> = quotes.take_while(|quote| !quote.contains("fn main")).collect();
    let code =
        |text: &str| text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(code(&parts.join("\n")), code(source.split_once("\n\n").unwrap().1));
    let counted = code(source).iter().filter(|line| !line.trim_start().starts_with("//")).count();
    assert!(
        page.contains(&format!("{counted} lines of code")) && counted <= 250,
        "it has {counted} lines of code"
    );
}

/// What a program that has ended well has printed.
async fn said(mut program: Command) -> Verdict<String> {
    let output = program.kill_on_drop(true).output().await?;
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{}\n{failed}\n{said}", output.status);
    Ok(said.into_owned())
}

/// The service of `examples/payments`: its callers at once, and its end by a signal.
async fn payments(program: &Path, url: &str) -> Verdict {
    let mut service = Command::new(program).arg(url).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let mut told = BufReader::new(service.stdout.take().context("its output")?).lines();
    let address = told.next_line().await?.context("its address")?;
    let ask = async |method: &str, path: &str| {
        let mut stream = TcpStream::connect(&address).await?;
        let request = format!("{method} {path} HTTP/1.1\r\nHost: payments\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        Ok::<_, Stop>(answer.rsplit("\r\n").next().unwrap_or_default().to_owned())
    };
    try_join_all((0..20).map(|i| ask("POST", if i % 2 == 0 { "/deposit/1/100" } else { "/deposit/2/100" })))
        .await?;
    try_join_all(
        (0..20).map(|i| ask("POST", if i % 2 == 0 { "/transfer/1/2/30" } else { "/transfer/2/1/10" })),
    )
    .await?;
    ensure_eq!(ask("GET", "/balance/1").await?, "800", "the first account");
    ensure_eq!(ask("GET", "/balance/2").await?, "1200", "the second account");
    ask("POST", "/transfer/1/3/250").await?;
    ensure_eq!(ask("GET", "/balance/1").await?, "550", "who gave");
    ensure_eq!(ask("GET", "/balance/3").await?, "250", "an account that was not there");
    try_join_all((0..6).map(|_| ask("GET", "/score/4711"))).await?;
    let metrics = ask("GET", "/metrics").await?;
    ensure!(metrics.starts_with("acquired "), "{metrics}");
    let end = Instant::now() + PATIENCE;
    while ask("GET", "/leader").await? == "nobody" {
        ensure!(Instant::now() < end, "nobody settles");
    }
    signal_process(service.id().context("its id")?, Signal::TERM)?;
    ensure!(service.wait().await?.success(), "its end");
    ensure_eq!(told.next_line().await?.as_deref(), Some("exported: 1"), "its last word");
    Ok(())
}
