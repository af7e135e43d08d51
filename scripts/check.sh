#!/bin/sh
# Everything a change must pass: the same for a newcomer and for CI.
#   scripts/check.sh          all of it
#   scripts/check.sh quick    without installing, and of scripts/lint.sh only its first step
set -eu
cd "$(dirname "$0")/.."
quick=${1:-}
. scripts/all.sh
# Tests wait for leases most of their time: more of them at once than there are processors.
export RUST_TEST_THREADS=$(($(nproc) * 3))

work=$(mktemp -d)
lint=
finish() {
    status=$?
    if [ -n "$lint" ]; then
        printf '\n== what ran beside the tests\n'
        linted=0
        wait "$lint" || linted=$?
        grep -vE '^ +(Compiling|Checking|Documenting|Downloaded|Downloading) ' "$work/lint" || true
        if [ "$linted" != 0 ]; then
            echo "the lints have failed, at the step above"
            status=1
        fi
    fi
    if [ -s "$work/failed" ]; then
        # Once more at the end, without backtraces: it is the first thing that is looked for.
        printf '\n== what failed\n'
        cat "$work/failed"
    fi
    rm -rf "$work"
    exit "$status"
}
trap finish EXIT
# An interrupt ends all that this has started.
trap 'trap "" TERM; lint=; kill -TERM 0; exit 130' INT TERM

step cargo fmt --all --check
if [ -z "$quick" ]; then
    step sh scripts/setup.sh build
    # The servers are fetched while the processors build.
    sh scripts/setup.sh >"$work/setup" 2>&1 </dev/null &
    setup=$!
    step cargo test --workspace --no-run --features "$features"
    step wait "$setup" || { cat "$work/setup" && exit 1; }
    # Lints compute, and tests wait for leases most of their time: lints take what tests leave of the processors.
    idle="nice -n 19"
    ! chrt --idle 0 true >/dev/null 2>&1 || idle="chrt --idle 0"
    # In this session: the kernel shares the processors fairly between sessions, and only within one by policy and niceness.
    $idle sh scripts/lint.sh >"$work/lint" 2>&1 </dev/null &
    lint=$!
else
    step cargo clippy --workspace --all-targets --features "$features" -- -D warnings
fi

# Everything runs, also after a failure: the matrix shows all of it.
log=$work/tests
{ step cargo test --workspace --no-fail-fast --features "$features" 2>&1 || echo "the tests have failed"; } | tee "$log"
# No password of the tests may be in anything they print.
secrets='h0rse-battery|hunter2|never-printed|apps-password|keepers-password|secret-of-mine|other-secret'
told=$(grep -nE "$secrets" "$log" || true)
printf '\n== the suite, case by store\n'
# It fails with each case; what is told below is told all the same.
whole=yes
sh scripts/matrix.sh "$log" || whole=
if [ -n "$told" ]; then
    printf 'passwords were printed:\n%s\n' "$told"
    exit 1
fi
if grep -q '^the tests have failed' "$log"; then
    awk '/^---- / { left = 15 } /^(failures|stack backtrace):/ { left = 0 } left-- > 0' "$log" >"$work/failed"
    exit 1
fi
[ -n "$whole" ] || exit 1
# The suite of Redis once more, on Valkey.
if command -v valkey-server >/dev/null 2>&1; then
    export ONELOCK_REDIS_SERVER=valkey-server
    step cargo test --workspace --features "$features" --test conformance -- redis::
    step cargo test --workspace --features "$features" --test store -- verbs:: settings::
    unset ONELOCK_REDIS_SERVER
fi
# Programs that have the library only as its users do: one on all stores, one a service on PostgreSQL.
step cargo fmt --check --manifest-path examples/outside/Cargo.toml
step cargo fmt --check --manifest-path examples/payments/Cargo.toml
step cargo fmt --check --manifest-path examples/folder-store/Cargo.toml
step cargo test --workspace --features "$features" --test outside -- --ignored
