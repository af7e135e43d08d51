//! What is not in a build: said in one sentence that names the feature, before anything is done.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod common;

use std::net::TcpListener;

use common::{Bench, folder};

/// The subcommands that are features, and whether they are in this build.
const COMMANDS: [(&str, bool); 2] = [("bench", cfg!(feature = "bench")), ("check", cfg!(feature = "check"))];

#[test]
fn a_subcommand_is_there_or_names_its_feature() {
    let bench = Bench { dir: folder(), url: "memory://".into() };
    let help = bench.run(&["--help"]).out;
    let bash = bench.run(&["completions", "bash"]).out;
    let pages = bench.dir.path().join("man");
    std::fs::create_dir(&pages).unwrap();
    assert_eq!(bench.run(&["man", "--dir", pages.to_str().unwrap()]).code, Some(0));
    for (name, there) in COMMANDS {
        let listed = help.lines().any(|line| line.trim_start().starts_with(&format!("{name} ")));
        assert_eq!(listed, there, "{help}");
        assert_eq!(
            help.contains(&format!("--features {name}")) || help.contains(",check)"),
            !there,
            "{help}"
        );
        assert_eq!(pages.join(format!("onelock-{name}.1")).exists(), there, "{name}");
        assert_eq!(bash.contains(&format!("onelock__subcmd__{name})")), there, "{name}");
        for words in [
            &[name][..],
            &[name, "--help"],
            &[name, "--quick", "memory://"],
            &["--store", "memory://", name],
            &["help", name],
            &["man", name],
        ] {
            if there {
                continue;
            }
            let done = bench.run(words);
            assert_eq!((done.code, done.out.as_str()), (Some(64), ""), "{words:?}: {done:?}");
            let wanted = format!(
                "onelock: `onelock {name}` is not in this build: cargo install onelock-cli --features {name}\n"
            );
            assert_eq!(done.err, wanted, "{words:?}");
        }
    }
}

/// A store, or TLS to one, by the options after the address and the feature that brings it.
const STORES: [(&str, &str, &str, bool); 16] = [
    ("redis", "", "redis", cfg!(feature = "redis")),
    ("etcd", "", "etcd", cfg!(feature = "etcd")),
    ("zk", "", "zk", cfg!(feature = "zk")),
    ("postgres", "/db", "postgres", cfg!(feature = "postgres")),
    ("postgres+session", "/db", "postgres", cfg!(feature = "postgres")),
    ("mysql", "/db", "mysql", cfg!(feature = "mysql")),
    ("mariadb+session", "/db", "mysql", cfg!(feature = "mysql")),
    ("rediss", "", "tls-ring", TLS || !cfg!(feature = "redis")),
    ("rediss+sentinel", "/name", "tls-ring", TLS || !cfg!(feature = "redis")),
    ("rediss+cluster", "", "tls-ring", TLS || !cfg!(feature = "redis")),
    ("etcds", "", "tls-ring", TLS || !cfg!(feature = "etcd")),
    ("postgres", "/db?sslmode=require", "tls-ring", TLS || !cfg!(feature = "postgres")),
    ("postgres+session", "/db?sslmode=verify-full", "tls-ring", TLS || !cfg!(feature = "postgres")),
    ("mysql", "/db?tls=verify-ca", "tls-ring", TLS || !cfg!(feature = "mysql")),
    ("mysql+session", "/db?tls=require", "tls-ring", TLS || !cfg!(feature = "mysql")),
    ("zks", "", "zk-tls", cfg!(feature = "zk-tls") || !cfg!(feature = "zk")),
];
const TLS: bool = cfg!(any(feature = "tls-aws-lc", feature = "tls-ring"));

#[test]
fn a_store_is_there_or_names_its_feature() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    server.set_nonblocking(true).unwrap();
    let at = server.local_addr().unwrap();
    for (scheme, rest, feature, there) in STORES {
        if there {
            continue;
        }
        let one = format!("{scheme}://u:hunter2-never-printed@{at}{rest}");
        let member = one.replace('%', "%25").replace('&', "%26");
        for url in [one, format!("quorum://?members=memory://a|memory://b|{member}")] {
            let bench = Bench { dir: folder(), url };
            let done = bench.run(&["run", "a", "--wait", "5s", "--", "sh", "-c", "echo ran >> $HIST"]);
            assert_eq!(done.code, Some(64), "{}: {done:?}", bench.url);
            let wanted = format!("cargo install onelock-cli --features {feature}\n");
            assert!(done.err.ends_with(&wanted) && done.err.lines().count() == 1, "{}: {done:?}", bench.url);
            assert!(bench.history().is_empty(), "{}", bench.url);
            assert!(server.accept().is_err(), "{}: the store was asked", bench.url);
        }
    }
}
