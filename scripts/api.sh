#!/bin/sh
# The public API of the core, which `onelock` shows to its users, is what lock-core/api.txt says: a change of it is seen in review.
#   scripts/api.sh            compares
#   scripts/api.sh --update   writes it anew
# It is read from rustdoc's JSON, whose format changes with the compiler: where there is no nightly one whose JSON the tool reads, it says so.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! cargo public-api -sss -p onelock-core --features metrics,tower,tracing --color never >"$work/api.txt" 2>"$work/log"; then
    tail -n 3 "$work/log"
    echo "lock-core/api.txt: not compared, because cargo-public-api cannot read what this toolchain writes"
    exit 0
fi
if [ "${1:-}" = --update ]; then
    cp "$work/api.txt" lock-core/api.txt
fi
diff -u lock-core/api.txt "$work/api.txt" || {
    echo "the public API has changed: scripts/api.sh --update, and say so in CHANGELOG.md" >&2
    exit 1
}
