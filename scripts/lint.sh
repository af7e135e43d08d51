#!/bin/sh
# What a change must pass that starts no server: lints of every feature, the documentation, the book, examples, licences, the public API,
# other systems. It installs the tools of cargo that it calls.
set -eu
cd "$(dirname "$0")/.."
. scripts/all.sh

tool() { # tool NAME CRATE OPTION...: without optimization, as each works for seconds
    name=$1
    shift
    cargo "$name" --version >/dev/null 2>&1 || "$name" --version >/dev/null 2>&1 || step cargo install --debug --locked "$@"
}

step cargo clippy --workspace --all-targets --features "$features" -- -D warnings
# Each feature by itself: a feature must not lean on another.
for feature in "" etcd metrics mysql postgres redis sqlite tower tracing zk zk-tls "etcd redis tls" \
    "etcd mysql postgres redis tls-aws-lc"; do
    step cargo clippy -p onelock --no-default-features --features "$feature" -- -D warnings
done
step cargo clippy -p onelock-cli --all-targets -- -D warnings
# No link of the documentation is dead.
step env RUSTDOCFLAGS="-D warnings" cargo doc --no-deps -p onelock -p onelock-core -p onelock-etcd -p onelock-redis \
    -p onelock-sql -p onelock-zk --features onelock/etcd,onelock/mysql,onelock/postgres,onelock/redis,onelock/sqlite \
    --features onelock/zk,onelock-core/metrics,onelock-core/tower,onelock-core/tracing
# The events of a client, read from real recorders.
step cargo test -p onelock-core --features metrics,tracing,tower --lib --test seen
for example in examples/*.rs; do
    step cargo run --quiet -p onelock --example "$(basename "$example" .rs)"
done
# Programs that have the library only as its users do. Built here, they are there for the test that runs them.
cp Cargo.lock examples/outside/
step cargo build --workspace --all-targets --manifest-path examples/outside/Cargo.toml
# What is not in the program is refused by name: in its default build, and with all stores but without TLS.
step cargo test -p onelock-cli --test light
step cargo test -p onelock-cli --test light --features etcd,mysql,postgres,zk
step sh scripts/features.sh
step sh scripts/counts.sh
step python3 scripts/msrv.py
tool mdbook mdbook --version ^0.5 --no-default-features
step python3 scripts/book.py
step sh scripts/elsewhere.sh
tool public-api cargo-public-api --version ^0.52
step sh scripts/api.sh
tool deny cargo-deny --version ^0.20
step cargo deny --all-features check bans licenses sources
step env DRY=1 sh conformance/mutate.sh
step cargo publish --dry-run --workspace --no-verify --allow-dirty
