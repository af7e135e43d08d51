//! What survives when the machine loses its power.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use onelock_conformance::servers::{Place, folder_in, power};
use onelock_core::store::Checked;
use onelock_core::{Backend as _, HolderId, Mode, Renewed, Request, Standing};
use onelock_sql::SqliteBackend;

use crate::support::{HandClock, file, folder, hold, open, open_with, queue, raw, release, renewal, request};

const CLIENT: &str = "ONELOCK_SQLITE_POWER";
const TEST: &str = "power::numbers_that_were_answered_survive_a_power_cut";

async fn join(store: &Checked<SqliteBackend>) -> (Request, i64) {
    let mut request = request("power", 0);
    request.holder = HolderId::random().unwrap();
    // What was held at an earlier cut may be there yet.
    let token = match store.acquire(&request).await.unwrap() {
        Standing::Held(grant) => grant.token,
        Standing::Waiting(place) => place.token.unwrap(),
        Standing::Busy(_) => panic!("it queues"),
    };
    (request, token.get())
}

/// A process of its own, whose file loses what was not synced. Takes and gives back until it is killed, and says each number.
async fn client(file: &str) {
    let store = open(file.as_ref()).await;
    loop {
        let (request, token) = join(&store).await;
        println!("\ntoken {token}");
        release(&store, &request.ticket()).await;
    }
}

#[tokio::test]
async fn numbers_that_were_answered_survive_a_power_cut() {
    if let Ok(file) = std::env::var(CLIENT) {
        return client(&file).await;
    }
    let folder = folder_in(Place::Disk).unwrap();
    power::prepare(folder.path()).unwrap();
    let file = folder.path().join("data/locks.db");
    let mut last = 0;
    for round in 0..5 {
        let mut words = power::words(folder.path(), "data").unwrap();
        words.push(std::env::current_exe().unwrap().into());
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .args(["--exact", TEST, "--nocapture"])
            .env(CLIENT, &file)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut seen = 0;
        for line in lines {
            let Some(token) = line.unwrap().strip_prefix("token ").map(|token| token.parse::<i64>().unwrap())
            else {
                continue;
            };
            assert!(token > last, "round {round}: token {token} after {last}");
            last = token;
            seen += 1;
            // What it has said until it is gone counts as well.
            if seen == 20 + 3 * round {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(seen >= 20, "round {round}: the client ended after {seen} numbers");
        power::lose(folder.path(), "data").await.unwrap();
    }
    let (_, token) = join(&open(&file).await).await;
    assert!(token > last, "token {token} after {last}");
}

/// A promotion need not be on the disk when it is answered: the file is copied before, as the cut would leave it.
#[tokio::test]
async fn a_promotion_that_was_lost_with_the_power_keeps_its_lock_delay() {
    let folder = folder();
    let path = file(&folder);
    let clock = HandClock::new();
    let store = open_with(&path, &clock).await;
    let delay = Duration::from_secs(50);
    let (mut reader, writer) = (request("n", 1), request("n", 2).delay(delay));
    reader.mode = Mode::Shared;
    hold(&store, &reader).await;
    queue(&store, &writer).await;
    let cut = folder.path().join("cut.db");
    for end in ["", "-wal"] {
        let of = |path: &std::path::Path| format!("{}{end}", path.display());
        std::fs::copy(of(&path), of(&cut)).unwrap();
    }
    release(&store, &reader.ticket()).await;
    assert!(matches!(store.renew(&[renewal(&writer)]).await[0], Ok(Renewed::Held(_))));
    store.close().await.unwrap();
    raw(&cut).execute_batch("UPDATE onelock_meta SET boot = 'an earlier one'").unwrap();
    let store = open_with(&cut, &clock).await;
    let next = request("n", 3);
    queue(&store, &next).await;
    clock.advance(delay);
    assert!(matches!(store.renew(&[renewal(&next)]).await[0], Ok(Renewed::Held(_))));
}
