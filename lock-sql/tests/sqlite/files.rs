//! Files that are not ours, cannot be written, are full, go away or come from an earlier boot.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use onelock_core::{Backend, BootClock, ErrorKind, HolderId, Mode, Renewed, Request, Standing};
use onelock_sql::{SqliteBackend, SqliteConfig};

use crate::support::{
    HandClock, file, folder, hold, in_a_namespace, name, one, open, open_with, queue, raw, refused, release,
    renewal, request,
};

/// Every file in the folder, byte for byte.
fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect();
    all.sort();
    all
}

#[tokio::test]
async fn files_of_others_are_left_byte_for_byte() {
    for kind in ["text", "short", "zeros", "sqlite", "sqlite in wal mode", "truncated head"] {
        let folder = folder();
        let path = file(&folder);
        match kind {
            "text" => std::fs::write(&path, "hello\n".repeat(1_000)).unwrap(),
            "short" => std::fs::write(&path, "x").unwrap(),
            "zeros" => std::fs::write(&path, [0; 8_192]).unwrap(),
            "truncated head" => std::fs::write(&path, b"SQLite format 3\0").unwrap(),
            _ => {
                let conn = raw(&path);
                if kind.ends_with("wal mode") {
                    conn.pragma_update(None, "journal_mode", "WAL").unwrap();
                }
                conn.execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (1)").unwrap();
                // Dropped and not closed in wal mode, so that its log stays behind.
                if kind == "sqlite" { drop(conn) } else { std::mem::forget(conn) }
            }
        }
        let before = contents(folder.path());
        let error = refused(&path).await;
        assert_eq!(error.kind(), ErrorKind::Foreign, "{kind}: {error}");
        assert_eq!(contents(folder.path()), before, "{kind}");
    }
}

#[tokio::test]
async fn an_empty_file_is_taken_and_ours_is_taken_again() {
    let folder = folder();
    let path = file(&folder);
    std::fs::write(&path, "").unwrap();
    let first = open(&path).await;
    let token = hold(&first, &request("n", 1)).await;
    first.close().await.unwrap();
    assert_eq!(contents(folder.path()).len(), 1, "the log is in the file");
    let second = open(&path).await;
    assert!(
        matches!(second.renew(&[renewal(&request("n", 1))]).await[0], Ok(Renewed::Held(g)) if g.token == token)
    );
    release(&second, &request("n", 1).ticket()).await;
    assert!(hold(&second, &request("n", 2)).await > token);
}

#[tokio::test]
async fn a_newer_schema_is_left_alone() {
    let folder = folder();
    let path = file(&folder);
    open(&path).await.close().await.unwrap();
    let conn = raw(&path);
    conn.execute_batch("PRAGMA user_version = 99").unwrap();
    drop(conn);
    let before = contents(folder.path());
    let error = refused(&path).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("99"), "{error}");
    assert_eq!(contents(folder.path()), before);
}

#[tokio::test]
async fn paths_that_cannot_work_are_named() {
    let folder = folder();
    let path = file(&folder);
    // In folders of which each has a name of a usual length.
    let mut deep = folder.path().to_owned();
    while deep.as_os_str().len() < 450 {
        deep.push("x".repeat(40));
        std::fs::create_dir(&deep).unwrap();
    }
    // Where links lead to, which SQLite follows: below a file, and to a name that is too long.
    let (below, long) = (folder.path().join("below"), folder.path().join("long"));
    std::fs::write(folder.path().join("plain"), "").unwrap();
    std::os::unix::fs::symlink(folder.path().join("plain/locks.db"), &below).unwrap();
    std::os::unix::fs::symlink(folder.path().join("x".repeat(300)), &long).unwrap();
    let longest = deep.join("l".repeat(504 - deep.as_os_str().len() - 1));
    let longer = std::path::PathBuf::from(format!("{}l", longest.display()));
    open(&longest).await;
    for (bad, kind) in [
        (folder.path().join("missing/locks.db"), ErrorKind::InvalidConfig),
        (folder.path().to_owned(), ErrorKind::InvalidConfig),
        ("/dev/null".into(), ErrorKind::InvalidConfig),
        ("/sys/onelock.db".into(), ErrorKind::Denied),
        (folder.path().join("x".repeat(300)), ErrorKind::InvalidConfig),
        (longer.clone(), ErrorKind::InvalidConfig),
        (below, ErrorKind::InvalidConfig),
        (long, ErrorKind::InvalidConfig),
    ] {
        let error = refused(&bad).await;
        assert_eq!(error.kind(), kind, "{bad:?}: {error}");
    }
    assert!(!path.exists() && !longer.exists());
}

/// As SQLAlchemy writes an absolute path in a URL: with one slash more.
#[tokio::test]
async fn a_path_may_begin_with_two_slashes() {
    let folder = folder();
    let path = format!("/{}", file(&folder).display());
    let first = open(Path::new(&path)).await;
    hold(&first, &request("n", 1)).await;
    queue(&open(Path::new(&path)).await, &request("n", 2)).await;
    queue(&open(&file(&folder)).await, &request("n", 3)).await;
}

/// A process is killed while it makes the file, when some pages or all are in it and the journal that undoes them is not deleted yet.
#[tokio::test]
async fn a_file_whose_making_was_cut_short_is_made_again() {
    let made_in = folder();
    let made = file(&made_in);
    let journal = |path: &Path| format!("{}-journal", path.display());
    let conn = raw(&made);
    // So that the journal is on the disk before the commit: pages leave a cache that is full.
    conn.execute_batch("PRAGMA page_size = 1024; PRAGMA cache_size = 1; BEGIN IMMEDIATE").unwrap();
    conn.execute_batch(include_str!("../../src/sqlite/schema/0001.sql")).unwrap();
    conn.execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (randomblob(100000)); DROP TABLE t")
        .unwrap();
    let undo = std::fs::read(journal(&made)).unwrap();
    conn.execute_batch("COMMIT").unwrap();
    let pages = std::fs::read(&made).unwrap();
    for count in [1, 5, pages.len() / 1024] {
        let folder = folder();
        let path = file(&folder);
        std::fs::write(journal(&path), &undo).unwrap();
        std::fs::write(&path, &pages[..count * 1024]).unwrap();
        let store = open(&path).await;
        hold(&store, &request("n", 1)).await;
        queue(&open(&path).await, &request("n", 2)).await;
        assert_eq!(one::<i64>(&raw(&path), "SELECT count(*) FROM onelock_line"), 2);
    }
}

#[tokio::test]
async fn tables_that_were_tampered_with_are_foreign() {
    let folder = folder();
    let path = file(&folder);
    let store = open(&path).await;
    hold(&store, &request("n", 1)).await;
    hold(&store, &request("m", 1)).await;
    let conn = raw(&path);
    conn.execute_batch("UPDATE onelock_line SET mode = 'q7' WHERE name = 'n'").unwrap();
    assert_eq!(store.inspect(&name("n")).await.unwrap_err().kind(), ErrorKind::Foreign);
    let due = [renewal(&request("n", 1)), renewal(&request("m", 1))];
    let answers = store.renew(&due).await;
    assert_eq!(answers[0].as_ref().unwrap_err().kind(), ErrorKind::Foreign);
    assert!(matches!(answers[1], Ok(Renewed::Held(_))), "{answers:?}");
    conn.execute_batch("DROP TABLE onelock_line").unwrap();
    assert_eq!(store.acquire(&request("o", 1)).await.unwrap_err().kind(), ErrorKind::Foreign);
}

#[tokio::test]
async fn a_busy_file_is_waited_for_and_then_an_error() {
    let folder = folder();
    let path = file(&folder);
    let mut config = SqliteConfig::new(&path);
    config.busy_timeout = Duration::from_millis(100);
    let store = SqliteBackend::open(config, Arc::new(BootClock)).await.unwrap();
    let patient = open(&path).await;
    let other = raw(&path);
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = store.acquire(&request("n", 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.is_retryable() && error.to_string().contains("busy"), "{error}");
    let request = request("n", 2);
    let freed = async {
        // The patient one is in the queue by now; let the other writer go.
        tokio::task::yield_now().await;
        other.execute_batch("COMMIT").unwrap();
    };
    let (held, ()) = tokio::join!(hold(&patient, &request), freed);
    assert_eq!(held.get(), 1, "the call that failed has taken nothing");
}

#[tokio::test]
async fn a_full_disk_refuses_to_join_and_still_lets_go() {
    let Some(small) = SmallDisk::mount() else {
        return in_a_namespace("files::a_full_disk_refuses_to_join_and_still_lets_go");
    };
    let path = small.path().join("locks.db");
    let store = open(&path).await;
    let mut held = Vec::new();
    let error = loop {
        let mut next = request(&format!("{}-{}", "n".repeat(200), held.len()), 1);
        next.note = onelock_core::Note::new("x".repeat(500)).unwrap();
        match store.acquire(&next).await {
            Ok(Standing::Held(_)) => held.push(next),
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
        assert!(held.len() < 10_000);
    };
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(held.len() > 10);
    let last = held.last().unwrap();
    assert_eq!(store.inspect(&last.name).await.unwrap().holders.len(), 1);
    // Room for what the log has for the file and a little more: the log must go there before releases take the room for themselves.
    let pages: u32 = one(&raw(&path), "PRAGMA page_count");
    let room = u64::from(pages) * 1024 - std::fs::metadata(&path).unwrap().len() + (16 << 10);
    let ballast = std::fs::File::options().write(true).open(small.path().join("ballast")).unwrap();
    ballast.set_len(300_000 - room).unwrap();
    for request in &held {
        release(&store, &request.ticket()).await;
    }
    let listing = store.list("", &onelock_core::Page::first(10).unwrap()).await.unwrap();
    assert_eq!(listing.names, []);
    hold(&store, &request("n", 1)).await;
}

/// The index of the log takes room when a file is opened, and a new file takes an inode.
#[tokio::test]
async fn a_full_disk_is_told_when_a_file_is_opened() {
    let Some(small) = SmallDisk::mount() else {
        return in_a_namespace("files::a_full_disk_is_told_when_a_file_is_opened");
    };
    let path = small.path().join("locks.db");
    open(&path).await.close().await.unwrap();
    // As much as there is room for.
    std::fs::write(small.path().join("ballast"), vec![1; 2_000_000]).unwrap_err();
    let full = refused(&path).await;
    assert_eq!(full.kind(), ErrorKind::Full, "{full}");
    let inodes: Vec<_> =
        (0..20).map_while(|i| std::fs::File::create(small.path().join(format!("{i}"))).ok()).collect();
    let full = refused(&small.path().join("new.db")).await;
    assert_eq!((full.kind(), inodes.len() < 20), (ErrorKind::Full, true), "{full}");
}

/// A file system of its own, of one megabyte with some ballast to throw off, where the test may mount one.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let folder = folder();
        let options = ["-t", "tmpfs", "-o", "size=1m,nr_inodes=16", "tmpfs"];
        let status = std::process::Command::new("mount").args(options).arg(folder.path()).status().ok()?;
        if !status.success() {
            return None;
        }
        let disk = Self(folder);
        std::fs::write(disk.path().join("ballast"), vec![1; 300_000]).unwrap();
        Some(disk)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn remount(&self, how: &str) {
        let options = format!("remount,bind,{how}");
        let status =
            std::process::Command::new("mount").args(["-o", &options]).arg(self.path()).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[tokio::test]
async fn a_deleted_or_replaced_file_is_noticed() {
    let folder = folder();
    let path = file(&folder);
    let store = open(&path).await;
    let token = hold(&store, &request("n", 1)).await;
    let gone = |suffix: &str| std::fs::remove_file(format!("{}{suffix}", path.display())).unwrap();
    for suffix in ["", "-wal", "-shm"] {
        gone(suffix);
    }
    let error = store.renew(&[renewal(&request("n", 1))]).await.remove(0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("deleted"), "{error}");
    // From then on it works in the file that others see, with numbers that still grow.
    assert!(matches!(store.renew(&[renewal(&request("n", 1))]).await[0], Ok(Renewed::NotHeld)));
    let other = open(&path).await;
    assert!(hold(&store, &request("n", 2)).await > token);
    queue(&other, &request("n", 3)).await;
}

#[tokio::test]
async fn a_reboot_frees_the_locks_but_runs_the_lock_delay() {
    let folder = folder();
    let path = file(&folder);
    let clock = HandClock::new();
    let store = open_with(&path, &clock).await;
    let plain = request("plain", 1);
    let delayed = request("delayed", 1).delay(Duration::from_secs(5));
    let token = hold(&store, &plain).await;
    queue(&store, &request("plain", 2)).await;
    hold(&store, &delayed).await;
    queue(&store, &request("delayed", 2)).await;
    store.close().await.unwrap();
    let conn = raw(&path);
    conn.execute_batch("UPDATE onelock_meta SET boot = 'an earlier one'").unwrap();
    let store = open_with(&path, &clock).await;

    let seen = store.inspect(&name("plain")).await.unwrap();
    assert!(seen.holders.is_empty() && seen.waiters.is_empty(), "{seen:?}");
    let seen = store.inspect(&name("delayed")).await.unwrap();
    assert_eq!((seen.holders.len(), seen.waiters.len()), (1, 0));
    assert_eq!(seen.holders[0].expires_in, Some(Duration::from_secs(5)));
    let renewed = store.renew(&[renewal(&plain), renewal(&delayed)]).await;
    assert!(renewed.iter().all(|r| matches!(r, Ok(Renewed::NotHeld))), "{renewed:?}");
    assert!(hold(&store, &plain).await > token);
    queue(&store, &request("delayed", 3)).await;
    clock.advance(Duration::from_secs(5));
    assert!(matches!(store.renew(&[renewal(&request("delayed", 3))]).await[0], Ok(Renewed::Held(_))));
}

#[tokio::test]
async fn the_last_number_is_an_error_and_not_a_wrap() {
    let folder = folder();
    let store = open(&file(&folder)).await;
    let first = request("n", 1);
    hold(&store, &first).await;
    // The last one of this token epoch.
    let last = onelock_core::FencingToken::new((1 << 48) - 1).unwrap();
    assert_eq!(store.raise(&first.ticket(), last).await.unwrap(), onelock_core::Raise::Raised);
    assert_eq!(store.acquire(&request("m", 2)).await.unwrap_err().kind(), ErrorKind::Full);
    release(&store, &first.ticket()).await;
}

#[tokio::test]
async fn a_counter_that_has_gone_back_takes_no_number_from_another_entry() {
    let folder = folder();
    let path = file(&folder);
    let store = open(&path).await;
    let held = request("held", 1);
    let token = hold(&store, &held).await;
    raw(&path).execute("UPDATE onelock_meta SET number = 0", ()).unwrap();
    // A client that has seen the larger number goes on from there; a new one would give it once more.
    let other = open(&path).await;
    let error = other.acquire(&request("wanted", 2)).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Foreign && error.to_string().contains("gone back"), "{error}");
    assert_eq!(other.inspect(&held.name).await.unwrap().holders[0].token, token);
    assert!(other.inspect(&name("wanted")).await.unwrap().holders.is_empty());
    assert!(hold(&store, &request("wanted", 2)).await > token);
    release(&store, &held.ticket()).await;
}

#[tokio::test]
async fn many_names_leave_nothing_but_the_counter() {
    let folder = folder();
    let path = file(&folder);
    let clock = HandClock::new();
    let store = open_with(&path, &clock).await;
    for round in 0..20 {
        let requests: Vec<_> = (0..250).map(|i| request(&format!("{round}/{i}"), 1)).collect();
        futures_util::future::join_all(requests.iter().map(|r| hold(&store, r))).await;
        if round % 2 == 0 {
            let tickets: Vec<_> = requests.iter().map(onelock_core::Request::ticket).collect();
            futures_util::future::join_all(tickets.iter().map(|t| release(&store, t))).await;
        } else {
            // Abandoned: nobody ever asks for these names again.
            clock.advance(Duration::from_secs(61));
        }
    }
    store.inspect(&name("another")).await.unwrap();
    let conn = raw(&path);
    let rows: i64 = one(&conn, "SELECT count(*) FROM onelock_line");
    let meta: i64 = one(&conn, "SELECT count(*) FROM onelock_meta");
    let bytes: i64 = one(&conn, "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size");
    assert_eq!((rows, meta), (0, 1));
    assert!(bytes < 400_000, "{bytes} bytes");
}

#[tokio::test]
async fn a_read_only_disk_is_refused_and_loses_nothing() {
    let Some(small) = SmallDisk::mount() else {
        return in_a_namespace("files::a_read_only_disk_is_refused_and_loses_nothing");
    };
    let path = small.path().join("locks.db");
    let store = open(&path).await;
    let token = hold(&store, &request("n", 1)).await;
    store.close().await.unwrap();
    small.remount("ro");
    for path in [path.clone(), small.path().join("new.db")] {
        let error = refused(&path).await;
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
    small.remount("rw");
    let store = open(&path).await;
    assert!(
        matches!(store.renew(&[renewal(&request("n", 1))]).await[0], Ok(Renewed::Held(g)) if g.token == token)
    );
}

/// It would be written as a mode that nobody can read.
#[tokio::test]
async fn a_permit_that_weighs_more_than_its_limit_spoils_no_line() {
    let folder = folder();
    let store = open(&file(&folder)).await;
    let [limit, weight] = [2, 3].map(|number| std::num::NonZeroU32::new(number).unwrap());
    let heavy = Mode::Permit { limit, weight };
    let heavy = Request::new(name("n"), HolderId::from_u128(1), heavy, Duration::from_secs(60));
    let refused = store.acquire(&heavy).await.map_err(|error| error.kind());
    assert_eq!(store.acquire(&request("n", 2)).await.map_err(|error| error.to_string()).map(|_| ()), Ok(()));
    assert_eq!(refused, Err(ErrorKind::InvalidConfig));
}
