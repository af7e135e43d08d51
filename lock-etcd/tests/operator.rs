//! What an operator does to a cluster while clients are at work.

use std::time::Instant;

use crate::cluster::{churn, leader};
use crate::support::server::{Admin as _, three};
use etcd_client::CompactionOptions;
use onelock_conformance::Verdict;
use onelock_conformance::ctx::PATIENCE;
use onelock_conformance::harness::open_by;
use onelock_etcd::DRIVER;

/// Clients take locks again and again while the cluster is compacted and its members are defragmented, and while one that has lost
/// its disk is removed, added again, and needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_churn_over_the_work_of_an_operator() -> Verdict {
    let members = three().await?;
    let churn = churn(&members, "operator", 13).await?;
    for _ in 0..3 {
        churn.goes_on(10, PATIENCE).await?;
        for member in &members {
            let mut admin = member.admin().await?;
            let revision =
                admin.get("-", None).await?.header().map_or(1, etcd_client::ResponseHeader::revision);
            // Who compacts at the same moment may have been first.
            let _ = admin.compact(revision, Some(CompactionOptions::new().with_physical())).await;
            admin.defragment().await?;
        }
    }
    let lost = (leader(&members).await? + 1) % 3;
    members[lost].process.kill()?;
    let mut admin = members[(lost + 1) % 3].admin().await?;
    let all = admin.member_list().await?;
    let name = ["a", "b", "c"][lost];
    let old = all.members().iter().find(|member| member.name() == name).unwrap();
    let peer = old.peer_urls()[0].clone();
    admin.member_remove(old.id()).await?;
    churn.goes_on(10, PATIENCE).await?;
    let end = Instant::now() + PATIENCE;
    // It may take a moment until the cluster is taken to be healthy again.
    while let Err(error) = admin.member_add([peer.clone()], None).await {
        assert!(Instant::now() < end, "{error}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let known: Vec<_> =
        all.members().iter().map(|member| format!("{}={}", member.name(), member.peer_urls()[0])).collect();
    let folder = tempfile::tempdir()?;
    let at = format!("http://{}", members[lost].address());
    let _new = tokio::process::Command::new("etcd")
        .args(["--name", name, "--listen-client-urls", &at, "--advertise-client-urls", &at])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &known.join(","), "--initial-cluster-state", "existing"])
        .args(["--heartbeat-interval", "50", "--election-timeout", "500", "--logger", "zap"])
        .arg("--data-dir")
        .arg(folder.path())
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let end = Instant::now() + PATIENCE;
    loop {
        let url = format!("etcd://{}", members[lost].address());
        if open_by(&DRIVER, &url).await.is_ok() {
            break;
        }
        assert!(Instant::now() < end, "the new member does not serve");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    churn.goes_on(10, PATIENCE).await?;
    members[(lost + 1) % 3].process.kill()?;
    churn.goes_on(30, PATIENCE * 2).await?;
    let report = churn.stop().await?;
    report.check()?;
    println!("{} holds, {} lost, errors {:?}", report.holds.len(), report.lost, report.errors);
    assert_eq!((report.kept, report.kept_lost), (3, 0), "guards kept over it");
    Ok(())
}
