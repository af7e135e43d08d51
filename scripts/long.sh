#!/bin/sh
# The longer run: on every store, trials of everything at once with at least 500 faults, trials that judge the work, long
# churns, thousands of cancels, of lost and of altered replies, and a process that is worn for long. Leaves the records, a
# page and a table about them in target/evidence. About an hour on two cores.
#   scripts/long.sh [STORE…]        only these, by the names that the suite prints
#   SOAK=N scripts/long.sh [STORE…] trials N times as long
# ONELOCK_SEED replays the random choices of another run: every record has its seed.
set -eu
cd "$(dirname "$0")/.."
. scripts/all.sh
mkdir -p target/evidence
folder=$(pwd)/target/evidence
soak=${SOAK:-1}
wanted=" $* "
failed=
# An interrupt ends all that this has started: a shell starts what runs beside it deaf to the terminal's.
trap 'trap "" TERM; kill -TERM 0; exit 130' INT TERM

# As the check builds them: nothing is compiled twice.
tests() { cargo test --quiet --workspace --features "$features" "$@"; }
tests --no-run

# suite STORE CYCLES TEST-PROGRAM: one store's part, one record file.
suite() {
    store=$1 cycles=$2 program=$3
    case $wanted in "  " | *" $store "*) ;; *) return 0 ;; esac
    record=$folder/$store.jsonl
    rm -f "$record"
    run() { # run VOLUME CYCLES CASES
        ONELOCK_RECORD=$record ONELOCK_VOLUME=$1 ONELOCK_CYCLES=$2 \
            tests --test "$program" -- --test-threads 2 "$store::$3"
    }
    # Everything runs, also after a failure.
    ok=1
    for part in "$((25 * soak)) 0 everything_breaks" "$((5 * soak)) 0 work_is_alone" "1 $cycles churn_exclusive" "3 0 cancelled_acquires_leave_nothing" \
        "100 0 lost_reply_to" "1 20000 nothing_leaks" "25 0 mangled_replies" "10 0 crossing_sets_all_end"; do
        # shellcheck disable=SC2086 # three words
        run $part || ok=
    done >"$folder/$store.log" 2>&1
    if [ -z "$ok" ]; then
        failed="$failed $store"
        # A program that did not build or was killed has named no case.
        grep -A 8 '^failures:' "$folder/$store.log" || tail -n 20 "$folder/$store.log"
    fi
    echo "$store: $(grep -c '"outcome":"passed"' "$record") passed, $(grep -c '"outcome":"ignored"' "$record") do not apply"
}

(
    suite memory 1000000 memory
    suite sqlite 10000 conformance_sqlite
    suite etcd 10000 conformance
    suite zookeeper 10000 conformance
    suite mysql-session 10000 conformance_mysql_session
    [ -z "$failed" ]
) &
first=$!
(
    suite redis 200000 conformance
    suite redis-plain 10000 conformance_plain
    suite redis-sentinel 10000 conformance_sentinel
    suite redis-cluster 10000 conformance_cluster
    suite postgres-session 10000 conformance_postgres_session
    [ -z "$failed" ]
) &
second=$!
suite postgres 20000 conformance_postgres
suite pgbouncer 10000 conformance_pgbouncer
suite mysql 20000 conformance_mysql
suite redis-quorum 50000 conformance_quorum
code=0
wait $first || code=1
wait $second || code=1
[ -z "$failed" ] || code=1
set --
for record in "$folder"/*.jsonl; do set -- "$@" --from "$record"; done
"${CARGO_TARGET_DIR:-target}/debug/onelock" check --report "$folder/report.html" --markdown "$folder/table.md" "$@"
exit $code
