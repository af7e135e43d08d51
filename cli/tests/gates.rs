//! `gates`: what shut gates look like to a person, and opening them by a person's word.

use crate::common::{Bench, Redis, folder, until};
use rustix::process::Signal;
use serde_json::Value;

fn quorum_of(servers: &[Redis]) -> Bench {
    let members: Vec<_> = servers.iter().map(|server| format!("{}?gate=run_id", server.url())).collect();
    // A busy machine is not a dead server.
    let url = format!("quorum://?members={}&member_timeout=10s", members.join("|"));
    Bench { dir: folder(), url }
}

/// The state of each gate, as `--json` tells it.
fn told(out: &str) -> Vec<(String, Option<String>)> {
    let row = |line: &str| {
        let row: Value = serde_json::from_str(line).unwrap();
        (row["gate"].as_str().unwrap().to_owned(), row["highest"].as_str().map(Into::into))
    };
    out.lines().map(row).collect()
}

#[test]
fn shut_gates_are_shown_and_opened_by_a_persons_word() {
    let servers: Vec<_> = (0..3).map(|_| Redis::start()).collect();
    let bench = quorum_of(&servers);
    let before = bench.run(&["gates", "--json"]);
    assert_eq!(before.code, Some(1), "{before:?}");
    assert_eq!(told(&before.out), vec![("shut".to_owned(), Some("0".to_owned())); 3]);
    let refused = bench.run(&["run", "a", "--no-wait", "--", "true"]);
    assert_ne!(refused.code, Some(0), "{refused:?}");

    let opened = bench.run(&["gates", "--open", "--floor", "40"]);
    assert_eq!(opened.code, Some(0), "{opened:?}");
    let lines: Vec<_> = opened.out.lines().collect();
    assert_eq!(lines[0], "3 opened");
    assert!(
        lines[1].starts_with("MEMBER") && lines[2..].iter().all(|line| line.contains("open")),
        "{lines:?}"
    );
    let held = bench.run(&["run", "a", "--", "sh", "-c", "echo $ONELOCK_TOKEN"]);
    let token: i64 = held.out.trim().parse().unwrap();
    assert!(token > 40, "the floor was 40: {held:?}");
    let again = bench.run(&["gates", "--open"]);
    assert_eq!((again.code, again.out.lines().next()), (Some(0), Some("0 opened")));
}

#[test]
fn an_absent_member_is_shown_and_nothing_is_opened_without_it() {
    let servers: Vec<_> = (0..3).map(|_| Redis::start()).collect();
    let bench = quorum_of(&servers);
    servers[2].signal(Signal::KILL);
    let mut seen = Vec::new();
    until("a member that cannot be asked", || {
        seen = told(&bench.run(&["gates", "--json"]).out);
        seen.len() == 3 && seen[2].0 == "unknown"
    });
    assert_eq!((seen[0].0.as_str(), seen[1].0.as_str()), ("shut", "shut"));
    let refused = bench.run(&["gates", "--open"]);
    assert_ne!(refused.code, Some(0), "{refused:?}");
    let after = told(&bench.run(&["gates", "--json"]).out);
    assert!(after.iter().all(|(gate, _)| gate != "open"), "{after:?}");
}

#[test]
fn what_is_no_quorum_has_no_gates() {
    let bench = Bench::sqlite();
    let refused = bench.run(&["gates"]);
    assert_ne!(refused.code, Some(0));
    assert!(refused.err.contains("not a quorum"), "{refused:?}");
    let plain = Bench { url: "quorum://?members=memory://a|memory://b".into(), ..Bench::sqlite() };
    let none = plain.run(&["gates", "--json"]);
    assert_eq!((none.code, told(&none.out)), (Some(0), vec![("none".to_owned(), None); 2]));
}
