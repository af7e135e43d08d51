#!/bin/sh
# How many crates a build takes, ours among them, and that cryptography comes only with a feature that asks for it.
set -eu
cd "$(dirname "$0")/.."
wrong=

crates() { cargo tree --locked -e normal --prefix none "$@" | sed 's/ (\*)$//' | sort -u; }
of() { crates -p onelock --no-default-features --features "$1"; }

within() { # within LIMIT WHAT, the crates on stdin
    count=$(wc -l)
    echo "$2: $count crates, at most $1"
    [ "$count" -le "$1" ] || wrong="$wrong; $2 takes $count crates"
}
plain() { # plain WHAT, the crates on stdin
    found=$(grep -E '^(ring|rustls|aws-lc-(rs|sys)|native-tls|openssl) ' | tr '\n' ' ')
    echo "$1: cryptography: ${found:-none}"
    [ -z "$found" ] || wrong="$wrong; $1 brings $found"
}
# Two providers in the tree make `ClientConfig::builder()` panic in a program that relies on the one of its own.
brings() { # brings WHAT WANTED UNWANTED, the crates on stdin: a provider, and not the other
    tree=$(cat)
    for crate in $2; do
        printf '%s\n' "$tree" | grep -q "^$crate " || wrong="$wrong; $1 does not bring $crate"
    done
    for crate in $3; do
        ! printf '%s\n' "$tree" | grep -q "^$crate " || wrong="$wrong; $1 brings $crate"
    done
    echo "$1: $2, and not: $3"
}

# In files, as a pipe would keep what is wrong to itself.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
of "" >"$work/bare"
of sqlite >"$work/sqlite"
of redis >"$work/redis"
crates -p onelock-cli >"$work/program"
within 24 "the bare library" <"$work/bare"
within 38 "sqlite" <"$work/sqlite"
within 56 "redis" <"$work/redis"
within 100 "the program" <"$work/program"
plain "the program" <"$work/program"
for store in "" sqlite redis etcd zk postgres mysql "etcd mysql postgres redis sqlite zk"; do
    of "$store" >"$work/store"
    plain "the library with \`$store\`" <"$work/store"
done
for store in redis etcd postgres mysql; do
    of "$store tls-ring" >"$work/store"
    brings "$store tls-ring" "rustls ring" "aws-lc-rs" <"$work/store"
    of "$store tls-aws-lc" >"$work/store"
    brings "$store tls-aws-lc" "rustls aws-lc-rs" "ring" <"$work/store"
done
for store in redis etcd; do
    of "$store tls" >"$work/store"
    brings "$store tls" "rustls" "ring aws-lc-rs" <"$work/store"
done
of "etcd mysql postgres redis sqlite zk zk-tls" >"$work/store"
brings "zk-tls" "rustls aws-lc-rs" "tokio-rustls" <"$work/store"
if [ -n "$wrong" ]; then
    echo "too much${wrong}" >&2
    exit 1
fi
