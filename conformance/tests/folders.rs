//! Folders of servers: those of the living stay, those of killed processes go.
#![allow(missing_docs, clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use onelock_conformance::servers::data_folder;
use onelock_conformance::servers::postgres::PostgresServer;

/// This program again, as a process that uses folders.
const AGAIN: &str = "ONELOCK_FOLDERS_AGAIN";

fn again(words: &[&str]) -> Command {
    let mut line = words.iter().map(std::ffi::OsString::from).collect::<Vec<_>>();
    line.push(std::env::current_exe().unwrap().into());
    let mut command = Command::new(&line[0]);
    command.args(&line[1..]).args(["--exact", "child", "--nocapture"]).env(AGAIN, "1");
    command
}

/// Not a test by itself: makes a folder, says where, and waits for the end of its input.
#[test]
fn child() {
    if std::env::var_os(AGAIN).is_none() {
        return;
    }
    let folder = data_folder().unwrap();
    println!("\nfolder {}", folder.path().display());
    std::io::stdin().lines().for_each(drop);
}

/// Process ids mean nothing in another PID namespace.
#[tokio::test]
async fn a_suite_in_another_pid_namespace_leaves_our_server() {
    let ways: [&[&str]; 2] = [
        &["unshare", "--pid", "--fork", "--mount-proc"],
        &["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"],
    ];
    let allowed = |way: &&&[&str]| {
        Command::new(way[0])
            .args(&way[1..])
            .arg("true")
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|s| s.success())
    };
    let Some(way) = ways.iter().find(allowed) else {
        println!("no namespaces for this user");
        return;
    };
    let server = PostgresServer::start(&[]).await.unwrap();
    assert!(again(way).stdin(Stdio::null()).status().unwrap().success());
    // A new session opens files of the folder.
    server.say("").await.unwrap();
}

#[test]
fn the_folder_of_a_killed_process_goes() {
    let mut child = again(&["env"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let folder = lines.find_map(|line| line.strip_prefix("folder ").map(std::path::PathBuf::from)).unwrap();
    let sweep =
        || assert!(again(&["env"]).stdin(Stdio::null()).stdout(Stdio::null()).status().unwrap().success());
    sweep();
    assert!(folder.is_dir(), "its process lives");
    child.kill().unwrap();
    child.wait().unwrap();
    sweep();
    assert!(!folder.exists(), "its process was killed");
}
