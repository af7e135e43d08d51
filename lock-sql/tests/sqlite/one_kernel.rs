//! What would give two processes a line each, or drop the locks of the living: other boot ids, other names of the file, a
//! newer schema.

use std::path::Path;
use std::process::Command;

use onelock_core::{Backend as _, ErrorKind, Page, Release, Renewed, Standing};

use crate::support::{
    INSIDE, file, folder, hold, in_a_namespace, name, one, open, queue, raw, refused, release, renewal,
    request,
};

fn inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

fn run(program: &str, words: &[&str]) {
    assert!(Command::new(program).args(words).status().unwrap().success(), "{program} {words:?}");
}

/// What containers of LXC, Incus and systemd-nspawn do.
#[tokio::test]
async fn a_boot_id_that_a_container_was_given_is_refused() {
    const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
    if !inside() {
        return in_a_namespace("one_kernel::a_boot_id_that_a_container_was_given_is_refused");
    }
    let folder = folder();
    let path = file(&folder);
    open(&path).await.close().await.unwrap();
    let own = folder.path().join("boot_id");
    std::fs::write(&own, "11111111-2222-3333-4444-555555555555\n").unwrap();
    run("mount", &["--bind", own.to_str().unwrap(), BOOT_ID]);
    let error = refused(&path).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("unmount"), "{error}");
    run("umount", &[BOOT_ID]);
    open(&path).await;
}

#[tokio::test]
async fn another_boot_id_in_an_open_file_is_no_reboot() {
    let folder = folder();
    let path = file(&folder);
    let store = open(&path).await;
    let token = hold(&store, &request("n", 1)).await;
    let other = raw(&path);
    let own: String = one(&other, "SELECT boot FROM onelock_meta");
    other.execute_batch("UPDATE onelock_meta SET boot = 'of another container'").unwrap();
    let error = store.acquire(&request("n", 2)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let error = store.inspect(&name("n")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    other.execute("UPDATE onelock_meta SET boot = ?", [own]).unwrap();
    let renewed = store.renew(&[renewal(&request("n", 1))]).await;
    assert!(matches!(renewed[0], Ok(Renewed::Held(grant)) if grant.token == token), "{renewed:?}");
}

#[tokio::test]
async fn a_file_with_several_names_is_refused() {
    let folder = folder();
    let (path, link) = (file(&folder), folder.path().join("link.db"));
    open(&path).await.close().await.unwrap();
    std::fs::hard_link(&path, &link).unwrap();
    for name in [&path, &link] {
        let error = refused(name).await;
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("hard link"), "{error}");
    }
    std::fs::remove_file(&link).unwrap();
    let store = open(&path).await;
    // A symbolic link is another matter: SQLite keeps the log beside the file that it leads to.
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let other = open(&link).await;
    hold(&store, &request("n", 1)).await;
    queue(&other, &request("n", 2)).await;
}

/// As `docker run -v /var/lib/app/locks.db:/locks.db` does.
#[tokio::test]
async fn a_file_that_is_mounted_by_itself_is_refused() {
    if !inside() {
        return in_a_namespace("one_kernel::a_file_that_is_mounted_by_itself_is_refused");
    }
    let folder = folder();
    let (path, mounted) = (file(&folder), folder.path().join("mounted.db"));
    open(&path).await.close().await.unwrap();
    std::fs::write(&mounted, "").unwrap();
    run("mount", &["--bind", path.to_str().unwrap(), mounted.to_str().unwrap()]);
    let error = refused(&mounted).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("mount its folder"), "{error}");
    open(&path).await;
}

fn schema(conn: &rusqlite::Connection, version: i64) {
    conn.pragma_update(None, "user_version", version).unwrap();
}

#[tokio::test]
async fn a_newer_schema_ends_all_writing() {
    let folder = folder();
    let path = file(&folder);
    let store = open(&path).await;
    let (first, second) = (request("n", 1), request("n", 2));
    let token = hold(&store, &first).await;
    queue(&store, &second).await;
    let newer = raw(&path);
    schema(&newer, 99);
    let (first, second) = (first.ticket(), second.ticket());
    let errors = [
        store.acquire(&request("n", 3)).await.unwrap_err(),
        store.renew(&[renewal(&request("n", 1))]).await.remove(0).unwrap_err(),
        store.release(&first).await.unwrap_err(),
        store.evict(&name("n"), token).await.unwrap_err(),
        store.raise(&first, token).await.unwrap_err(),
        store.wait(&second).await.unwrap_err(),
        store.inspect(&name("n")).await.unwrap_err(),
        store.list("", &Page::first(1).unwrap()).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("99"), "{error}");
    }
    // Tables that are not there any more do not hide why.
    newer.execute_batch("ALTER TABLE onelock_line RENAME TO onelock_entry").unwrap();
    let error = store.release(&first).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    newer.execute_batch("ALTER TABLE onelock_entry RENAME TO onelock_line").unwrap();
    schema(&newer, 1);
    release(&store, &first).await;
}

/// Another process' writer does not keep anybody from opening the file and looking into it.
#[tokio::test]
async fn opening_and_looking_only_read() {
    let folder = folder();
    let path = file(&folder);
    let store = open(&path).await;
    hold(&store, &request("n", 1)).await;
    let writer = raw(&path);
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut config = onelock_sql::SqliteConfig::new(&path);
    config.busy_timeout = std::time::Duration::ZERO;
    let other =
        onelock_sql::SqliteBackend::open(config, std::sync::Arc::new(onelock_core::BootClock)).await.unwrap();
    assert_eq!(other.inspect(&name("n")).await.unwrap().holders.len(), 1);
    assert_eq!(other.list("", &Page::first(10).unwrap()).await.unwrap().names.len(), 1);
    assert_eq!(other.acquire(&request("n", 2)).await.unwrap_err().kind(), ErrorKind::Unavailable);
    writer.execute_batch("ROLLBACK").unwrap();
    assert!(matches!(other.acquire(&request("n", 2)).await, Ok(Standing::Waiting(_))));
    assert_eq!(other.release(&request("n", 2).ticket()).await.unwrap(), Release::Released);
}

fn size(path: &Path, suffix: &str) -> u64 {
    std::fs::metadata(format!("{}{suffix}", path.display())).unwrap().len()
}

/// As the shell of SQLite in the middle of a transaction: the log cannot begin anew before it ends.
#[tokio::test]
async fn a_reader_that_lingers_costs_little_and_leaves_nothing() {
    let folder = folder();
    let path = file(&folder);
    let store = open(&path).await;
    let reader = raw(&path);
    reader.execute_batch("BEGIN; SELECT * FROM onelock_meta").unwrap();
    let cycles = async |count: u64| {
        for holder in 0..count {
            let request = request("n", u128::from(holder) + 1);
            hold(&store, &request).await;
            release(&store, &request.ticket()).await;
        }
    };
    cycles(20).await;
    let before = size(&path, "-wal");
    cycles(100).await;
    let a_cycle = (size(&path, "-wal") - before) / 100;
    assert!(a_cycle < 12 << 10, "{a_cycle} bytes of log for a cycle");
    cycles((4 << 20) / a_cycle).await;
    assert!(size(&path, "-wal") > 4 << 20, "the reader does not hold it up: this shows nothing");
    reader.execute_batch("COMMIT").unwrap();
    drop(reader);
    cycles(20).await;
    assert!(size(&path, "-wal") <= 1 << 20, "{} bytes of log stay", size(&path, "-wal"));
}
