#!/bin/sh
# Everything a change must pass: the same for a newcomer and for CI.
#   scripts/check.sh          all of it
#   scripts/check.sh quick    without installing, linting per feature, and cargo deny
set -eu
cd "$(dirname "$0")/.."
quick=${1:-}
# The stores whose suite must be green. A store in the making joins this line when its suite is.
stores=onelock-cli/etcd,onelock-cli/redis,onelock-cli/sqlite,onelock-cli/zk,lock-sql/sqlite

step() { printf '\n== %s\n' "$*"; "$@"; }

[ -n "$quick" ] || step sh scripts/setup.sh

step cargo fmt --all --check
step cargo clippy --workspace --all-targets --features "$stores" -- -D warnings

if [ -z "$quick" ]; then
    # Each feature by itself: a feature must not lean on another.
    for features in "" etcd redis sqlite zk; do
        step cargo clippy -p onelock --no-default-features --features "$features" -- -D warnings
    done
    step sh scripts/features.sh
    step cargo deny --all-features check bans licenses sources
fi

# ZooKeeper's suite joins when it has been seen green in full more than once: cargo test -p lock-zk
step cargo test --workspace --exclude lock-zk --features "$stores"
for example in examples/*.rs; do
    step cargo run --quiet -p onelock --example "$(basename "$example" .rs)"
done
