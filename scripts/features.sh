#!/bin/sh
# A store must not bring in what another needs.
set -eu
cd "$(dirname "$0")/.."

refuse() { # refuse FEATURE CRATE...
    feature=$1
    shift
    tree=$(cargo tree -p onelock --no-default-features --features "$feature" -e normal --prefix none)
    for crate in "$@"; do
        if printf '%s\n' "$tree" | grep -q "^$crate v"; then
            echo "feature \`$feature\` pulls $crate" >&2
            exit 1
        fi
    done
    echo "feature \`$feature\` pulls none of: $*"
}
refuse "" redis sqlx-core tonic zookeeper-client
refuse redis sqlx sqlx-core tonic zookeeper-client
refuse etcd sqlx redis zookeeper-client
refuse zk sqlx redis tonic
refuse postgres redis tonic zookeeper-client sqlx-sqlite sqlx-mysql
refuse mysql redis tonic zookeeper-client sqlx-sqlite sqlx-postgres
refuse sqlite redis tonic zookeeper-client sqlx sqlx-core
