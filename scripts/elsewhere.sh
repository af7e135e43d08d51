#!/bin/sh
# The library and the program compile where the system is not Linux. SQLite's C is left out: it needs the system's headers.
#   scripts/elsewhere.sh        what rustup cannot get is named, and left to the workflow's machines
set -eu
cd "$(dirname "$0")/.."
export LIBSQLITE3_SYS_USE_PKG_CONFIG=1 SQLITE3_LIB_DIR=/
for target in aarch64-apple-darwin x86_64-pc-windows-gnu; do
    if ! [ -d "$(rustc --print sysroot)/lib/rustlib/$target" ] && ! rustup target add "$target"; then
        echo "$target: not checked, because it cannot be installed here"
        continue
    fi
    # Both at once: what they share is built once.
    cargo clippy --target "$target" -p onelock -p onelock-cli --features onelock/metrics,onelock/tls,onelock/tower,onelock/tracing \
        --features onelock-cli/etcd,onelock-cli/mysql,onelock-cli/postgres,onelock-cli/zk -- -D warnings
done
